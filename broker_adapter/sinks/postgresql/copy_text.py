r"""Rows as the text format of PostgreSQL's COPY: a line a row, fields apart by tabs, ``\N`` for NULL. Pure.

A value is written so that the column's type reads it; `column_writer` has the rules, ``docs/sinks.md`` the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from broker_adapter.sinks.json_form import encode_value
from broker_adapter.sinks.rows import Row, Value

Writer = Callable[[Value], str]
"""A value as a field of a line; raises `ValueError` for one that cannot be written, with words after "column x: "."""

_NULL: Final = "\\N"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class UnwritableRowError(ValueError):
    """A row that cannot even be written down.

    Attributes:
        index: Its place among the rows.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def column_writer(type_name: str) -> Writer:
    """How values are written for a column of a type, by PostgreSQL's own name of it (``int8``, ``bytea``)."""
    return _WRITERS.get(type_name, _write_plain)


def copy_block(rows: Sequence[Row], columns: Sequence[tuple[str, Writer]]) -> bytes:
    """Rows as COPY takes them.

    Raises:
        UnwritableRowError: See there.
    """
    try:
        fields = [[write(row[name]) for row in rows] for name, write in columns]
        return ("\n".join(map("\t".join, zip(*fields, strict=True))) + "\n").encode()
    except ValueError:
        _find_unwritable(rows, columns)
        raise


def _find_unwritable(rows: Sequence[Row], columns: Sequence[tuple[str, Writer]]) -> None:
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
            f"bytes that are no UTF-8 (byte {error.start} is 0x{value[error.start]:02x}) need a column of type bytea"
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
    # Bytes are a document already, as payloads are.
    return _write_plain(value) if isinstance(value, bytes | None) else _json(value)


def _write_time(value: Value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return (_EPOCH + timedelta(microseconds=value)).isoformat()
        except OverflowError:
            raise ValueError(f"{value} microseconds since 1970 are in no year from 1 to 9999") from None
    return _write_plain(value)


_WRITERS: Final[dict[str, Writer]] = {
    "bytea": _write_bytes,
    "json": _write_json,
    "jsonb": _write_json,
    "timestamp": _write_time,
    "timestamptz": _write_time,
}
