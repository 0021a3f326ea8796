"""The file that declares tables: ``[source]`` and a ``[[table]]`` for each. `conf/tables.toml` shows every setting.

Errors name file, table and key, what was found and what is possible. All problems of a file are reported together.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from spark_export.errors import OptionError
from spark_export.options import parse_options
from spark_export.tables.declaration import TableDeclaration

_SOURCE: Final = ("directory", "server")
_LOSS: Final = {"fail": True, "skip": False}


@attrs.frozen
class _Key:
    """A setting of a table.

    Attributes:
        name: Its attribute in `TableDeclaration`.
        kind: What it must be, for messages.
        is_required: Whether it has no default.
    """

    name: str
    kind: str
    is_required: bool = False


_TEXTS: Final = "a list of texts"
_TABLE: Final = 'a table of texts, like { temperature = "$.temperature" }'
_KEYS: Final[Mapping[str, _Key]] = {
    "name": _Key("name", "a text", is_required=True),
    "directory": _Key("directory", "a text", is_required=True),
    "topics": _Key("topics", _TEXTS, is_required=True),
    "shards": _Key("shards", _TEXTS),
    "fields": _Key("fields", _TABLE, is_required=True),
    "types": _Key("types", _TABLE),
    "interval_s": _Key("interval_s", "a number of seconds"),
    "max_records": _Key("max_records", "an integer"),
    "data_loss": _Key("fail_on_data_loss", '"fail" or "skip"'),
}


@attrs.frozen
class TablesConfig:
    """A file of declarations.

    Attributes:
        source: ``path`` and ``server`` of the records, as options of the data source; may be empty.
        tables: The tables, in their order.
    """

    source: Mapping[str, str]
    tables: tuple[TableDeclaration, ...]


def load_tables(path: str | os.PathLike[str]) -> TablesConfig:
    """Read a file of declarations.

    Raises:
        OptionError: It is not valid; a line for each problem.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        return parse_tables(content.decode(), os.fspath(path))
    except UnicodeDecodeError as error:
        raise OptionError(f"{os.fspath(path)}: it is not UTF-8 text") from error


def parse_tables(text: str, shown: str) -> TablesConfig:
    """Parse declarations; see `load_tables`.

    Args:
        text: TOML.
        shown: Where it is from, for messages.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{shown}: it is not valid TOML: {error}") from error
    problems = [
        f"{key} is unknown{_meant(key, ('source', 'table'))}" for key in found if key not in ("source", "table")
    ]
    source = _source(found.get("source", {}), problems)
    tables = []
    rows = found.get("table", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        problems.append("table must be a list of tables: [[table]] before each")
    else:
        for number, row in enumerate(rows, 1):
            table = _table(row, number, problems)
            tables += [] if table is None else [table]
        if not rows:
            problems.append("there is no [[table]]; conf/tables.toml shows one")
    for attribute in ("name", "directory"):
        values = [getattr(table, attribute) for table in tables]
        repeated = sorted({value for value in values if values.count(value) > 1})
        problems += [
            f"[[table]] {value}: {values.count(value)} tables have this {attribute}; give each one of its own"
            for value in repeated
        ]
    if problems:
        raise OptionError("\n".join(f"{shown}: {problem}" for problem in problems))
    return TablesConfig(source, tuple(tables))


def _source(found: Any, problems: list[str]) -> dict[str, str]:
    if not isinstance(found, dict):
        problems.append("source must be a section: [source]")
        return {}
    source = {}
    for key, value in found.items():
        if key not in _SOURCE:
            problems.append(f"[source] {key} is unknown{_meant(key, _SOURCE)}")
        elif not isinstance(value, str) or not value:
            problems.append(f"[source] {key} = {value!r} must be a text")
        else:
            source["path" if key == "directory" else key] = value
    if source:
        try:
            parse_options(source)
        except OptionError as error:
            problems.append(f"[source] {error}")
    return source


def _table(row: Mapping[str, Any], number: int, problems: list[str]) -> TableDeclaration | None:
    name = row.get("name")
    shown = f"[[table]] {name}" if isinstance(name, str) and name else f"[[table]] number {number}"
    before = len(problems)
    given: dict[str, Any] = {}
    for key, value in row.items():
        if key not in _KEYS:
            problems.append(f"{shown}: {key} is unknown{_meant(key, _KEYS)}")
            continue
        parsed = _parsed(key, value)
        if parsed is None:
            problems.append(f"{shown}: {key} = {value!r} must be {_KEYS[key].kind}")
        else:
            given[_KEYS[key].name] = parsed
    problems += [
        f"{shown}: {key} is missing; it must be {each.kind}"
        for key, each in _KEYS.items()
        if each.is_required and key not in row
    ]
    if len(problems) > before:
        return None
    try:
        return TableDeclaration(**given)
    except OptionError as error:
        problems.append(f"{shown}: {error}")
        return None


def _parsed(key: str, value: Any) -> Any:
    """The value of a key; None if it is of a wrong type."""
    kind = _KEYS[key].kind
    if key == "data_loss":
        return _LOSS.get(value) if isinstance(value, str) else None
    if kind == _TEXTS:
        values = [value] if isinstance(value, str) else value
        is_valid = isinstance(values, list) and all(isinstance(each, str) for each in values)
        return tuple(values) if is_valid else None
    if kind == _TABLE:
        return value if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()) else None
    if key == "interval_s":
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    wanted = int if key == "max_records" else str
    return value if type(value) is wanted else None


def _meant(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
