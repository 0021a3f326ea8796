r"""Values of a result for output: cells of a table, fields of CSV, JSON. Pure.

Bytes are text if they are valid UTF-8. In JSON other bytes become base64, under the name with the suffix `_base64`, as
in `journal read --json`; elsewhere each invalid byte is written `\xff`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import msgspec

NULL = "NULL"


def table_cell(value: object) -> str:
    """One line, without control characters for a terminal."""
    return "".join(
        character if character.isprintable() else _escaped(character)
        for character in (NULL if value is None else text_of(value))
    )


def csv_field(value: object) -> str:
    """The text unchanged, with its line breaks; empty for null."""
    return "" if value is None else text_of(value)


def text_of(value: object) -> str:
    """The value as text; structured values as JSON."""
    match value:
        case str():
            return value
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case list() | Mapping():
            return msgspec.json.encode(_plain(value)).decode()
        case _:
            return str(value)


def json_lines(names: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[bytes]:
    """One JSON object per row."""
    names = list(names)
    for row in rows:
        yield msgspec.json.encode(_members(zip(names, row, strict=True)))


def _members(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        plain = _plain(value)
        members[f"{name}_base64" if isinstance(plain, bytes) else name] = plain
    return members


def _plain(value: object) -> object:
    """A value that msgspec encodes in the intended form; bytes only if they are not text."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case Mapping():
            return _members((str(name), each) for name, each in value.items())
        case list():
            return [_element(each) for each in value]
        case Decimal():
            return msgspec.Raw(str(value).encode()) if value.is_finite() else str(value)
        case datetime() | date() | time():
            return text_of(value)
        case timedelta():
            return value.total_seconds()
        case _:
            return value


def _element(value: object) -> object:
    """An element of an array. It has no name for the suffix of base64, so base64 becomes an object."""
    if isinstance(value, tuple):  # an entry of a map, whose keys may be of any type
        return [_element(each) for each in value]
    plain = _plain(value)
    return {"base64": b64encode(plain).decode()} if isinstance(plain, bytes) else plain


def _escaped(character: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character) or character.encode("unicode_escape").decode()
