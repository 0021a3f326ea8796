"""Dead letters: single records that a queue's sink refused. Their format, and replay and purge.

They are in a shard of their own, in the order in which they were refused. `drain` puts them there, in one commit with
the note in the queue's progress that they are dead letters: a dead letter is not sent to the sink any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import attrs
import msgspec

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.errors import QueueFullError
from broker_adapter.cache_queue.gauge import depth_of
from broker_adapter.cache_queue.progress import read_progress
from broker_adapter.cache_queue.settings import Overflow, QueueSettings
from broker_adapter.cache_queue.stored import LettersDone
from broker_adapter.changes import Changes, StatePut
from broker_adapter.errors import OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from broker_adapter.state_forms import decode, encode
from shards.format.record import Record, StoredRecord
from shards.seams.clock import Clock, SystemClock

DEAD_LETTER_OFFSET: Final = "dead-letter-offset"
DEAD_LETTER_SHARD: Final = "dead-letter-shard"
DEAD_LETTER_REASON: Final = "dead-letter-reason"
"""Headers that a dead letter has before the record's own: the offset that it had in the queue, the id of the queue's
shard (a queue that was created again has another), and the reason of the refusal."""

_HEADER_COUNT: Final = 3
_READ_BYTES: Final = 256 << 10


@attrs.frozen(slots=True)
class DeadLetter:
    """A record that the sink refused.

    Attributes:
        offset: Offset in the shard of dead letters.
        queue_offset: Offset that it had in the queue; -1 if unknown.
        queue_shard_id: Id of the queue's shard at that time; -1 if unknown.
        reason: Error text of the sink.
        refused_us: When it was refused, in microseconds since 1970.
        record: The record of the queue, without its time of expiry.
    """

    offset: int
    queue_offset: int
    queue_shard_id: int
    reason: str
    refused_us: int
    record: Record


def as_letter(record: StoredRecord, queue_shard_id: int, reason: str) -> Record:
    """The record of a dead letter. It does not expire any more."""
    headers = (
        (DEAD_LETTER_OFFSET, str(record.offset).encode()),
        (DEAD_LETTER_SHARD, str(queue_shard_id).encode()),
        (DEAD_LETTER_REASON, reason.encode("utf-8", "backslashreplace")),
        *record.headers,
    )
    return Record(record.value, record.key, record.topic, record.timestamp_us, headers, record.tags)


def from_stored(stored: StoredRecord) -> DeadLetter:
    """The dead letter in a record of the shard of dead letters; other writers' records are accepted, too."""
    own = dict(stored.headers[:_HEADER_COUNT])
    is_ours = own.keys() == {DEAD_LETTER_OFFSET, DEAD_LETTER_SHARD, DEAD_LETTER_REASON}
    return DeadLetter(
        stored.offset,
        _number(own[DEAD_LETTER_OFFSET]) if is_ours else -1,
        _number(own[DEAD_LETTER_SHARD]) if is_ours else -1,
        own[DEAD_LETTER_REASON].decode("utf-8", "replace") if is_ours else "",
        stored.append_time_us,
        Record(
            stored.value,
            stored.key,
            stored.topic,
            stored.timestamp_us,
            stored.headers[_HEADER_COUNT if is_ours else 0 :],
            stored.tags,
        ),
    )


async def count_dead_letters(adapter: StorageAdapter, queue: str) -> int:
    """Number of dead letters that are kept."""
    place = await _place_of(adapter, queue)
    return 0 if place is None else place.record_count


async def list_dead_letters(adapter: StorageAdapter, queue: str) -> AsyncGenerator[DeadLetter, None]:
    """The dead letters that are kept, oldest first; read in steps."""
    place = await _place_of(adapter, queue)
    if place is None:
        return
    shard, offset = names.dead_letters_of(queue), place.first_offset
    while offset < place.next_offset:
        found = await adapter.read(shard, offset, max_bytes=_READ_BYTES)
        offset = found.next_offset
        for each in found.records:
            if isinstance(each, StoredRecord) and each.offset < place.next_offset:
                yield from_stored(each)


async def replay_dead_letters(
    adapter: StorageAdapter, queue: str, settings: QueueSettings, *, clock: Clock | None = None
) -> int:
    """Append the present dead letters to the queue again, in their order, each exactly once.

    Each step is one commit of the append and the new position in the dead letters. So a crash at any point, a second
    operator or a lost answer puts none back twice. They count as new records: their age begins now.

    Returns:
        How many this call put back.

    Raises:
        QueueFullError: There is no room for more; those that were put back are not dead letters any more.
        ShardNotFoundError: The queue's shard is gone.
    """
    replayed_count = 0
    clock = clock or SystemClock()
    end_offset = await _end_of(adapter, queue)
    while True:
        place = await _place_of(adapter, queue)
        if place is None:
            return replayed_count
        if place.first_offset >= end_offset:
            await adapter.trim(names.dead_letters_of(queue), place.first_offset)
            return replayed_count
        await _check_room(adapter, queue, settings, replayed_count)
        try:
            found = await adapter.read(
                names.dead_letters_of(queue),
                place.first_offset,
                max_bytes=_READ_BYTES,
                max_records=end_offset - place.first_offset,
            )
        except OffsetOutOfRangeError:
            # Another call put them back or purged them, and has trimmed them since the place was read.
            continue
        expires_at_us = settings.expires_at_us(clock.now_us())
        records = [
            msgspec.structs.replace(from_stored(each).record, expires_at_us=expires_at_us)
            for each in found.records
            if isinstance(each, StoredRecord) and each.offset < end_offset
        ]
        note = place.note(queue, min(found.next_offset, end_offset))
        try:
            await adapter.commit(Changes(((names.shard_of(queue), records),) if records else (), (note,)))
        except VersionConflictError:
            # Another call put them back or purged them, or an earlier attempt was carried out without an answer.
            continue
        replayed_count += len(records)


async def purge_dead_letters(adapter: StorageAdapter, queue: str) -> int:
    """Delete the present dead letters; return their number."""
    end_offset = await _end_of(adapter, queue)
    while True:
        place = await _place_of(adapter, queue, end_offset)
        if place is None or place.first_offset >= end_offset:
            return 0
        note = place.note(queue, end_offset)
        try:
            await adapter.put_state(note.key, note.value, expected_version=note.expected_version)
        except VersionConflictError:
            continue
        await adapter.trim(names.dead_letters_of(queue), end_offset)
        return place.record_count


@attrs.frozen(slots=True)
class _Place:
    """Begin and end of the dead letters.

    Attributes:
        shard_id: Id of their shard.
        record_count: Dead letters between the two offsets. Those that were lost with the memory are not counted.
        version: Version of the stored position; 0 if there is none.
    """

    shard_id: int
    first_offset: int
    next_offset: int
    record_count: int
    version: int

    def note(self, queue: str, next_offset: int) -> StatePut:
        """The put that marks all below an offset as finished, if the position was not changed meanwhile."""
        value = encode(LettersDone(self.shard_id, next_offset))
        return StatePut(names.letters_done_key(queue), value, self.version)


async def _place_of(adapter: StorageAdapter, queue: str, end_offset: int | None = None) -> _Place | None:
    try:
        info = await adapter.describe_shard(names.dead_letters_of(queue))
    except ShardNotFoundError:
        return None
    found = await adapter.get_state(names.letters_done_key(queue))
    first_offset = info.start_offset
    if found is not None:
        done = decode(LettersDone, found.key, found.value)
        if done.shard_id == info.shard_id:
            first_offset = max(first_offset, done.next_offset)
    depth = depth_of(info, first_offset, end_offset)
    return _Place(
        info.shard_id, first_offset, info.next_offset, depth.record_count, 0 if found is None else found.version
    )


async def _end_of(adapter: StorageAdapter, queue: str) -> int:
    """The offset after the present dead letters."""
    place = await _place_of(adapter, queue)
    return 0 if place is None else place.next_offset


async def _check_room(adapter: StorageAdapter, queue: str, settings: QueueSettings, replayed_count: int) -> None:
    if settings.overflow is Overflow.DROP_OLDEST:
        return
    info = await adapter.describe_shard(names.shard_of(queue))
    progress, _ = await read_progress(adapter, queue, info.shard_id)
    depth = depth_of(info, progress.offset)
    if settings.has_room(depth.record_count, depth.size_bytes):
        return
    raise QueueFullError(
        f"the cache queue {queue!r} is full: {replayed_count} dead letters were put back; try again for the others "
        "when it has drained"
    )


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else -1
