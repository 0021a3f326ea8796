"""What the columns of Parquet files are, and how values become what a column holds. Pure; Arrow is not needed here.

A column has one type in every file of a directory, whatever values come: readers take the schema of one file for all of
them, and fail, or turn values into others, where a second file has another. So types are declared, never found out from
values. A column whose values are not alike is ``text`` or ``json``, which hold them all.

| type | holds | in Parquet |
| --- | --- | --- |
| ``text`` | text as it is, everything else as JSON | string |
| ``json`` | every value as JSON | string |
| ``binary`` | bytes, and text as UTF-8 | binary |
| ``int`` | whole numbers of 64 bits | int64 |
| ``float`` | numbers; fractions are rounded to 64 bits, whole numbers must have that many | double |
| ``bool`` | true and false | boolean |
| ``timestamp`` | microseconds since the epoch, or ISO 8601 as text (without a zone: UTC) | timestamp, us, UTC |

Every column may be null.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from broker_adapter.sinks.batch import Value
from broker_adapter.sinks.json_form import encode_value


class ColumnType(enum.StrEnum):
    """What a column holds."""

    TEXT = "text"
    JSON = "json"
    BINARY = "binary"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TIMESTAMP = "timestamp"


KNOWN_COLUMNS: Final[Mapping[str, ColumnType]] = {
    "headers": ColumnType.JSON,
    "key": ColumnType.BINARY,
    "offset": ColumnType.INT,
    "payload": ColumnType.BINARY,
    "qos": ColumnType.INT,
    "retain": ColumnType.BOOL,
    "timestamp": ColumnType.TIMESTAMP,
}
"""Types of columns that bridges call so; a declaration wins over it, and all others are text."""

_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def type_of(column: str, declared: Mapping[str, str]) -> ColumnType:
    """What a column is."""
    return ColumnType(declared.get(column, KNOWN_COLUMNS.get(column, ColumnType.TEXT)))


def converter(column_type: ColumnType) -> Callable[[Value], Any]:
    """What makes of a value that is not null what a column of the type holds.

    It raises `ValueError` for one that the type does not hold; the words go behind "column x".
    """
    return _CONVERTERS[column_type]


def _to_text(value: Value) -> str:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass  # as JSON has it
    return encode_value(value).decode()


def _to_json(value: Value) -> str:
    return encode_value(value).decode()


def _to_binary(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _whole(value).encode()
    raise _no_such(value, "binary, which holds bytes and text")


def _to_int(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _no_such(value, "int, which holds whole numbers")
    if not _MIN_INT <= value <= _MAX_INT:
        raise ValueError(f"is int, which has 64 bits; the value has {value.bit_length()}")
    return value


def _to_float(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _no_such(value, "float, which holds numbers")
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError(f"is float, which cannot hold a number of {int(value).bit_length()} bits") from error
    if isinstance(value, int) and found != value:
        raise ValueError("is float, which would change the digits of this whole number; declare int or text")
    if isinstance(value, Decimal) and not math.isfinite(found):
        raise ValueError("is float, which holds no number as large as this one; declare text")
    return found


def _to_bool(value: Value) -> bool:
    if not isinstance(value, bool):
        raise _no_such(value, "bool, which holds true and false")
    return value


def _to_timestamp(value: Value) -> int:
    if not isinstance(value, str):
        if isinstance(value, int) and not isinstance(value, bool):
            return _to_int(value)
        raise _no_such(value, "timestamp, which holds microseconds since the epoch and ISO 8601")
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError("is timestamp, which holds microseconds since the epoch and ISO 8601 text") from error
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MICROSECOND


def _whole(text: str) -> str:
    """A text that has an encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has a text that cannot be written: {error.reason}") from None
    return text


def _no_such(value: Value, held: str) -> ValueError:
    # The value itself may be long, or nobody's business.
    return ValueError(f"is {held}; the value is of type {type(value).__name__}")


_CONVERTERS: Final[Mapping[ColumnType, Callable[[Value], Any]]] = {
    ColumnType.TEXT: _to_text,
    ColumnType.JSON: _to_json,
    ColumnType.BINARY: _to_binary,
    ColumnType.INT: _to_int,
    ColumnType.FLOAT: _to_float,
    ColumnType.BOOL: _to_bool,
    ColumnType.TIMESTAMP: _to_timestamp,
}
