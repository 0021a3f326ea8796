"""Rows and values as JSON, the same in every sink that writes it. Pure.

What JSON does not have is written so:

- bytes: a text if they are one in UTF-8, else ``{"base64": "..."}``;
- NaN and the infinities: ``null``.

A text with half a surrogate pair cannot be written at all: no encoding of Unicode has it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker_adapter.sinks.errors import Refusal
from broker_adapter.sinks.rows import Row, Value

_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None)})

_BYTES: Final = (bytes, bytearray, memoryview)
_UNWRITABLE: Final = (UnicodeEncodeError, TypeError, OverflowError, RecursionError)

_encode: Final = msgspec.json.Encoder().encode


def encode_value(value: Value) -> bytes:
    """One value.

    Raises:
        ValueError: It cannot be written; the message says why.
    """
    return _encoded(value if value.__class__ in _AS_IT_IS else _plain(value))


def encode_row(row: Row) -> bytes:
    """One row as an object, on one line.

    Raises:
        ValueError: See `encode_value`.
    """
    return _encoded({name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in row.items()})


def encode_rows(rows: Iterable[Row]) -> tuple[list[bytes], tuple[Refusal, ...]]:
    """All rows that can be written, and the others with the reason for each."""
    rows = list(rows)
    try:
        # All at once is much cheaper than one by one, and hardly ever is there one that cannot be written.
        return [
            _encode({name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in row.items()})
            for row in rows
        ], ()
    except _UNWRITABLE:
        pass  # each is asked below
    encoded, refusals = [], []
    for index, row in enumerate(rows):
        try:
            encoded.append(encode_row(row))
        except ValueError as error:
            refusals.append(Refusal(index, str(error)))
    return encoded, tuple(refusals)


def _encoded(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        # As it is, the message would repeat the whole text.
        raise ValueError(f"a text cannot be written as JSON: {error.reason}") from None
    except _UNWRITABLE as error:
        raise ValueError(f"a value cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    # The usual classes first: asking whether a value is a mapping costs as much as all the rest.
    kind = value.__class__
    if kind is bytes:
        return _text(value)
    if kind is dict:
        return {name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in value.items()}
    if isinstance(value, _BYTES):
        return _text(bytes(value))
    if isinstance(value, Mapping):
        return {name: each if each.__class__ in _AS_IT_IS else _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [each if each.__class__ in _AS_IT_IS else _plain(each) for each in value]
    return value


def _text(octets: bytes) -> Any:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode("ascii")}
