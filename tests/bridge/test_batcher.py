"""Batches follow one another without a hole or an overlap, however reads and batches cut the queue."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import cast

import trio
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.bridge.batcher import Batcher, Prepared
from broker_adapter.bridge.projection import Projection
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import QueueDrain, Waiting
from broker_adapter.cache_queue.drain import Hole
from broker_adapter.cache_queue.stored import Counts
from broker_adapter.sinks import Sink, SinkContext
from shards.format.record import StoredRecord

BATCH_BYTES = 1000


class Reads:
    """The way out of a queue, of which each read finds what it is told; at the end nothing more comes."""

    def __init__(self, reads: list[list[bool]]) -> None:
        self._reads = iter(reads)
        self.records: list[StoredRecord] = []
        self.end = 0

    async def read(self, offset: int, *, max_bytes: int, max_wait_s: float) -> Waiting:
        await trio.lowlevel.checkpoint()
        assert offset == self.end
        kept = next(self._reads, [])
        records = [StoredRecord(offset + at, 0, 0, b"x" * (at % 7)) for at, there in enumerate(kept) if there]
        self.records += records
        self.end = offset + len(kept)
        holes, at = [], offset
        for after in (*(record.offset for record in records), self.end):
            if after > at:
                holes.append(Hole(after, Counts(expired=after - at)))
            at = after + 1
        return Waiting(records, offset, self.end, holes)


def not_opened(_: SinkContext) -> AbstractAsyncContextManager[Sink]:
    raise AssertionError("a sink is opened")


async def batches_of(reads: Reads, sizes: list[int]) -> list[Prepared]:
    spec = BridgeSpec(
        name="b",
        topics=("#",),
        open_sink=not_opened,
        projection=Projection({"at": "offset"}),
        batch_records=10,
        batch_bytes=BATCH_BYTES,
        batch_wait_s=0.0001,
    )
    preparer = Batcher(cast(QueueDrain, reads), spec, 0)
    found: list[Prepared] = []
    while True:
        prepared = await preparer.next(sizes[len(found) % len(sizes)])
        if prepared is None:
            return found
        found.append(prepared)


@given(
    reads=st.lists(st.lists(st.sampled_from((True, True, True, False)), min_size=1, max_size=12), max_size=8),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_each_batch_ends_where_the_next_begins_and_covers_its_rows(reads: list[list[bool]], sizes: list[int]) -> None:
    queue = Reads(reads)
    prepared = trio.run(batches_of, queue, sizes)
    batches = [each.batch for each in prepared]
    assert [row["at"] for batch in batches for row in batch.rows] == [record.offset for record in queue.records]
    assert [batch.first_offset for batch in batches] == [0, *(batch.next_offset for batch in batches)][: len(batches)]
    assert (batches[-1].next_offset if batches else 0) == queue.end
    for each in prepared:
        # Whatever becomes of the batches behind it, what is confirmed with it is counted: neither more nor less.
        batch = each.batch
        assert each.skipped.expired == batch.next_offset - batch.first_offset - len(batch.rows)
    for batch in batches:
        # What a sink keeps as its position is the end of a batch: nothing of it may lie beyond.
        assert all(batch.first_offset <= offset < batch.next_offset for offset in batch.offsets)
