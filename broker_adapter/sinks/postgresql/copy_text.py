r"""Rows in the text format of PostgreSQL's COPY: one line per row, fields separated by tabs, ``\N`` for NULL. Pure.

A value is written so that the column's type can parse it; `column_writer` has the rules, ``docs/sinks.md`` the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Final

from broker_adapter.sinks.batch import Row, Value, column_of
from broker_adapter.sinks.errors import UnwritableRowError
from broker_adapter.sinks.json_form import encode_value

Writer = Callable[[Value], str]
"""Writes a value as a field of a line; raises `ValueError` with the text after "column x: " if it cannot be written."""

_NULL: Final = "\\N"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = 1_000_000
_ESCAPED: Final = "\\\n\t\r"


def column_writer(type_name: str) -> Writer:
    """The writer of values for a column of a type, given by PostgreSQL's own name of it (``int8``, ``bytea``)."""
    return _WRITERS.get(type_name, _write_plain)


def copy_block(rows: Sequence[Row], columns: Sequence[tuple[str, Writer]]) -> bytes:
    """Encode rows for COPY.

    Raises:
        UnwritableRowError: A row cannot be encoded.
    """
    try:
        fields = [_write_column(column_of(rows, name), write) for name, write in columns]
        return ("\n".join(map("\t".join, zip(*fields, strict=True))) + "\n").encode()
    except ValueError:
        _raise_unwritable(rows, columns)
        raise


def _write_column(values: Sequence[Value], write: Writer) -> Iterable[str]:
    """Fields of a column; if all values have the same class, as usual, in few steps where that is possible."""
    classes = set(map(type, values))
    write_all = _WRITERS_OF_ALL.get((write, classes.pop())) if len(classes) == 1 else None
    return map(write, values) if write_all is None else write_all(values)


def _raise_unwritable(rows: Sequence[Row], columns: Sequence[tuple[str, Writer]]) -> None:
    for index, row in enumerate(rows):
        for name, write in columns:
            try:
                write(row[name]).encode()
            except UnicodeEncodeError as error:
                raise UnwritableRowError(index, f"column {name}: half a character, {error.reason}") from None
            except ValueError as error:
                raise UnwritableRowError(index, f"column {name}: {error}") from None


def _escape(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if "\n" in text:
        text = text.replace("\n", "\\n")
    if "\t" in text:
        text = text.replace("\t", "\\t")
    if "\r" in text:
        text = text.replace("\r", "\\r")
    return text


def _json(value: Value) -> str:
    return _escape(encode_value(value).decode())


def _decoded(value: bytes) -> str:
    try:
        return _escape(value.decode())
    except UnicodeDecodeError as error:
        raise ValueError(
            f"bytes that are not UTF-8 (byte {error.start} is 0x{value[error.start]:02x}) need a column of type bytea"
        ) from None


def _write_plain(value: Value) -> str:
    if isinstance(value, str):
        return _escape(value)
    if value is None:
        return _NULL
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return _json(value)


def _write_bytes(value: Value) -> str:
    if value is None:
        return _NULL
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        value = encode_value(value)
    return "\\\\x" + value.hex()


def _write_json(value: Value) -> str:
    # Bytes are a JSON document already, as payloads are.
    return _write_plain(value) if value is None or isinstance(value, bytes) else _json(value)


def _write_time(value: Value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            seconds, microseconds = divmod(value, _MICROSECONDS)
            return f"{_second(seconds)}.{microseconds:06}+00:00"
        except OverflowError:
            raise ValueError(f"{value} microseconds since 1970 are not in a year from 1 to 9999") from None
    return _write_plain(value)


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """A second since 1970 as text without the zone; cached, because records of a batch have few different ones."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def _escape_all(texts: Any) -> list[str]:
    joined = "".join(texts)
    return list(map(_escape, texts)) if any(each in joined for each in _ESCAPED) else texts


def _hex_of_all(values: Any) -> list[str]:
    return [f"\\\\x{value.hex()}" for value in values]


def _json_of_all(values: Any) -> Iterable[str]:
    if not any(values):
        return repeat("{}", len(values))
    return map(_json, values)


_WRITERS_OF_ALL: Final[dict[tuple[Writer, type], Callable[[Any], Iterable[str]]]] = {
    (_write_plain, str): _escape_all,
    (_write_plain, int): partial(map, repr),
    (_write_plain, float): partial(map, repr),
    (_write_bytes, bytes): _hex_of_all,
    (_write_json, dict): _json_of_all,
}

_WRITERS: Final[dict[str, Writer]] = {
    "bytea": _write_bytes,
    "json": _write_json,
    "jsonb": _write_json,
    "timestamp": _write_time,
    "timestamptz": _write_time,
}
