"""From a record to a row: which part of a message becomes which column. Pure.

A projection names the source of each column:

| source | value |
| --- | --- |
| ``topic`` | the topic |
| ``topic[0]``, ``topic[-1]`` | one level of the topic; null if there is no such level |
| ``client``, ``qos``, ``retain`` | of the publisher; null if another writer stored the record |
| ``offset`` | the record's offset in the queue |
| ``timestamp`` | when it was published, microseconds since the epoch |
| ``time`` | the same as text, ISO 8601 in UTC |
| ``payload`` | its bytes |
| ``text`` | the payload as text |
| ``json`` | the payload as JSON |
| ``$.a.b[0]`` | the value at this path of a JSON payload |
| ``header:NAME`` | a header as text, such as ``content-type``, or its bytes if they are not UTF-8; null without it |
| ``user:NAME`` | a user property; null without it |
| ``headers`` | all headers, except the publisher's, as an object |
| ``key`` | the record's key, bytes |
| ``=TEXT`` | the fixed text TEXT |

A message whose payload lacks the value of a column makes no row (`ProjectionError`), unless the source has a default
behind `` ?? ``, in JSON: ``$.value ?? null``, ``topic[5] ?? "none"``. The default also replaces other missing parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Final

import attrs
import msgspec

from broker_adapter.message_headers import CLIENT, QOS, RETAIN, USER_PROPERTY
from broker_adapter.sinks.batch import Row, Rows, Value
from shards.format.columns import Headers
from shards.format.record import StoredRecord

DEFAULT_FIELDS: Final[Mapping[str, str]] = {
    "topic": "topic",
    "client": "client",
    "qos": "qos",
    "timestamp": "timestamp",
    "payload": "payload",
    "offset": "offset",
    "headers": "headers",
}
"""The columns of a bridge that names no fields."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,9})\]|\[\"([^\"\\]*)\"\]")
_LEVEL: Final = re.compile(r"topic\[(-?\d{1,4})\]")
_OR: Final = " ?? "
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_MISSING: Final = object()


_EXACT_CHARACTERS: Final = 17
"""A decimal with fewer characters, its point included, has at most 15 digits, which a float represents exactly."""


def _number(digits: str) -> float | Decimal:
    """Decode a JSON number that is not an integer, without changing its digits."""
    if len(digits) < _EXACT_CHARACTERS and digits[-1] != "0" and "e" not in digits and "E" not in digits:
        return float(digits)
    value = float(digits)
    return value if repr(value) == digits else Decimal(digits)


_decode_json: Final = msgspec.json.Decoder(float_hook=_number).decode

Extract = Callable[["_Message"], Value]


@attrs.frozen(slots=True)
class _Source:
    """Where the values of a column come from.

    Attributes:
        of_one: The value of a message.
        of_all: The values of many records, with less work for each; None if there is no such way.
    """

    of_one: Extract
    of_all: Callable[[Sequence[StoredRecord]], list[Value]] | None = None


class ProjectionError(ValueError):
    """A message lacks what the projection needs, so it makes no row, however often it is tried."""


class Projection:
    """Makes rows from records.

    Args:
        fields: Source by column, in order; empty for `DEFAULT_FIELDS`.

    Raises:
        ValueError: A column or source is not valid; the text continues a message that begins with the setting.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        chosen = fields or DEFAULT_FIELDS
        for column in chosen:
            if _COLUMN.fullmatch(column) is None:
                raise ValueError(f"has a column {column!r}, which must consist of letters, digits and underscores")
        self._sources = tuple((column, _source_of(source)) for column, source in chosen.items())
        self.columns = tuple(chosen)

    def rows(self, records: Sequence[StoredRecord]) -> Rows:
        """The rows of records, as by `row`, made column by column.

        Raises:
            ProjectionError: The payload of one of them lacks what a column needs.
        """
        messages: list[_Message] = []
        columns: list[list[Value]] = []
        for _, source in self._sources:
            if source.of_all is not None:
                columns.append(source.of_all(records))
            else:
                messages = messages or list(map(_Message, records))
                columns.append(list(map(source.of_one, messages)))
        return Rows(self.columns, columns)

    def row(self, record: StoredRecord) -> Row:
        """The row of a record.

        Raises:
            ProjectionError: The payload lacks what a column needs.
        """
        message = _Message(record)
        return {column: source.of_one(message) for column, source in self._sources}

    def row_with_problem(self, record: StoredRecord) -> tuple[Row, str]:
        """The row of a record, with null where the payload lacks what a column needs, and the first such problem.

        The problem is empty if there is none.
        """
        message = _Message(record)
        row: dict[str, Value] = {}
        problem = ""
        for column, source in self._sources:
            try:
                row[column] = source.of_one(message)
            except ProjectionError as error:
                row[column] = None
                problem = problem or str(error)
        return row, problem


class _Message:
    """A record with its payload decoded as JSON, once."""

    __slots__ = ("_json", "record")

    def __init__(self, record: StoredRecord) -> None:
        self.record = record
        self._json: object = _MISSING

    @property
    def json(self) -> object:
        if self._json is _MISSING:
            try:
                self._json = _decode_json(self.record.value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProjectionError(f"the payload is not JSON: {error}") from error
            except RecursionError:
                raise ProjectionError("the payload is JSON that is nested too deeply") from None
            except (ArithmeticError, ValueError) as error:
                raise ProjectionError("the payload is JSON with a number that is too large") from error
        return self._json

    @property
    def text(self) -> str:
        try:
            return self.record.value.decode()
        except UnicodeDecodeError as error:
            raise ProjectionError(f"the payload is not UTF-8 text: {error}") from error


def _header(name: str, headers: Headers) -> str | None:
    for found, value in headers:
        if found == name:
            return value.decode(errors="replace")
    return None


def _header_value(name: str, headers: Headers) -> Value:
    for found, value in headers:
        if found == name:
            return _text_or_bytes(value)
    return None


def _text_or_bytes(value: bytes) -> Value:
    """Text where the bytes are UTF-8: those of ``correlation-data`` may be anything."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _user_property(name: str, headers: Headers) -> str | None:
    start = name.encode() + b"\0"
    for found, value in headers:
        if found == USER_PROPERTY and value.startswith(start):
            return value[len(start) :].decode(errors="replace")
    return None


def _qos(headers: Headers) -> Value:
    found = _header(QOS, headers)
    # Any client of the store may have written a header of this name, so other values are ignored.
    return int(found) if found in ("0", "1", "2") else None


def _retain(headers: Headers) -> Value:
    return None if _header(QOS, headers) is None else _header(RETAIN, headers) is not None


def _time(message: _Message) -> Value:
    timestamp_us = message.record.timestamp_us
    try:
        time = _EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        raise ProjectionError(
            f"the time {timestamp_us} microseconds since 1970 is not in a year from 1 to 9999, as ISO 8601 requires"
        ) from None
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _headers(headers: Headers) -> Value:
    found: dict[str, Value] = {}
    for name, value in headers:
        if name == USER_PROPERTY:
            key, _, text = value.decode(errors="replace").partition("\0")
            found[key] = text
        elif name not in (CLIENT, QOS, RETAIN):
            found[name] = _text_or_bytes(value)
    return found


def _of_headers(extract: Callable[[Headers], Value]) -> _Source:
    """The source whose values depend on the headers alone.

    Decoded records with equal headers one after the other have the same object, for which the value is made once.
    """

    def of_all(records: Sequence[StoredRecord]) -> list[Value]:
        values: list[Value] = []
        before: Headers | None = None
        value: Value = None
        for record in records:
            if record.headers is not before:
                before = record.headers
                value = extract(before)
            values.append(value)
        return values

    return _Source(lambda message: extract(message.record.headers), of_all)


def _field(name: str) -> _Source:
    """The source whose values are a field of the record."""
    of_record = attrgetter(name)
    return _Source(lambda message: of_record(message.record), lambda records: list(map(of_record, records)))


_PLAIN: Final[Mapping[str, _Source]] = {
    "topic": _field("topic"),
    "client": _of_headers(partial(_header, CLIENT)),
    "qos": _of_headers(_qos),
    "retain": _of_headers(_retain),
    "offset": _field("offset"),
    "timestamp": _field("timestamp_us"),
    "time": _Source(_time),
    "payload": _field("value"),
    "text": _Source(lambda message: message.text),
    "json": _Source(lambda message: message.json),  # type: ignore[arg-type, return-value]
    "headers": _of_headers(_headers),
    "key": _field("key"),
}

SOURCES: Final = (*_PLAIN, "topic[N]", "$.path", "header:NAME", "user:NAME", "SOURCE ?? JSON", "=TEXT")
"""The forms of a source, for error messages."""


def _source_of(source: str) -> _Source:
    if source in _PLAIN:
        return _PLAIN[source]
    if source.startswith("="):
        text = source[1:]
        return _Source(lambda _message: text)
    if (split := _split_default(source)) is not None:
        return _Source(_or(_source_of(split[0]).of_one, split[1], is_path=source.startswith("$")))
    if source.startswith("$"):
        return _Source(_path(source))
    if (level := _LEVEL.fullmatch(source)) is not None:
        return _Source(_topic_level(int(level[1])))
    if _OR in source:
        raise ValueError(f'has a source {source!r}, whose default is not JSON; write it like topic[2] ?? "none"')
    kind, colon, name = source.partition(":")
    if colon and name and kind == "header":
        return _of_headers(partial(_header_value, name))
    if colon and name and kind == "user":
        return _of_headers(partial(_user_property, name))
    raise ValueError(f"has a source {source!r}, which is not one of {', '.join(SOURCES)}")


def _split_default(source: str) -> tuple[str, Value] | None:
    """A source and its default; None if it has no default in JSON."""
    at = source.find(_OR)
    while at >= 0:
        try:
            return source[:at].rstrip(), _decode_json(source[at + len(_OR) :])
        except (msgspec.DecodeError, ArithmeticError, RecursionError, ValueError):
            # This `` ?? `` may be part of a name in a path: try the next one.
            at = source.find(_OR, at + 1)
    return None


def _or(extract: Extract, default: Value, *, is_path: bool) -> Extract:
    def with_default(message: _Message) -> Value:
        try:
            found = extract(message)
        except ProjectionError:
            return default
        # A null in the payload is a value, and stays null.
        return default if found is None and not is_path else found

    return with_default


def _topic_level(index: int) -> Extract:
    def level(message: _Message) -> Value:
        levels = message.record.topic.split("/")
        return levels[index] if -len(levels) <= index < len(levels) else None

    return level


def _path(source: str) -> Extract:
    steps: list[str | int] = []
    position = 1
    while position < len(source):
        step = _STEP.match(source, position)
        if step is None:
            raise ValueError(
                f"has a JSON path {source!r}, which has an error from character {position + 1} on; write it like "
                '$.sensor.values[0] or $["odd name"], with a default in JSON as $.value ?? null'
            )
        steps.append(int(step[2]) if step[2] is not None else step[1] if step[1] is not None else step[3])
        position = step.end()

    missing = f"the payload has nothing at {source}; to allow that, give a default as in {source} ?? null"

    def follow(message: _Message) -> Value:
        found = message.json
        for step in steps:
            if isinstance(step, int):
                if not isinstance(found, list) or step >= len(found):
                    raise ProjectionError(missing)
                found = found[step]
            else:
                if not isinstance(found, dict) or step not in found:
                    raise ProjectionError(missing)
                found = found[step]
        return found  # type: ignore[return-value]

    return follow
