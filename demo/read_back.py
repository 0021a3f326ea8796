"""From the running server to evidence: every shard read from its start, beside what the ledgers say of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import attrs
import msgspec

from broker_adapter import StorageAdapter
from demo.check import Found, Range, ShardEvidence
from demo.ledger import Acknowledged, Line, Published, Received, ReceivedGap, digest_of, read_ledger
from shards.model import Mode, ShardInfo
from shards.position import Start
from shards.record import Gap


class _Sample(msgspec.Struct, frozen=True):
    """The part of a payload that the checker needs; whatever was measured is ignored."""

    sequence: int


_SAMPLES = msgspec.json.Decoder(_Sample)


@attrs.define(slots=True)
class _Lines:
    """The ledger lines of one shard, whichever broker wrote them."""

    published: list[Published] = attrs.Factory(list)
    acknowledged: list[Acknowledged] = attrs.Factory(list)
    received: list[Received] = attrs.Factory(list)
    received_gaps: list[ReceivedGap] = attrs.Factory(list)

    def add(self, line: Line) -> None:
        match line:
            case Published():
                self.published.append(line)
            case Acknowledged():
                self.acknowledged.append(line)
            case Received():
                self.received.append(line)
            case ReceivedGap():
                self.received_gaps.append(line)


@attrs.define(slots=True)
class ReadBack:
    """What was read, and how long it took."""

    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


async def gather_evidence(
    adapter: StorageAdapter, topic_filter: str, ledgers: Iterable[Path], switched: Iterable[str], back_at_us: int
) -> tuple[list[ShardEvidence], ReadBack]:
    """Read all shards that match, and all ledgers.

    A shard that a ledger names and the server does not have is evidence too: it has lost everything.

    Args:
        adapter: The store.
        topic_filter: Which shards.
        ledgers: The brokers' ledgers.
        switched: Shards whose mode has changed on the way.
        back_at_us: See `ShardEvidence`.
    """
    by_shard: defaultdict[str, _Lines] = defaultdict(_Lines)
    for path in ledgers:
        for line in read_ledger(path):
            by_shard[line.shard].add(line)
    infos = {info.name: info for info in await adapter.list_shards(topic_filter)}
    total = ReadBack()
    evidence = []
    for name in sorted({*by_shard, *infos}):
        info, lines = infos.get(name), by_shard[name]
        begun_at = time.perf_counter()
        found, gaps = await _read_shard(adapter, info, total) if info else ([], [])
        total.seconds += time.perf_counter() - begun_at
        evidence.append(
            ShardEvidence(
                name=name,
                may_lose=name in switched or (info is not None and info.config.mode is Mode.MEMORY),
                start_offset=info.start_offset if info else 0,
                next_offset=info.next_offset if info else 0,
                published=lines.published,
                acknowledged=lines.acknowledged,
                found=found,
                gaps=gaps,
                received=lines.received,
                received_gaps=lines.received_gaps,
                back_at_us=back_at_us,
            )
        )
    return evidence, total


async def _read_shard(adapter: StorageAdapter, info: ShardInfo, total: ReadBack) -> tuple[list[Found], list[Range]]:
    found: list[Found] = []
    gaps: list[Range] = []
    position: Start | int = Start.earliest()
    while not isinstance(position, int) or position < info.next_offset:
        result = await adapter.read(info.name, position)
        for record in result.records:
            if isinstance(record, Gap):
                if gaps and gaps[-1].next_offset == record.first_offset:
                    gaps[-1] = Range(gaps[-1].first_offset, record.next_offset)
                else:
                    gaps.append(Range(record.first_offset, record.next_offset))
                continue
            found.append(Found(record.offset, digest_of(record.value), _SAMPLES.decode(record.value).sequence))
            total.records += 1
            total.size_bytes += len(record.value)
        if result.next_offset == position:
            break
        position = result.next_offset
    return found, gaps
