"""Declarations of tables: the file, its errors, and what may be changed later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_export.errors import OptionError
from spark_export.tables.config_file import load_tables, parse_tables
from spark_export.tables.declaration import Evolution, compare
from spark_export.tables.errors import DeclarationChangedError
from tests.tables.declared import FIELDS, declared

VALID = """
[source]
server = "127.0.0.1:7420"

[[table]]
name = "readings"
directory = "/lake/readings"
topics = ["plant/+/temperature"]
fields = { line = "topic[1]", temperature = "$.temperature" }
types = { temperature = "float" }
interval_s = 10
max_records = 1000
data_loss = "skip"
"""
HEAD = '[[table]]\nname = "a"\ndirectory = "/a"\ntopics = "#"\nfields = { x = "topic" }\n'


def test_a_file_declares_tables_and_where_their_records_are(tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(VALID + HEAD)
    found = load_tables(tmp_path / "tables.toml")
    assert found.source == {"server": "127.0.0.1:7420"}
    first, second = found.tables
    assert (first.name, first.directory, first.topics) == ("readings", "/lake/readings", ("plant/+/temperature",))
    assert (first.interval_s, first.max_records, first.fail_on_data_loss) == (10.0, 1000, False)
    assert (second.topics, second.fields, second.types) == (("#",), {"x": "topic"}, {})
    assert (second.interval_s, second.max_records, second.fail_on_data_loss) == (60.0, 500_000, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[table", "t.toml: it is not valid TOML: "),
        ("", "t.toml: there is no [[table]]; conf/tables.toml shows one"),
        ("table = 1", "t.toml: table must be a list of tables: [[table]] before each"),
        ("[tables]\n" + HEAD, "t.toml: tables is unknown; did you mean table?"),
        ("[source]\npath = '/d'\n" + HEAD, "t.toml: [source] path is unknown; known: directory, server"),
        ("[source]\nserver = 'nowhere'\n" + HEAD, "t.toml: [source] option 'server' is 'nowhere', it must"),
        (HEAD + "interval = 5", "t.toml: [[table]] a: interval is unknown; did you mean interval_s?"),
        (HEAD + "interval_s = 0", "t.toml: [[table]] a: interval_s is 0, it must be from 1 to 86400 seconds"),
        (HEAD + "interval_s = '5s'", "t.toml: [[table]] a: interval_s = '5s' must be a number of seconds"),
        (HEAD + "max_records = 1.5", "t.toml: [[table]] a: max_records = 1.5 must be an integer"),
        (HEAD + "data_loss = 'ignore'", "t.toml: [[table]] a: data_loss = 'ignore' must be \"fail\" or \"skip\""),
        (HEAD + "types = { y = 'int' }", "t.toml: [[table]] a: types has 'y', which is no column of fields: x"),
        (HEAD + "types = { x = 'long' }", "t.toml: [[table]] a: types has 'x' as 'long', it must be one of text, json"),
        (HEAD.replace('"topic"', '"nothing"'), "t.toml: [[table]] a: fields has a source 'nothing', which is"),
        (HEAD.replace("x =", "Topic ="), "t.toml: [[table]] a: fields has a column 'Topic', but typed rows have"),
        (HEAD.replace("x =", 'X = "topic", x ='), "t.toml: [[table]] a: fields has columns that differ only in"),
        (HEAD.replace('"#"', '"a/#/b"'), "t.toml: [[table]] a: topics has 'a/#/b', which is no topic filter: "),
        (HEAD.replace('"#"', "1"), "t.toml: [[table]] a: topics = 1 must be a list of texts"),
        (HEAD.replace('"/a"', '"s3://b"'), "t.toml: [[table]] a: directory is 's3://b', it must be a"),
        (HEAD.replace('name = "a"\n', ""), "t.toml: [[table]] number 1: name is missing; it must be a text"),
        (HEAD + HEAD.replace('"/a"', '"/b"'), "t.toml: [[table]] a: 2 tables have this name; give each one of its own"),
        (HEAD + HEAD.replace('"a"', '"b"'), "t.toml: [[table]] /a: 2 tables have this directory; give each one"),
    ],
)  # fmt: skip
def test_errors_name_file_table_and_key_and_what_is_possible(text: str, told: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_tables(text, "t.toml")
    assert str(refused.value).startswith(told)


def test_all_problems_of_a_file_are_told_together() -> None:
    with pytest.raises(OptionError) as refused:
        parse_tables(HEAD.replace("topics", "topic") + "interval_s = true", "t.toml")
    assert str(refused.value).splitlines() == [
        "t.toml: [[table]] a: topic is unknown; did you mean topics?",
        "t.toml: [[table]] a: interval_s = True must be a number of seconds",
        "t.toml: [[table]] a: topics is missing; it must be a list of texts",
    ]


STORED = declared(Path("/p")).stored()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"types": {"temperature": "int"}}, "has the column 'temperature' as float, now it is declared as int"),
        ({"fields": {**FIELDS, "line": "topic"}}, "has 'line' from 'topic[1]', now it is declared from 'topic'"),
        ({"fields": {"line": "topic[1]"}, "types": {}}, "has a column 'temperature', which is not declared any more"),
        ({"topics": ("office",)}, "has rows of the topics plant/#, which are not declared any more"),
        ({"shards": ("folded/#",)}, "has rows of the shards those of topics, now folded/# are declared"),
    ],
)
def test_a_declaration_that_the_rows_do_not_have_is_refused_with_the_way_out(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(DeclarationChangedError) as refused:
        compare(declared(Path("/p"), **changes), STORED)
    assert str(refused.value).startswith(f"table readings: /p/table {told}")
    assert str(refused.value).endswith("with --rebuild readings")


def test_a_directory_belongs_to_one_table() -> None:
    with pytest.raises(DeclarationChangedError, match="is that of the table 'readings': give each table a directory"):
        compare(declared(Path("/p"), name="others"), STORED)


def test_columns_and_topics_may_be_added_and_what_does_not_concern_rows_changed() -> None:
    fields = {"unit": "$.unit", **FIELDS}
    wider = declared(Path("/p"), fields=fields, topics=("office", "plant/#"), interval_s=5, max_records=7)
    assert compare(wider, STORED) == Evolution(("unit",), ("office",))
    assert not compare(declared(Path("/p"), fail_on_data_loss=False), STORED)
