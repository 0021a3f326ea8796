"""The settings of each kind of sink are those that ``docs/sinks.md`` tells, with their defaults and bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.bridge.projection import DEFAULT_FIELDS
from broker_adapter.sinks.column_types import ColumnType
from broker_adapter.sinks.kinds import find_kind
from broker_adapter.sinks.postgresql.table import USUAL_TYPES
from journal.settings.values import is_choice

TEXT = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
KINDS = re.findall(r"^## `(\w+)`", TEXT, re.MULTILINE)
TELLING_BOUNDS = ("http", "mqtt", "files")


def section(kind: str) -> str:
    return re.split(r"^## ", TEXT.partition(f"\n## `{kind}`")[2], maxsplit=1, flags=re.MULTILINE)[0]


def table(kind: str) -> list[tuple[str, str, str]]:
    """Setting, default, and the rest of each line."""
    text = section(kind).partition("| setting | default |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\| (.+) \|$", text, re.MULTILINE)


def shown(default: Any) -> str:
    if default is attrs.NOTHING:
        return ""
    return "{}" if isinstance(default, attrs.Factory) else json.dumps(default)  # type: ignore[arg-type]


def test_each_kind_of_this_distribution_is_documented() -> None:
    assert sorted(KINDS) == ["files", "http", "mqtt", "postgresql", "redis"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_settings_has_all_of_them(kind: str) -> None:
    attributes = attrs.fields(find_kind(kind).settings)
    assert [(name, default) for name, default, _ in table(kind)] == [
        (each.name, shown(each.default)) for each in attributes
    ]


@pytest.mark.parametrize("kind", TELLING_BOUNDS)
def test_bounds_units_and_choices_are_those_of_the_code(kind: str) -> None:
    attributes = attrs.fields_dict(attrs.resolve_types(find_kind(kind).settings))
    for name, _, told in table(kind):
        allowed = told.partition(" | ")[0]
        attribute = attributes[name]
        if bounds := attribute.metadata.get("bounds"):
            assert allowed == f"{bounds[0]} to {bounds[1]} {attribute.metadata['unit']}", name
        if is_choice(attribute.type):
            assert re.findall(r'"(.+?)"', allowed) == [member.value for member in attribute.type], name


def test_column_types_are_those_that_there_are() -> None:
    named = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", section("files").partition("**Types.**")[2], re.MULTILINE)
    assert named == [each.value for each in ColumnType]


def test_the_table_for_the_usual_columns_is_the_one_that_the_sink_proposes() -> None:
    columns = ", ".join(f'"{column}" {USUAL_TYPES.get(column, "text")}' for column in DEFAULT_FIELDS)
    assert re.findall(r"^CREATE TABLE events (.*)$", TEXT, re.MULTILINE) == [f"({columns})"]
