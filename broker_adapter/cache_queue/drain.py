"""Taking records out of a cache queue: reads from its confirmed offset on, and advances that offset.

Only the holder of the queue's lease does so (`lease`). The confirmed offset and the outcomes of records are one value
of the state store that is changed by compare-and-set (`progress`): a former holder that has not noticed cannot change
it any more. A dead letter is stored in one commit with the note that it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, cast

import attrs
import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.dead_letters import as_letter
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.gauge import gaps_of
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.progress import added, known_ends, left_behind, read_progress, unused_in, unused_of
from broker_adapter.cache_queue.ranges import Range, contains, covered_count, from_offset, intersection, with_offsets
from broker_adapter.cache_queue.stored import Counts, Progress
from broker_adapter.changes import Changes, StatePut
from broker_adapter.errors import OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from broker_adapter.state_forms import decode, encode
from shards.format.record import Gap, Record, StoredRecord
from shards.topics.names import QUEUE_CURSOR

_TRIM_BYTES: Final = 8 << 20
_LETTERS_BYTES: Final = 256 << 10
_COUNTED_BYTES: Final = 1 << 20

Refused: TypeAlias = tuple[StoredRecord, str]
"""A record that the sink refuses, and the reason."""

_Step: TypeAlias = Callable[[Progress], tuple[Progress, Sequence[Record]] | None]
"""Computes from the present progress the next one, with the dead letters that belong to it; None: nothing to do."""


@attrs.frozen(slots=True)
class Hole:
    """Offsets without a record to send, between two records or after the last one of a read.

    Attributes:
        next_offset: Offset after them.
        counts: Outcomes of their records.
    """

    next_offset: int
    counts: Counts


@attrs.frozen(slots=True)
class Waiting:
    """Records that wait, as found by one read.

    Attributes:
        records: In order, without records that expired, were dropped, were lost or are dead letters.
        first_offset: Where the read began.
        next_offset: Where the next read begins.
        holes: The offsets without a record to send, in order.
    """

    records: Sequence[StoredRecord]
    first_offset: int
    next_offset: int
    holes: Sequence[Hole] = ()

    @property
    def skipped(self) -> Counts:
        """Counts of the records that are left out, by outcome."""
        skipped = Counts()
        for hole in self.holes:
            skipped = added(skipped, hole.counts)
        return skipped


class QueueDrain:
    """Reads and confirms records of a queue, for the holder of its lease."""

    def __init__(self, adapter: StorageAdapter, grant: Grant) -> None:
        self._adapter = adapter
        self._queue = grant.queue
        self._epoch = grant.epoch
        self._shard = names.shard_of(grant.queue)
        self._dead_letters = names.dead_letters_of(grant.queue)
        self._key = names.progress_key(grant.queue)
        self._progress = Progress(0)
        self._version = 0
        # Batches in flight may set records aside while other batches are confirmed.
        self._storing = trio.Lock()
        self._bytes_since_trim = 0
        self._trimmed_offset = 0
        self._shown_offset = 0

    @property
    def offset(self) -> int:
        """Everything below it is confirmed, set aside or dropped; stored."""
        return self._progress.offset

    @property
    def dead_offsets(self) -> Sequence[Range]:
        """Ranges at or above `offset` whose records are dead letters already: they are not sent to the sink."""
        return self._progress.set_aside

    @property
    def counts(self) -> Counts:
        """Outcomes of records; stored together with `offset`."""
        return self._progress.counts

    async def begin(self) -> None:
        """Take the queue over: an earlier driver cannot advance it any more.

        Raises:
            QueueLostError: A later driver has begun already.
            ShardNotFoundError: The queue's shard is gone.
            StorageError: The store does not answer.
        """
        shard_id = (await self._adapter.describe_shard(self._shard)).shard_id
        while True:
            found, version = await read_progress(self._adapter, self._queue, shard_id)
            if found.epoch > self._epoch:
                raise QueueLostError(
                    f"the cache queue {self._queue!r} has a driver of epoch {found.epoch}, this one has {self._epoch}"
                )
            taken = msgspec.structs.replace(found, epoch=self._epoch)
            try:
                stored = await self._adapter.put_state(self._key, encode(taken), expected_version=version)
            except VersionConflictError:
                continue
            break
        self._progress, self._version = taken, stored.version
        self._trimmed_offset = 0

    async def require_cursor(self) -> None:
        """Check that the offset is where this drain left it. Do not call it while something is being confirmed.

        Raises:
            QueueLostError: The offset was changed by others, or the queue was created again: records that were read are
                void.
        """
        try:
            shard_id = (await self._adapter.describe_shard(self._shard)).shard_id
        except ShardNotFoundError as error:
            raise QueueLostError(f"the cache queue {self._queue!r} was deleted meanwhile") from error
        if shard_id != self._progress.shard_id:
            raise QueueLostError(f"the cache queue {self._queue!r} was deleted and created again meanwhile")
        async with self._storing:
            await self._take_note()

    async def read(self, offset: int, *, max_bytes: int, max_wait_s: float, end_offset: int | None = None) -> Waiting:
        """Read from an offset on; the result is empty if nothing came within ``max_wait_s`` seconds.

        Args:
            end_offset: Records at or above it are left out.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
        """
        try:
            found = await self._adapter.read(self._shard, offset, max_bytes=max_bytes, max_wait_s=max_wait_s)
        except OffsetOutOfRangeError as error:
            if error.start_offset <= offset:
                # The queue once had this offset: its shard was deleted and created again.
                raise QueueLostError(
                    f"the cache queue {self._queue!r} was deleted and created again meanwhile"
                ) from error
            next_offset = error.start_offset if end_offset is None else min(error.start_offset, end_offset)
            return Waiting((), offset, next_offset, (Hole(next_offset, await self._dropped(offset, next_offset)),))
        next_offset = found.next_offset if end_offset is None else min(found.next_offset, end_offset)
        set_aside = self._progress.set_aside
        if (
            not set_aside
            and next_offset == found.next_offset
            and len(found.records) == next_offset - offset
            and Gap not in set(map(type, found.records))
        ):
            # Each offset has a record, as usual.
            return Waiting(cast("list[StoredRecord]", found.records), offset, next_offset)
        records = [
            each
            for each in found.records
            if isinstance(each, StoredRecord) and each.offset < next_offset and not contains(set_aside, each.offset)
        ]
        # Whole, though the read may end within one: the knowledge of writers is about whole gaps.
        gaps = [
            (each.first_offset, each.next_offset)
            for each in found.records
            if isinstance(each, Gap) and each.first_offset < next_offset
        ]
        if len(records) == next_offset - offset:
            return Waiting(records, offset, next_offset)
        ends = await known_ends(self._adapter, self._queue, self._progress.shard_id) if gaps else []
        unused = [each for gap in gaps for each in unused_in(gap, ends)]
        holes: list[Hole] = []
        at = offset
        for after in (*(record.offset for record in records), next_offset):
            if after > at:
                holes.append(Hole(after, _left_out(at, after, gaps, unused, set_aside)))
            at = after + 1
        return Waiting(records, offset, next_offset, holes)

    async def _dropped(self, offset: int, end_offset: int) -> Counts:
        """Outcomes of records that were trimmed before they were read."""
        progress = self._progress
        info = await self._adapter.describe_shard(self._shard)
        ends = await known_ends(self._adapter, self._queue, progress.shard_id)
        unused_count = covered_count(unused_of(info, offset, ends), offset, end_offset)
        dead_count = covered_count(progress.set_aside, offset, end_offset)
        return Counts(dead_lettered=dead_count, dropped_oldest=end_offset - offset - unused_count - dead_count)

    async def counts_up_to(self, next_offset: int) -> Counts:
        """The counts to confirm if the sink has all records below an offset.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
        """
        outcome, offset = Counts(), self.offset
        while offset < next_offset:
            found = await self.read(offset, max_bytes=_COUNTED_BYTES, max_wait_s=0, end_offset=next_offset)
            if found.next_offset == offset:
                break
            outcome = added(outcome, added(found.skipped, Counts(confirmed=len(found.records))))
            offset = found.next_offset
        return outcome

    async def counts_at_sink(self, position: int) -> Counts:
        """The counts to confirm if a sink that stores its position with the rows says that it has all below it.

        A position within a gap is from before the gap: the store lost these records after the sink had stored them, so
        they are confirmed and not lost. In a gap of several crashes that holds for the records after the last range
        without records: a driver confirms what the sink has before it sends records of a later life of the store.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
        """
        counts = await self.counts_up_to(position)
        if not counts.lost:
            return counts
        progress = self._progress
        info = await self._adapter.describe_shard(self._shard)
        gaps = gaps_of(info, progress.offset)
        first_offset = next((first for first, after in gaps if first < position < after), None)
        if first_offset is None:
            return counts
        ends = await known_ends(self._adapter, self._queue, progress.shard_id)
        unused = unused_of(info, progress.offset, ends)
        first_offset = max(first_offset, *(min(after, position) for first, after in unused if first < position), 0)
        sent_count = position - first_offset - covered_count(progress.set_aside, first_offset, position)
        sent_count = min(sent_count, counts.lost)
        return msgspec.structs.replace(counts, confirmed=counts.confirmed + sent_count, lost=counts.lost - sent_count)

    async def counts_without_reading(self, next_offset: int) -> Counts:
        """The same, computed from the segments: expired records that are still stored count as confirmed.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
        """
        progress = self._progress
        info = await self._adapter.describe_shard(self._shard)
        ends = await known_ends(self._adapter, self._queue, progress.shard_id)
        counts = left_behind(info, progress, ends, next_offset)
        return msgspec.structs.replace(counts, confirmed=counts.purged, purged=0)

    async def set_aside(self, refused: Sequence[Refused]) -> None:
        """Store records that the sink refuses as dead letters: they are not sent to it any more.

        A record that is a dead letter already, from before a crash, is not added again. Returns when that is durable.

        Raises:
            QueueLostError: The queue has another driver.
        """
        for piece in _pieces(refused):

            def keep(progress: Progress, piece: Sequence[Refused] = piece) -> tuple[Progress, Sequence[Record]] | None:
                new = [
                    (record, reason)
                    for record, reason in piece
                    if record.offset >= progress.offset and not contains(progress.set_aside, record.offset)
                ]
                if not new:
                    return None
                ranges = with_offsets(progress.set_aside, (record.offset for record, _ in new))
                letters = [as_letter(record, progress.shard_id, reason) for record, reason in new]
                return msgspec.structs.replace(progress, set_aside=ranges), letters

            await self._store(keep)

    async def confirm(self, next_offset: int, outcome: Counts, size_bytes: int) -> None:
        """Advance the confirmed offset. Returns when that is durable.

        Args:
            next_offset: Everything below it is finished.
            outcome: Outcomes of the records in between.
            size_bytes: Approximate size of these records; segments are dropped after a number of bytes.

        Raises:
            QueueLostError: Another process advanced it.
        """
        counted_offset = self.offset

        def move(progress: Progress) -> tuple[Progress, Sequence[Record]] | None:
            if next_offset <= progress.offset:
                return None
            if progress.offset != counted_offset:
                raise QueueLostError(f"the cache queue {self._queue!r} was advanced by another process meanwhile")
            moved = msgspec.structs.replace(
                progress,
                offset=next_offset,
                counts=added(progress.counts, outcome),
                set_aside=from_offset(progress.set_aside, next_offset),
            )
            return moved, ()

        await self._store(move)
        self._bytes_since_trim += size_bytes
        if self._bytes_since_trim >= _TRIM_BYTES:
            await self.trim()

    async def trim(self) -> None:
        """Drop finished records; disk space is freed in whole segments."""
        self._bytes_since_trim = 0
        if self.offset > self._trimmed_offset:
            self._trimmed_offset = self.offset
            await self._adapter.trim(self._shard, self.offset)
            await self.show_cursor()

    async def show_cursor(self) -> None:
        """Copy the offset to the shard's cursor, which the server's metrics and the console read."""
        if self.offset > self._shown_offset:
            offset = self.offset
            await self._adapter.commit_cursor(self._shard, QUEUE_CURSOR, offset)
            self._shown_offset = offset

    async def _store(self, step: _Step) -> None:
        async with self._storing:
            while (wanted := step(self._progress)) is not None:
                progress, letters = wanted
                try:
                    self._version = await self._put(progress, letters)
                except VersionConflictError:
                    await self._take_note()
                    continue
                except ShardNotFoundError:
                    if not letters:
                        raise
                    await self._adapter.create_shard(self._dead_letters, exist_ok=True)
                    continue
                self._progress = progress
                return

    async def _put(self, progress: Progress, letters: Sequence[Record]) -> int:
        if not letters:
            return (await self._adapter.put_state(self._key, encode(progress), expected_version=self._version)).version
        put = StatePut(self._key, encode(progress), self._version)
        committed = await self._adapter.commit(Changes(((self._dead_letters, letters),), (put,)))
        return committed.values[0].version

    async def _take_note(self) -> None:
        """Apply what an earlier call stored without an answer: it was cancelled, or the connection was lost.

        Raises:
            QueueLostError: Another process stored it.
        """
        found = await self._adapter.get_state(self._key)
        if found is not None and found.version == self._version:
            return
        progress = None if found is None else decode(Progress, self._key, found.value)
        if (
            found is None
            or progress is None
            or (progress.shard_id, progress.epoch) != (self._progress.shard_id, self._epoch)
            # A purge does not change the epoch.
            or progress.counts.purged != self._progress.counts.purged
        ):
            raise QueueLostError(f"the cache queue {self._queue!r} was changed by another process")
        self._progress, self._version = progress, found.version


def _left_out(
    first_offset: int, next_offset: int, gaps: Sequence[Range], unused: Sequence[Range], set_aside: Sequence[Range]
) -> Counts:
    """Outcomes of offsets without a record to send: those with no other outcome have expired."""
    dead_count = covered_count(set_aside, first_offset, next_offset)
    lost_count = dead_in_gaps_count = gap_count = 0
    for gap_first, gap_after in intersection(gaps, [(first_offset, next_offset)]):
        dead_here_count = covered_count(set_aside, gap_first, gap_after)
        dead_in_gaps_count += dead_here_count
        gap_count += gap_after - gap_first
        lost_count += gap_after - gap_first - covered_count(unused, gap_first, gap_after) - dead_here_count
    expired_count = next_offset - first_offset - gap_count - (dead_count - dead_in_gaps_count)
    return Counts(dead_lettered=dead_count, expired=expired_count, lost=lost_count)


def _pieces(refused: Sequence[Refused]) -> Iterator[Sequence[Refused]]:
    """Cut into pieces that fit into one commit."""
    piece: list[Refused] = []
    size_bytes = 0
    for each in refused:
        piece.append(each)
        size_bytes += len(each[0].value)
        if size_bytes >= _LETTERS_BYTES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece
