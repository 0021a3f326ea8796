"""docs/sinks.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.sinks import find_kind
from broker_adapter.sinks.files.column_types import ColumnType
from journal.settings import is_choice

TEXT = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
KINDS = re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)


def section(kind: str) -> str:
    return TEXT.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]


def shown(default: Any) -> str:
    if default is attrs.NOTHING:
        return "none, must be given"
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return "`{}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


@pytest.mark.parametrize("kind", KINDS)
def test_each_setting_is_there_with_its_default_unit_and_bounds(kind: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", section(kind).partition("**")[0], re.MULTILINE)
    found = {name: (default, allowed) for name, default, allowed in rows}
    attributes = attrs.fields_dict(attrs.resolve_types(find_kind(kind).settings))
    assert list(found) == list(attributes)
    for name, attribute in attributes.items():
        default, allowed = found[name]
        assert default == shown(attribute.default), name
        if bounds := attribute.metadata.get("bounds"):
            assert allowed == f"{bounds[0]} to {bounds[1]} {attribute.metadata['unit']}", name
        if is_choice(attribute.type):
            assert re.findall(r'"(.+?)"', allowed) == [member.value for member in attribute.type], name


def test_column_types_are_those_that_there_are() -> None:
    named = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", section("files").partition("**Types.**")[2], re.MULTILINE)
    assert named == [each.value for each in ColumnType]
