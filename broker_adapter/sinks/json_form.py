"""Rows and values as JSON, the same in every sink that writes it. Pure.

Values that JSON does not have are encoded as follows:

- bytes: a text if they are valid UTF-8, else ``{"base64": "..."}``;
- NaN and the infinities: ``null``.

Numbers keep the digits with which they were sent.

A text with half a surrogate pair cannot be encoded: Unicode encodings do not allow it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from broker_adapter.sinks.batch import Row, Rows, Value
from broker_adapter.sinks.errors import Refusal

_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None)})

_BYTES: Final = (bytes, bytearray, memoryview)
_UNWRITABLE: Final = (UnicodeEncodeError, TypeError, OverflowError, RecursionError)

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def encode_value(value: Value) -> bytes:
    """Encode one value.

    Raises:
        ValueError: It cannot be encoded; the message says why.
    """
    try:
        return _encode(value if value.__class__ in _AS_IT_IS else _plain(value))
    except _UNWRITABLE as error:
        raise _unwritable(error) from None


def encode_row(row: Row) -> bytes:
    """Encode one row as an object, in one line.

    Raises:
        ValueError: See `encode_value`.
    """
    try:
        return _encode({name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in row.items()})
    except _UNWRITABLE as error:
        raise _unwritable(error) from None


def encode_rows(rows: Iterable[Row]) -> tuple[list[bytes], tuple[Refusal, ...]]:
    """Encode all rows that can be encoded, and return the others with the reason for each."""
    if isinstance(rows, Rows):
        try:
            return [_encode(row) for row in Rows(rows.names, list(map(_plain_column, rows.columns)))], ()
        except (ValueError, *_UNWRITABLE):
            # Find out which of them cannot be encoded.
            pass
    encoded, refusals = [], []
    for index, row in enumerate(rows):
        try:
            encoded.append(encode_row(row))
        except ValueError as error:
            refusals.append(Refusal(index, str(error)))
    return encoded, tuple(refusals)


def _unwritable(error: Exception) -> ValueError:
    # The message of Python's own error would contain the whole text.
    if isinstance(error, UnicodeEncodeError):
        return ValueError(f"a text cannot be written as JSON: {error.reason}")
    if isinstance(error, RecursionError):
        return ValueError("a value cannot be written as JSON: it is nested too deeply")
    return ValueError(f"a value cannot be written as JSON: {error}")


def _plain(value: Any) -> Any:
    # The usual classes first: checking whether a value is a mapping costs as much as everything else.
    kind = value.__class__
    if kind is bytes:
        return _text(value)
    if isinstance(value, _BYTES):
        return _text(bytes(value))
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    if kind is dict or isinstance(value, Mapping):
        return {name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [each if each.__class__ in _AS_IT_IS else _plain(each) for each in value]
    return value


def _plain_column(values: Sequence[Value]) -> Sequence[Any]:
    if _AS_IT_IS.issuperset(map(type, values)):
        return values
    return [value if value.__class__ in _AS_IT_IS else _plain(value) for value in values]


def _text(octets: bytes) -> Any:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode("ascii")}
