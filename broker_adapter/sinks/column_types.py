"""Types of columns of Parquet files and typed tables, and conversion of values to them. Pure; it needs no Arrow.

A column has the same type in every file of a directory, whatever the values are: readers use the schema of one file for
all, and fail, or convert values wrongly, if another file has a different one. So types are declared, never derived from
values. A column with values of several types can be ``text`` or ``json``, which accept all values.

| type | holds | in Parquet |
| --- | --- | --- |
| ``text`` | text unchanged, everything else as JSON | string |
| ``json`` | every value as JSON | string |
| ``binary`` | bytes, and text as UTF-8 | binary |
| ``int`` | integers of 64 bits | int64 |
| ``float`` | numbers; fractions are rounded to 64 bits, integers must be exact | double |
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
    """The type of a column."""

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
"""Types of columns that bridges fill by default; a declaration overrides them, and all other columns are text."""

_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def type_of(column: str, declared: Mapping[str, str]) -> ColumnType:
    """The type of a column."""
    return ColumnType(declared.get(column, KNOWN_COLUMNS.get(column, ColumnType.TEXT)))


def converter(column_type: ColumnType) -> Callable[[Value], Any]:
    """The function that converts a value that is not null to the type.

    It raises `ValueError` for a value that the type cannot represent; its text continues "column x".
    """
    return _CONVERTERS[column_type]


def _to_text(value: Value) -> str:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass  # converted as JSON below
    return encode_value(value).decode()


def _to_json(value: Value) -> str:
    return encode_value(value).decode()


def _to_binary(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _whole(value).encode()
    raise _no_such(value, "binary, which accepts bytes and text")


def _to_int(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _no_such(value, "int, which accepts integers")
    if not _MIN_INT <= value <= _MAX_INT:
        raise ValueError(
            f"is int, from {_MIN_INT} to {_MAX_INT}; the value is {'below' if value < 0 else 'above'} that"
        )
    return value


def _to_float(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _no_such(value, "float, which accepts numbers")
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError(f"is float, which cannot hold a number of {int(value).bit_length()} bits") from error
    if isinstance(value, int) and found != value:
        raise ValueError("is float, which would change the digits of this integer; declare int or text")
    if isinstance(value, Decimal) and not math.isfinite(found):
        raise ValueError("is float, which cannot hold a number as large as this one; declare text")
    return found


def _to_bool(value: Value) -> bool:
    if not isinstance(value, bool):
        raise _no_such(value, "bool, which accepts true and false")
    return value


def _to_timestamp(value: Value) -> int:
    if not isinstance(value, str):
        if isinstance(value, int) and not isinstance(value, bool):
            return _to_int(value)
        raise _no_such(value, "timestamp, which accepts microseconds since the epoch and ISO 8601")
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError("is timestamp, which accepts microseconds since the epoch and ISO 8601 text") from error
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MICROSECOND


def _whole(text: str) -> str:
    """Check that a text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has a text that cannot be written: {error.reason}") from None
    return text


def _no_such(value: Value, held: str) -> ValueError:
    # The value itself may be long, or confidential.
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
