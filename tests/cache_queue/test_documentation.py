"""docs/cache-queues.md documents all settings, counts and commands."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from broker_adapter.cache_queue import LeaseSettings, Overflow, QueueMode, QueueSettings
from broker_adapter.cache_queue.cli.commands import COMMANDS
from broker_adapter.cache_queue.stored import Counts, WriterCounts
from journal.settings.values import format_size

TEXT = (Path(__file__).parents[2] / "docs" / "cache-queues.md").read_text()


def first_cells(heading: str) -> list[str]:
    """Of all tables below a heading."""
    return re.findall(r"^\| `(\w+)`", TEXT.split(f"## {heading}")[1].split("\n## ")[0], flags=re.MULTILINE)


def test_settings_and_their_choices_are_those_of_the_code() -> None:
    settings = [field.name for field in attrs.fields(QueueSettings)]
    assert sorted(first_cells("Bounds")) == sorted([*settings, *QueueMode, *Overflow])


def test_defaults_are_those_of_the_code() -> None:
    defaults = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \| ", TEXT, flags=re.MULTILINE))
    for name, value in attrs.asdict(QueueSettings()).items():
        shown = format_size(value) if name.endswith("_bytes") else str(value)
        assert defaults[name] == shown, name


def test_counts_are_those_of_the_code() -> None:
    assert first_cells("What becomes of records") == [*Counts.__struct_fields__, *WriterCounts.__struct_fields__]


def test_every_command_is_documented() -> None:
    for command in COMMANDS.commands:
        assert f"`journal queue {command} NAME" in TEXT or f"$ journal queue {command}" in TEXT or command == "resume"
    assert f"after {LeaseSettings().lease_s:.0f} seconds" in TEXT
