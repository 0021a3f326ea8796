"""Taking records out of a cache queue: reading on from the cursor, and moving that behind what the sink has.

Only the holder of the queue's lease does so (`lease`). The cursor is moved by compare-and-set, so a former holder that
has not noticed cannot move it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.dead_letters import DeadLetter, as_letter, from_stored
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.stored import Counts, Definition, Status
from broker_adapter.state_forms import decode
from shards.errors import OffsetConflictError, OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from shards.record import Gap, StoredRecord

_TRIM_BYTES: Final = 8 << 20
_LETTERS_AT_ONCE: Final = 256


@attrs.frozen(slots=True)
class Waiting:
    """Records that wait, as one read found them.

    Attributes:
        records: In order. What expired, was dropped or was lost is left out.
        first_offset: Where the read began.
        next_offset: Where to read on.
        skipped: What was left out, by reason.
    """

    records: Sequence[StoredRecord]
    first_offset: int
    next_offset: int
    skipped: Counts


def added(first: Counts, second: Counts) -> Counts:
    """The sums."""
    return Counts(
        first.confirmed + second.confirmed,
        first.dead_lettered + second.dead_lettered,
        first.dropped_oldest + second.dropped_oldest,
        first.expired + second.expired,
        first.lost + second.lost,
        first.purged + second.purged,
    )


class QueueDrain:
    """The way out of a queue, for the holder of its lease.

    Attributes:
        offset: Everything below is confirmed, set aside or given up; stored.
        counts: What became of it; they are stored by whoever reports the driver's status.
    """

    def __init__(self, adapter: StorageAdapter, grant: Grant) -> None:
        self._adapter = adapter
        self._queue = grant.queue
        self._shard = names.shard_of(grant.queue)
        self._dead_letters = names.dead_letters_of(grant.queue)
        self._version = 0
        self._shard_id = 0
        self._letters_end: int | None = None
        self._set_aside: set[int] = set()
        self._bytes_since_trim = 0
        self._trimmed_offset = 0
        self.offset = 0
        self.counts = Counts()

    async def begin(self) -> None:
        """Take the cursor over from whoever had it before, who cannot move it any more.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
            StorageError: The store does not answer.
        """
        while True:
            cursor = await self._adapter.get_cursor(self._shard, names.CURSOR)
            offset, version = (0, 0) if cursor is None else (cursor.offset, cursor.version)
            try:
                taken = await self._adapter.commit_cursor(self._shard, names.CURSOR, offset, expected_version=version)
            except VersionConflictError:
                continue
            break
        self.offset, self._version = taken.offset, taken.version
        self._trimmed_offset = 0
        self._shard_id = (await self._adapter.describe_shard(self._shard)).shard_id
        await self._find_dead_letters()
        await self._recall_counts()

    async def check_cursor(self) -> None:
        """See whether the cursor is where it was left. Not while something is being confirmed.

        Raises:
            QueueLostError: Somebody else moved it: what waits now is not what was read.
        """
        cursor = await self._adapter.get_cursor(self._shard, names.CURSOR)
        if cursor is None or cursor.version != self._version:
            raise QueueLostError(f"the cursor of the cache queue {self._queue!r} was moved by others")

    async def _find_dead_letters(self) -> None:
        """See which records at or above the cursor are dead letters already, from before a crash."""
        self._set_aside.clear()
        try:
            info = await self._adapter.describe_shard(self._dead_letters)
        except ShardNotFoundError:
            self._letters_end = None
            return
        self._letters_end = end = info.next_offset
        while end > info.start_offset:
            first = max(info.start_offset, end - _LETTERS_AT_ONCE)
            found = [letter.queue_offset for letter in await self._letters(first, end) if self._is_ahead(letter)]
            if not found:
                # They are in about the order of the queue: those before were passed by the cursor long ago.
                return
            self._set_aside.update(found)
            end = first

    async def _letters(self, offset: int, end: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        while offset < end:
            found = await self._adapter.read(self._dead_letters, offset, max_records=end - offset)
            letters += [from_stored(each) for each in found.records if isinstance(each, StoredRecord)]
            offset = found.next_offset
        return letters

    def _is_ahead(self, letter: DeadLetter) -> bool:
        return letter.queue_shard_id == self._shard_id and letter.queue_offset >= self.offset

    async def _recall_counts(self) -> None:
        """Go on counting where the driver before was; what it had not written down is told by the cursor."""
        found = await self._adapter.get_state(names.status_key(self._queue))
        counts, counted_offset = Counts(), 0
        if found is not None:
            status = decode(Status, found.key, found.value)
            counts, counted_offset = status.counts, status.counted_offset
        purged_count = await self._purged_count() - counts.purged
        unaccounted = max(0, self.offset - counted_offset - purged_count)
        self.counts = added(counts, Counts(confirmed=unaccounted, purged=purged_count))

    async def _purged_count(self) -> int:
        found = await self._adapter.get_state(names.definition_key(self._queue))
        return 0 if found is None else decode(Definition, found.key, found.value).purged_count

    async def read(self, offset: int, *, max_bytes: int, max_wait_s: float) -> Waiting:
        """Read on; empty if nothing came within ``max_wait_s``.

        Raises:
            ShardNotFoundError: The queue's shard is gone.
        """
        try:
            found = await self._adapter.read(self._shard, offset, max_bytes=max_bytes, max_wait_s=max_wait_s)
        except OffsetOutOfRangeError as error:
            if error.start_offset <= offset:
                # Below what this queue once held: somebody deleted its shard and made it anew.
                raise QueueLostError(f"the cache queue {self._queue!r} was made anew meanwhile") from error
            return Waiting((), offset, error.start_offset, Counts(dropped_oldest=error.start_offset - offset))
        records: list[StoredRecord] = []
        lost_count = 0
        for each in found.records:
            if isinstance(each, Gap):
                lost_count += each.next_offset - each.first_offset
            else:
                records.append(each)
        expired_count = found.next_offset - offset - len(records) - lost_count
        return Waiting(records, offset, found.next_offset, Counts(expired=expired_count, lost=lost_count))

    async def set_aside(self, record: StoredRecord, reason: str) -> None:
        """Keep a record that the sink refuses as a dead letter, before its offset is confirmed.

        One that is there already, from before a crash, is not added again.
        """
        letter = as_letter(record, self._shard_id, reason)
        while record.offset not in self._set_aside:
            if self._letters_end is None:
                await self._adapter.create_shard(self._dead_letters, exist_ok=True)
                await self._find_dead_letters()
                continue
            try:
                await self._adapter.append(self._dead_letters, [letter], expected_offset=self._letters_end)
            except (OffsetConflictError, ShardNotFoundError):
                # A driver before this one was late, or somebody deleted the shard.
                await self._find_dead_letters()
                continue
            self._letters_end += 1
            self._set_aside.add(record.offset)

    def set_aside_count(self, next_offset: int) -> int:
        """How many records that are not confirmed, and lie below an offset, are dead letters already."""
        return sum(offset < next_offset for offset in self._set_aside)

    async def confirm(self, next_offset: int, outcome: Counts, size_bytes: int) -> None:
        """Move the cursor. Returns when that would survive a crash.

        Args:
            next_offset: Everything below is done with.
            outcome: What became of what lies between.
            size_bytes: About how much that was; segments are dropped now and then.

        Raises:
            QueueLostError: Somebody else moved the cursor.
        """
        if next_offset > self.offset:
            try:
                cursor = await self._adapter.commit_cursor(
                    self._shard, names.CURSOR, next_offset, expected_version=self._version
                )
            except (VersionConflictError, OffsetOutOfRangeError) as error:
                raise QueueLostError(f"the cursor of the cache queue {self._queue!r} was moved by others") from error
            self.offset, self._version = cursor.offset, cursor.version
            self._set_aside = {offset for offset in self._set_aside if offset >= next_offset}
        self.counts = added(self.counts, outcome)
        self._bytes_since_trim += size_bytes
        if self._bytes_since_trim >= _TRIM_BYTES:
            await self.trim()

    async def require_cursor(self) -> None:
        """Return if the cursor is where this drain left it.

        Raises:
            QueueLostError: Others moved it, or the queue was made anew.
        """
        try:
            cursor = await self._adapter.get_cursor(self._shard, names.CURSOR)
        except ShardNotFoundError as error:
            raise QueueLostError(f"the cache queue {self._queue!r} was deleted meanwhile") from error
        if cursor is None or cursor.version != self._version:
            raise QueueLostError(f"the cursor of the cache queue {self._queue!r} was moved by others")

    async def trim(self) -> None:
        """Drop what is done with; whole segments give their room back."""
        self._bytes_since_trim = 0
        if self.offset > self._trimmed_offset:
            self._trimmed_offset = self.offset
            await self._adapter.trim(self._shard, self.offset)
