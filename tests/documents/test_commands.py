"""docs/commands.md lists every command that there is, with the line of its help, and where it is described."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

import pytest

import broker_adapter.mqtt.cli.main
import journal.cli.main
import spark_export.cli.main
from broker_adapter.cache_queue.cli.commands import COMMANDS as QUEUE_COMMANDS
from tests.documents.pages import PAGES, REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "commands.md"
_ROW: Final = re.compile(r"^\| `([^`]+)` \|(?: (`make [^|]*|)\|)?? ([^|]+) \| \[[^\]]+\]\(([^)]+)\) \|$", re.MULTILINE)
ROWS: Final = {command: (told, link) for command, _, told, link in _ROW.findall(PAGE.read_text())}
TARGETS: Final = {command: target.strip(" `") for command, target, _, _ in _ROW.findall(PAGE.read_text())}
HELP: Final = {
    f"{program} {words}": told
    for program, commands in (
        ("journal", journal.cli.main.COMMANDS),
        ("journal queue", QUEUE_COMMANDS.commands),
        ("journal-broker", broker_adapter.mqtt.cli.main.COMMANDS),
        ("journal-spark", spark_export.cli.main.COMMANDS),
    )
    for words, (_, told) in commands.items()
}
_MODULE: Final = re.compile(
    r"python -m ((?:demo|benchmarks|tests.(?:torture|fuzz|sanitized)|journal|broker_adapter|spark_export)[a-z_.]*)"
)


def modules_in(*paths: Path) -> set[str]:
    return {found.rstrip(".") for path in paths for found in _MODULE.findall(path.read_text())}


def test_the_table_has_every_command_with_the_line_of_its_help() -> None:
    programs = {command: told for command, (told, _) in ROWS.items() if not command.startswith("python ")}
    assert programs == HELP


@pytest.mark.parametrize("command", ROWS)
def test_the_page_that_a_command_is_described_in_speaks_of_it(command: str) -> None:
    page = (PAGE.parent / ROWS[command][1].partition("#")[0]).resolve()
    text = page.read_text()
    names = [command, f"`{command.removeprefix('journal queue ')}", TARGETS[command]]
    assert any(name in text for name in names if name)


def test_every_module_that_is_called_is_in_the_table_and_can_be_called() -> None:
    listed = {command.removeprefix("python -m ") for command in ROWS if command.startswith("python ")}
    assert modules_in(REPOSITORY / "Makefile", REPOSITORY / "tests" / "README.md", *PAGES) == listed
    for name in listed:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        main = Path(spec.origin)
        if main.name == "__init__.py":
            main = main.with_name("__main__.py")
        assert "__main__" in main.read_text() or main.name == "__main__.py"
