"""A shard that is driven through any sequence of steps beside a plain list of what its readers must see."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from hypothesis import strategies as st

from shards.format.batch import encode_values
from shards.model import Mode, SegmentKind, ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Mutations
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.shard import Published, Shard
from shards.segments.sparse_index import INTERVAL_BYTES
from shards.views.producer_records import save_changed
from shards.views.shard_records import load, safe_offset, save
from tests.shards.batches import NOW_US, stamped
from tests.simulation.file_system import SimulatedFileSystem

LOG = "/log"
SEALED = "/sealed"


@attrs.frozen
class Step:
    """``amount`` is what the action makes of it: a size, a count, a place."""

    action: str
    amount: int


ACTIONS = ("append", "append", "append", "big", "publish", "publish", "flush", "roll", "switch", "trim", "restart")
_any_steps = st.lists(st.builds(Step, st.sampled_from(ACTIONS), st.integers(0, 1000)), max_size=30)
_conversion_steps = st.lists(
    st.builds(Step, st.sampled_from((*ACTIONS, "flush", "roll", "roll", "convert", "convert")), st.integers(0, 1000)),
    max_size=30,
)
_LARGE = [Step("append", 5), *[Step("big", 3)] * 4, *[Step("publish", 2)] * 2, Step("flush", 0), Step("append", 6)]
steps = _any_steps | st.tuples(_any_steps, st.just(_LARGE), _any_steps).map(
    lambda parts: [*parts[0], *parts[1], *parts[2]]
)
"""Half of them pass the size from which a segment has an index."""
conversion_steps = _conversion_steps | st.tuples(
    _conversion_steps, st.just([*_LARGE, Step("roll", 0)]), _conversion_steps
).map(lambda parts: [*parts[0], *parts[1], *parts[2]])
"""The same, with log segments that become Parquet segments."""


def describe(workload: ShardWorkload, segment: LogSegment) -> ParquetSegment:
    """The Parquet segment of a log segment, without its file: for what never reads one."""
    return parquet_segment(segment, (segment.end + 4) // 5, SharedPlace(20_000, segment.base_offset + 1, 0))


def parquet_segment(
    segment: LogSegment, size_bytes: int, place: SharedPlace, sealed_root: str = SEALED
) -> ParquetSegment:
    """The Parquet segment of a log segment."""
    return ParquetSegment(
        sealed_root,
        segment.name,
        segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=size_bytes,
        created_us=segment.created_us,
        newest_append_us=segment.newest_append_us,
        last_lsn=segment.last_lsn,
        newest_us=segment.newest_us,
        place=place,
    )


@attrs.define
class ShardWorkload:
    """Attributes:
    shard: The shard.
    values: Value and timestamp of every record ever appended, by offset.
    lost: Offsets that were only in memory when the shard was loaded again.
    make_sealed: Makes the Parquet segment of a log segment.
    """

    files: SimulatedFileSystem = attrs.Factory(SimulatedFileSystem)
    store: MemoryStore = attrs.Factory(MemoryStore)
    pool: ChunkPool = attrs.Factory(lambda: ChunkPool(1 << 20))
    shard: Shard = attrs.Factory(lambda: Shard(7, "plant/line", ShardConfig(), NOW_US))
    values: dict[int, tuple[bytes, int]] = attrs.Factory(dict)
    lsns: dict[int, int] = attrs.Factory(dict)
    lost: set[int] = attrs.Factory(set)
    recorded: set[int] = attrs.Factory(set)
    lsn: int = 0
    pending: list[Published] = attrs.Factory(list)
    used: set[int] = attrs.Factory(set)
    make_sealed: Callable[[ShardWorkload, LogSegment], ParquetSegment] = describe

    def __attrs_post_init__(self) -> None:
        self.files.mkdir(LOG)

    def run(self, wanted: list[Step]) -> None:
        for step in wanted:
            getattr(self, f"_{step.action}")(step.amount)

    def readable(self) -> dict[int, bytes]:
        """What a reader must see, by offset."""
        shard = self.shard
        return {
            offset: self.values[offset][0]
            for offset in range(shard.start_offset, shard.published_offset)
            if offset not in self.lost
        }

    @staticmethod
    def path(shard_id: int, base_offset: int) -> str:
        return f"{LOG}/{shard_id}-{base_offset}.log"

    def _append(self, amount: int) -> None:
        self._store([b"%d" % (self.shard.next_offset + number) for number in range(1 + amount % 7)], amount)

    def _big(self, amount: int) -> None:
        self._store([bytes((amount % 251,)) * (INTERVAL_BYTES + amount)], amount)

    def _store(self, values: list[bytes], amount: int) -> None:
        shard = self.shard
        self.lsn += 1 + amount % 3
        if shard.active() is None:
            self._open(Mode.MEMORY if shard.in_memory_mode else Mode.FILE)
        base = shard.next_offset
        # Producers' clocks jump.
        timestamp_us = NOW_US + (amount * 7919) % 500
        batch = stamped(encode_values(values, timestamp_us=timestamp_us), base, self.lsn, NOW_US + self.lsn)
        for number, value in enumerate(values):
            self.values[base + number] = (value, timestamp_us)
            self.lsns[base + number] = self.lsn
        shard.next_offset += len(values)
        shard.last_lsn = self.lsn
        shard.segments[-1].append(batch, shard.next_offset, self.lsn, NOW_US + self.lsn, timestamp_us)
        self.pending.append(shard.published_now())

    def _open(self, mode: Mode) -> None:
        shard = self.shard
        shard.open_segment(mode, shard.next_offset, NOW_US, self.path(shard.shard_id, shard.next_offset), self.pool)

    def _publish(self, amount: int) -> None:
        for published in self.pending[: 1 + amount % 3]:
            self.shard.publish(published)
        del self.pending[: 1 + amount % 3]

    def publish_all(self) -> None:
        self._publish(0)
        while self.pending:
            self._publish(0)

    def _flush(self, amount: int) -> None:
        shard = self.shard
        for segment in shard.segments:
            end = shard.visible_end(segment)
            if isinstance(segment, LogSegment) and shard.published_segment is not None and segment.flushed < end:
                plan = segment.plan_flush(end, shard.visible_next_offset(segment))
                file = self.files.open(segment.path, create=True)
                plan.write(file, lambda path=segment.index_path: self.files.open(path, create=True))  # type: ignore[misc]
                file.close()
                segment.flushed_to(plan)
            if segment is shard.published_segment:
                break

    def can_be_sealed(self) -> list[LogSegment]:
        """The closed log segments that are in their files to the end."""
        return [
            segment
            for segment in self.shard.segments
            if isinstance(segment, LogSegment)
            and segment.closed
            and segment.base_offset < segment.next_offset == segment.flushed_offset
        ]

    def _convert(self, amount: int) -> None:
        self.publish_all()
        self._flush(0)
        for segment in self.can_be_sealed()[: 1 + amount % 3]:
            self.shard.put_parts([self.make_sealed(self, segment)])

    def _roll(self, amount: int) -> None:
        self._reopen(Mode.MEMORY if self.shard.in_memory_mode else Mode.FILE)

    def _switch(self, amount: int) -> None:
        mode = Mode.FILE if self.shard.in_memory_mode else Mode.MEMORY
        self.shard.config = attrs.evolve(self.shard.config, mode=mode)
        self._reopen(mode)

    def _reopen(self, mode: Mode) -> None:
        if (self.shard.segments and self.shard.segments[-1].next_offset > self.shard.segments[-1].base_offset) or (
            self.shard.segments and (self.shard.segments[-1].kind is SegmentKind.MEMORY) != (mode is Mode.MEMORY)
        ):
            self._open(mode)
            self.pending.append(self.shard.published_now())
        else:
            self.shard.in_memory_mode = mode is Mode.MEMORY

    def _trim(self, amount: int) -> None:
        shard = self.shard
        before = shard.start_offset + (shard.published_offset - shard.start_offset) * (amount % 101) // 100
        for segment in shard.trim(before):
            segment.chunks.release()

    def _restart(self, amount: int) -> None:
        """Record the shard, forget it, and load it again, as a clean stop and start do."""
        self.publish_all()
        self._flush(0)
        shard = self.shard
        if shard.published_segment is None:
            return
        for segment in shard.segments:
            if segment.kind is SegmentKind.MEMORY:
                self.lost.update(range(segment.base_offset, segment.next_offset))
        self.recorded = self.save()
        self.shard = self.load()

    def save(self) -> set[int]:
        mutations = Mutations()
        for _ in save_changed(
            mutations, self.shard, safe_offset(self.shard), lambda producer_id: producer_id in self.used
        ):
            pass
        saved = save(mutations, self.shard, recorded=tuple(self.recorded))
        self.store.write(mutations)
        saved.note_written()
        return set(saved.base_offsets)

    def load(self) -> Shard:
        old = self.shard
        shard = Shard(old.shard_id, old.name, old.config, old.created_us)
        load(self.store, shard, self.path, self.pool, sealed_root=SEALED)
        shard.publish(shard.published_now())
        return shard
