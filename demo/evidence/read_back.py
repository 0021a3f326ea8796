"""Reads every topic's shard from its start, at the running server."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs

from broker_adapter import StorageAdapter
from demo.evidence.check import Found, Range
from demo.evidence.ledger import digest_of
from demo.payload import metric_of, sample_of
from demo.telemetry import SOURCES
from shards.format.record import Gap
from shards.model import SegmentKind, ShardInfo
from shards.position import Start

ModeHistory = Sequence[tuple[str, int]]
"""Modes of a shard, and the offsets from which they apply."""


@attrs.define(slots=True)
class ReadBack:
    """The content of one shard.

    Attributes:
        found: Its records, in order.
        gaps: Gaps that a reader gets.
        metrics: Offset of each record, and the value of its source's metric.
        size_bytes: Size of all payloads.
        seconds: Time that reading took.
    """

    found: list[Found] = attrs.Factory(list)
    gaps: list[Range] = attrs.Factory(list)
    metrics: list[tuple[int, float | None]] = attrs.Factory(list)
    size_bytes: int = 0
    seconds: float = 0.0


async def read_shard(adapter: StorageAdapter, info: ShardInfo) -> ReadBack:
    """Read one shard up to the end that was found before."""
    metric = next((source.metric for source in SOURCES if source.topic == info.name.rsplit("/", 1)[-1]), "")
    read = ReadBack()
    begun_at = time.perf_counter()
    position: Start | int = Start.earliest()
    while not isinstance(position, int) or position < info.next_offset:
        result = await adapter.read(info.name, position)
        for record in result.records:
            if isinstance(record, Gap):
                if read.gaps and read.gaps[-1].next_offset == record.first_offset:
                    read.gaps[-1] = Range(read.gaps[-1].first_offset, record.next_offset)
                else:
                    read.gaps.append(Range(record.first_offset, record.next_offset))
                continue
            read.found.append(Found(record.offset, sample_of(record.value).number, digest_of(record.value)))
            read.metrics.append((record.offset, metric_of(record.value, metric)))
            read.size_bytes += len(record.value)
        if result.next_offset == position:
            break
        position = result.next_offset
    read.seconds = time.perf_counter() - begun_at
    return read


def mode_history(info: ShardInfo) -> list[tuple[str, int]]:
    """The modes of a shard and the offsets from which they applied, as shown by its segments."""
    history: list[tuple[str, int]] = []
    for segment in info.segments:
        mode = "memory" if segment.kind is SegmentKind.MEMORY else "file"
        if segment.next_offset > segment.base_offset and (not history or history[-1][0] != mode):
            history.append((mode, segment.base_offset))
    return history


def lies_in_file(offset: int, modes: ModeHistory) -> bool:
    """Whether a record was written in file mode."""
    mode = ""
    for each, first_offset in modes:
        if first_offset <= offset:
            mode = each
    return mode == "file"
