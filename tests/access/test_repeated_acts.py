"""Acts that programs repeat do not fill the audit log, and none of them is missing from its counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journal.access import repeated_acts
from journal.access.audit import AuditEntry, AuditLog
from journal.access.repeated_acts import PERIOD_S, RepeatedActs


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(path: Path) -> list[tuple[str, str, int]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["principal"], line["target"], line.get("left_out", 0)) for line in lines]


def commit(acts: RepeatedActs, principal: str, target: str, port: int = 1) -> None:
    acts.write(
        AuditEntry(principal=principal, peer=f"10.0.0.1:{port}", act="cursor_commit", target=target, outcome="ok")
    )


def test_the_first_has_a_line_and_the_others_are_counted_after_the_period(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "audit"
    acts = RepeatedActs(AuditLog(str(file)), clock)
    for port in range(5):
        commit(acts, "anna", "x", port)
    commit(acts, "anna", "y")
    commit(acts, "bob", "x")
    assert lines_of(file) == [("anna", "x", 0), ("anna", "y", 0), ("bob", "x", 0)]
    clock.now = PERIOD_S
    acts.tell()
    assert lines_of(file)[3:] == [("anna", "x", 4)]
    commit(acts, "anna", "x")
    assert lines_of(file)[4:] == [("anna", "x", 0)], "a new period begins with a line"


def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_acts, "_REMEMBERED", 2)
    file = tmp_path / "audit"
    acts = RepeatedActs(AuditLog(str(file)), Clock())
    for target in ("x", "x", "y", "z"):
        commit(acts, "anna", target)
    assert lines_of(file) == [("anna", "x", 0), ("anna", "y", 0), ("anna", "x", 1), ("anna", "z", 0)]


def test_acts_with_ever_other_targets_share_a_line_beyond_a_number(tmp_path: Path) -> None:
    """A client chooses the topics that are refused to it, and must not fill the disk by choosing many."""
    clock, file = Clock(), tmp_path / "audit"
    acts = RepeatedActs(AuditLog(str(file)), clock, max_different=3)
    for number in range(100):
        commit(acts, "anna", f"x/{number}")
    commit(acts, "bob", "x/50")
    assert lines_of(file) == [*(("anna", f"x/{number}", 0) for number in range(3)), ("anna", "", 0), ("bob", "x/50", 0)]
    clock.now = PERIOD_S
    acts.tell()
    assert lines_of(file)[5:] == [("anna", "", 96)]
    commit(acts, "anna", "x/99")
    assert lines_of(file)[6:] == [("anna", "x/99", 0)], "a new period has room again"
