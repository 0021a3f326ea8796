"""docs/operations.md names what there is: commands, settings, files, and rows of the benchmarks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from journal.cli.main import COMMANDS

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "operations.md").read_text()


def test_commands_that_are_shown_are_there() -> None:
    shown = set(re.findall(r"(?:`|^[#$] |/bin/)journal ([a-z]+(?: [a-z]+)?)", TEXT, re.MULTILINE))
    assert {"backup", "restore", "compact"} <= {words.split()[0] for words in shown}
    own = set(COMMANDS) | {command.split()[0] for command in COMMANDS} | {"queue show", "queue"}
    for words in shown:
        assert words in own or words.split()[0] in own, words


def test_settings_that_are_named_are_there() -> None:
    known = tomllib.loads((REPOSITORY / "conf" / "journal.toml").read_text())
    named = set(re.findall(rf"`({'|'.join(known)})\.([a-z_]+)", TEXT))
    assert len(named) > 8
    for section, key in named:
        assert key in known[section], f"{section}.{key}"


def test_files_that_are_named_are_there() -> None:
    for name in re.findall(r"`(conf/[\w.-]+)`", TEXT):
        assert (REPOSITORY / name).exists(), name


def test_sizing_rests_on_rows_of_the_benchmarks() -> None:
    sizing = TEXT[TEXT.index("## How large") : TEXT.index("## Tune")]
    rows = re.findall(r"`((?:convert|idle|one|large)\.[\w.*-]+)`", sizing)
    measured = (REPOSITORY / "docs" / "benchmarks.md").read_text()
    assert len(rows) >= 5
    for row in rows:
        assert f"`{row}" in measured, row
