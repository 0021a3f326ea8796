"""The settings of each kind of sink are those that ``docs/sinks.md`` tells, with their defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
import pytest

from broker_adapter.sinks import find_kind

TEXT = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_the_table_of_settings_has_all_of_them(kind: str) -> None:
    section = re.split(r"^## ", TEXT.partition(f"\n## `{kind}`")[2], maxsplit=1, flags=re.MULTILINE)[0]
    table = section.partition("| setting | default |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", table, re.MULTILINE)
    attributes = attrs.fields(find_kind(kind).settings)
    assert told == [
        (each.name, "" if each.default is attrs.NOTHING else json.dumps(each.default)) for each in attributes
    ]
