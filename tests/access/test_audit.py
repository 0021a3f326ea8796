"""Lines of the audit log are JSON that a terminal neither obeys nor hides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.access.audit import AuditEntry, AuditLog, _printable

UNFIT = ["\x1b[2J", "\x7f", "\x9b31m", "\u202egnp.exe", "\u2066x", "\u200b", "\U000e0041", "a\nb", '"}{"act": "ban']


@pytest.mark.parametrize("name", UNFIT)
def test_names_that_a_terminal_would_obey_or_hide_are_escaped(name: str, tmp_path: Path) -> None:
    file = tmp_path / "audit"
    audit = AuditLog(str(file), lambda: 5_000)
    audit.write(AuditEntry(principal=name, peer="", act="login", target=name, client=name, reason=name, outcome="ok"))
    (line,) = file.read_text().splitlines()
    assert line.isprintable()
    assert json.loads(line) == {
        "time_us": 5,
        "principal": name,
        "peer": "",
        "act": "login",
        "target": name,
        "outcome": "ok",
        "client": name,
        "reason": name,
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_escaped_line_has_the_same_value(text: str) -> None:
    line = _printable(json.dumps(text, ensure_ascii=False))
    assert line.isprintable()
    assert json.loads(line) == text


def test_a_name_in_any_script_stays_readable() -> None:
    assert _printable('{"principal":"Jürgen 田中"}') == '{"principal":"Jürgen 田中"}'
