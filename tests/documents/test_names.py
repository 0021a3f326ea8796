"""Files, modules and messages that pages name are there."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from tests.documents.pages import REPOSITORY, prose_of
from tests.documents.test_links import LINKING

_MESSAGE = re.compile(r"[a-z]+(?: [a-z/().]+){2,}")
_COMMANDS = ("journal ", "make ", "mosquitto ", "pip ", "systemctl ")
PACKAGES = ("shards", "journal", "broker_adapter", "command_line", "spark_export")
MESSAGES = re.sub(
    r'"\s*\n\s*f?"',
    "",
    "\n".join(file.read_text() for package in PACKAGES for file in sorted((REPOSITORY / package).rglob("*.py"))),
)
"""The source of all packages, with strings that are divided over lines joined."""
FORMATS = REPOSITORY / "docs" / "formats.md"
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:[\w-]+/)+(?:[\w.-]+\.(?:py|toml|md|json|yml|conf|service|lock|csv))?")
_ROOTS = (
    "shards",
    "journal",
    "broker_adapter",
    "command_line",
    "spark_export",
    "tests",
    "conf",
    "scripts",
    "requirements",
)
_OF_A_DATA_DIRECTORY = {"journal/", "journal/journal-broker.service"}
_DOTTED = re.compile(r"(?:shards|journal|broker_adapter|command_line|spark_export|tests)(?:\.\w+)+")
_ENTRY_POINTS = {"journal.commands", "journal.sinks"}
_SETTINGS = {f"shards.{key}" for key in tomllib.loads((REPOSITORY / "conf" / "journal.toml").read_text())["shards"]}
_METADATA = {f"journal.{key}" for key in re.findall(r"^\| `journal\.(\w+)`", FORMATS.read_text(), re.MULTILINE)}
_NO_MODULES = _ENTRY_POINTS | _SETTINGS | _METADATA


def missing_files(text: str) -> list[str]:
    """Paths from the root of the repository, and names alone that follow such a path in a list of files."""
    missing, folder = [], REPOSITORY
    for name in _CODE.findall(text):
        if _FILE.fullmatch(name) and name.startswith(tuple(f"{root}/" for root in _ROOTS)):
            path = REPOSITORY / name
            folder = path if name.endswith("/") else path.parent
        elif re.fullmatch(r"\w+\.py", name):
            path = folder / name
        else:
            continue
        if name not in _OF_A_DATA_DIRECTORY and not path.exists():
            missing.append(name)
    return missing


def missing_modules(text: str) -> list[str]:
    """Dotted names that are neither a module nor an attribute of one."""
    return [
        name
        for name in _CODE.findall(text)
        if _DOTTED.fullmatch(name) and name not in _NO_MODULES and not is_importable(name)
    ]


def missing_messages(text: str) -> list[str]:
    """Quoted messages, of three words and more, that no program has; ``...`` is for what a message fills in."""
    return [
        quoted
        for quoted in _CODE.findall(text)
        if _MESSAGE.fullmatch(quoted)
        and not quoted.startswith(_COMMANDS)
        and not all(part.strip() in MESSAGES for part in quoted.split("..."))
    ]


def is_importable(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        try:
            return hasattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            return False
    return True


CHECKED = [page for page in LINKING if page.parent.name != "adr"]
"""Decisions keep the names of their time."""


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_and_modules_that_a_page_names_are_there(page: Path) -> None:
    text = prose_of(page)
    assert missing_files(text) == []
    assert missing_modules(text) == []


def test_messages_that_the_run_books_quote_are_those_of_the_programs() -> None:
    assert missing_messages(prose_of(REPOSITORY / "docs" / "operations.md")) == []


def test_names_that_are_not_there_are_found() -> None:
    text = (
        "`shards/format/batch.py`, `none.py`, `shards/none.py`, `shards.none`, `journal.engine.None`, `shards.format`"
    )
    assert missing_files(text) == ["none.py", "shards/none.py"]
    assert missing_modules(text) == ["shards.none", "journal.engine.None"]
    assert missing_messages("`the disk is made of ... cheese`, `appends are refused`") == [
        "the disk is made of ... cheese"
    ]
