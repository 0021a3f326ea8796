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
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.stored import Counts, Status
from broker_adapter.state_forms import decode
from shards.errors import OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from shards.record import Gap, Record, StoredRecord

_TRIM_BYTES: Final = 8 << 20

DEAD_LETTER_OFFSET: Final = "dead-letter-offset"
DEAD_LETTER_REASON: Final = "dead-letter-reason"
"""Headers that a dead letter has in front of its own: the offset that it had in the queue, and why it was refused."""


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
        self._last_dead_letter = -1
        self._has_dead_letters = False
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
        await self._find_last_dead_letter()
        await self._recall_counts()

    async def _find_last_dead_letter(self) -> None:
        self._has_dead_letters = bool(await self._adapter.list_shards(self._dead_letters))
        if not self._has_dead_letters:
            return
        info = await self._adapter.describe_shard(self._dead_letters)
        if info.next_offset == info.start_offset:
            return
        found = await self._adapter.read(self._dead_letters, info.next_offset - 1, max_records=1)
        for record in found.records:
            if isinstance(record, StoredRecord):
                self._last_dead_letter = offset_of_dead_letter(record)

    async def _recall_counts(self) -> None:
        """Go on counting where the driver before was; what it had not written down is told by the cursor."""
        key = names.status_key(self._queue)
        found = await self._adapter.get_state(key)
        if found is None:
            return
        status = decode(Status, found.key, found.value)
        unaccounted = max(0, self.offset - status.counted_offset)
        self.counts = added(status.counts, Counts(confirmed=unaccounted))

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
        """Keep a record that the sink refuses as a dead letter. In the order of offsets, and before `confirm`.

        One that is there already, from before a crash, is not added again.
        """
        if record.offset <= self._last_dead_letter:
            return
        if not self._has_dead_letters:
            await self._adapter.create_shard(self._dead_letters, exist_ok=True)
            self._has_dead_letters = True
        headers = (
            (DEAD_LETTER_OFFSET, str(record.offset).encode()),
            (DEAD_LETTER_REASON, reason.encode()),
            *record.headers,
        )
        letter = Record(record.value, record.key, record.topic, record.timestamp_us, headers, record.tags)
        await self._adapter.append(self._dead_letters, [letter])
        self._last_dead_letter = record.offset

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
            except VersionConflictError as error:
                raise QueueLostError(f"the cursor of the cache queue {self._queue!r} was moved by others") from error
            self.offset, self._version = cursor.offset, cursor.version
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


def offset_of_dead_letter(record: StoredRecord) -> int:
    """Which offset a dead letter had in its queue; -1 if it is none that we wrote."""
    value = dict(record.headers[:2]).get(DEAD_LETTER_OFFSET, b"")
    return int(value) if value.isdigit() else -1
