"""The settings of a bridge, a ``[[bridge]]`` table in the broker's file, and the `BridgeSpec` made of them.

The settings of ``[bridge.sink]`` are declared by the kind of sink that its ``type`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final

import attrs
from attrs import field

from broker_adapter.bridge.breaker import BreakerSettings
from broker_adapter.bridge.projection import Projection
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue.names import check_name
from broker_adapter.cache_queue.settings import Overflow, QueueMode, QueueSettings
from broker_adapter.errors import InvalidNameError
from broker_adapter.sinks import Sink, SinkContext
from broker_adapter.sinks.kinds import find_kind
from journal.settings.file import Schema
from journal.settings.values import GIB, KIB, MIB, TIB, ConfigurationError, Kind, Size, bytes_within, parse_text, within
from shards.topics.topic_filters import validate_filter

_MILLISECONDS: Final = 1000


def _parse_name(value: object) -> str:
    try:
        return check_name(parse_text(value))
    except InvalidNameError as error:
        raise ValueError("is not a name of a bridge") from error


def _parse_filters(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("names none")
    try:
        return tuple(validate_filter(parse_text(each)) for each in values)
    except InvalidNameError as error:
        raise ValueError("is not a topic filter") from error


def _parse_fields(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise TypeError("is not a table of texts")
    Projection(value)
    return value


def _parse_sink(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("is not a table")
    if not isinstance(value.get("type"), str):
        raise TypeError("has no type")
    return value


Name = Annotated[str, Kind(_parse_name, '1 to 64 letters, digits, ".", "_" and "-"')]
Filters = Annotated[tuple[str, ...], Kind(_parse_filters, "a list of topic filters")]
Fields = Annotated[
    Mapping[str, str],
    Kind(_parse_fields, "a table that names the source of each column, or {} for the usual ones"),
]
SinkTable = Annotated[Mapping[str, object], Kind(_parse_sink, "a table with the type of the sink and its settings")]


@attrs.frozen
class BridgeTable:
    """One ``[[bridge]]`` table: which messages it takes, its queue, and its sink."""

    name: Name
    topics: Filters
    sink: SinkTable = field(repr=False)
    fields: Fields = field(factory=dict)
    mode: QueueMode = QueueMode.FILE
    memory_bytes: Size = field(default=64 * MIB, metadata=bytes_within(1 * MIB, 64 * GIB))
    max_bytes: Size = field(default=1 * GIB, metadata=bytes_within(0, 1024 * TIB))
    max_records: int = field(default=0, metadata=within("records", 0, 1 << 48))
    max_age_s: int = field(default=0, metadata=within("seconds", 0, 3_155_760_000))
    overflow: Overflow = Overflow.REJECT
    batch_records: int = field(default=500, metadata=within("records", 1, 1_000_000))
    batch_bytes: Size = field(default=1 * MIB, metadata=bytes_within(1 * KIB, 256 * MIB))
    batch_wait_ms: int = field(default=100, metadata=within("milliseconds", 0, 3_600_000))
    window: int = field(default=4, metadata=within("batches", 1, 256))
    max_rate: int = field(default=0, metadata=within("records a second", 0, 1_000_000_000))
    max_refusals: int = field(default=3, metadata=within("refusals", 1, 100))
    max_outages: int = field(default=0, metadata=within("outages", 0, 10_000))
    failures_to_open: int = field(default=3, metadata=within("failures", 1, 1000))
    min_backoff_ms: int = field(default=200, metadata=within("milliseconds", 1, 3_600_000))
    max_backoff_s: int = field(default=30, metadata=within("seconds", 1, 86_400))
    drive: bool = True
    health_interval_s: int = field(default=10, metadata=within("seconds", 1, 86_400))

    @property
    def queue(self) -> QueueSettings:
        """The settings of its queue."""
        return QueueSettings(
            mode=self.mode,
            max_bytes=self.max_bytes,
            max_records=self.max_records,
            max_age_s=self.max_age_s,
            memory_bytes=self.memory_bytes,
            overflow=self.overflow,
        )


def bridge_of(table: BridgeTable, *, is_driven: bool = True) -> BridgeSpec:
    """The bridge that a table describes.

    Args:
        is_driven: Whether this program may open the sink; otherwise the settings of the sink are not checked.

    Raises:
        ConfigurationError: There is no such kind of sink, or its settings are wrong: a line for each problem.
    """
    return BridgeSpec(
        name=table.name,
        topics=table.topics,
        open_sink=opener_of(table.sink, f"[[bridge]] {table.name}") if is_driven else _not_opened,
        queue=table.queue,
        projection=Projection(table.fields),
        batch_records=table.batch_records,
        batch_bytes=table.batch_bytes,
        batch_wait_s=table.batch_wait_ms / _MILLISECONDS,
        window=table.window,
        max_rate=table.max_rate,
        max_refusals=table.max_refusals,
        max_outages=table.max_outages,
        drive=table.drive and is_driven,
        health_interval_s=table.health_interval_s,
        breaker=BreakerSettings(
            failures_to_open=table.failures_to_open,
            min_backoff_s=table.min_backoff_ms / _MILLISECONDS,
            max_backoff_s=table.max_backoff_s,
        ),
    )


def _not_opened(context: SinkContext) -> AbstractAsyncContextManager[Sink]:
    raise AssertionError(f"the sink of the bridge {context.bridge} is opened, although this program does not drive it")


def opener_of(sink: Mapping[str, object], source: str) -> Callable[[SinkContext], AbstractAsyncContextManager[Sink]]:
    """The function that opens the sink of a table.

    Args:
        sink: The table ``[bridge.sink]``.
        source: Where it is from, for messages.

    Raises:
        ConfigurationError: See `bridge_of`.
    """
    try:
        kind = find_kind(str(sink["type"]))
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    holder: type[Any] = attrs.make_class("Holder", {"sink": attrs.field(type=kind.settings)}, frozen=True)
    schema: Schema[Any] = Schema(holder, check=lambda held: kind.check(held.sink))
    values = {name: value for name, value in sink.items() if name != "type"}
    settings = schema.settle({"sink": values}, source).sink
    return lambda context: kind.open(settings, context)


def problems_of(bridges: Sequence[BridgeTable]) -> Iterable[str]:
    """Problems of bridges whose tables were parsed without an error, one text for each problem."""
    names = [table.name for table in bridges]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"[[bridge]] {name} is there {names.count(name)} times; give each a name of its own"
    for table in bridges:
        if table.overflow is not Overflow.REJECT and not (table.max_bytes or table.max_records):
            yield f"[[bridge]] {table.name}: overflow = {table.overflow.value!r} needs max_bytes or max_records"
        try:
            opener_of(table.sink, f"[[bridge]] {table.name}")
        except ConfigurationError as error:
            yield from str(error).splitlines()
