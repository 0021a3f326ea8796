"""Putting records into a cache queue: from any number of processes, each with one writer.

`put_nowait` decides at once, by the writer's estimate of the queue's depth; a task of the writer reads the state of the
queue repeatedly while there is traffic. So several writers may exceed a bound by what they have in flight, not more.
Records that are collected and put in together are counted one by one: `begin_chunk`, then `take_room` for each.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.end_tracker import EndTracker
from broker_adapter.cache_queue.errors import QueueFullError, QueueNotFoundError
from broker_adapter.cache_queue.gauge import Gauge
from broker_adapter.cache_queue.progress import read_progress
from broker_adapter.cache_queue.queue import definition_of, ensure_queue, keep_within_bounds, settings_of
from broker_adapter.cache_queue.settings import Overflow, QueueSettings
from broker_adapter.cache_queue.stored import KnownEnd, WriterCounts
from broker_adapter.errors import ShardNotFoundError, StorageError, is_retriable
from broker_adapter.results import PendingAppend
from broker_adapter.state_forms import decode, encode
from journal.settings.values import format_size
from shards.format.record import Record
from shards.seams.clock import Clock, SystemClock

_LOOK_INTERVAL_S: Final = 0.25
_IDLE_LOOK_INTERVAL_S: Final = 2.0
_RETRY_INTERVAL_S: Final = 1.0
_RECORD_BYTES: Final = 100

_log = logging.getLogger(__name__)


class QueueWriter:
    """Puts records into one cache queue.

    Args:
        adapter: The store.
        queue: Name of the queue, which is created if it does not exist.
        settings: Its bounds, stored when this starts; the writer also applies settings that others store later.
        writer: Name of this writer among those of the queue; its counts are stored under it.
        clock: Gives the time from which the age of records is counted.
    """

    def __init__(
        self, adapter: StorageAdapter, queue: str, settings: QueueSettings, *, writer: str, clock: Clock | None = None
    ) -> None:
        self.queue = names.check_name(queue)
        self.shard = names.shard_of(queue)
        self._adapter = adapter
        self._settings = settings
        self._clock = clock or SystemClock()
        self._gauge = Gauge()
        self._under_way: deque[tuple[PendingAppend, int, int]] = deque()
        self._ends = EndTracker()
        self._stored_end: KnownEnd | None = None
        self._counts_key = names.writer_key(queue, writer)
        self._end_key = names.known_end_key(queue, writer)
        self._counts = WriterCounts()
        self._stored_counts = WriterCounts()
        self._has_traffic = trio.Event()
        self._room_records = self._room_bytes = math.inf

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create the queue if it does not exist, and read its state repeatedly, until cancelled.

        Raises:
            StorageError: The store refuses the queue. While it cannot be reached this waits.
        """
        is_begun = await self._begin()
        while not is_begun:
            await trio.sleep(_RETRY_INTERVAL_S)
            is_begun = await self._begin()
        task_status.started()
        while True:
            self._has_traffic = trio.Event()
            with trio.move_on_after(_IDLE_LOOK_INTERVAL_S):
                await self._has_traffic.wait()
            await trio.sleep(_LOOK_INTERVAL_S)
            await self._look_or_say_why_not()

    async def _look_or_say_why_not(self) -> None:
        try:
            try:
                await self.look()
            except (ShardNotFoundError, QueueNotFoundError):
                # It was deleted. Creating it may fail with any error, for instance when the store's disk is full.
                await ensure_queue(self._adapter, self.queue, self._settings)
            await self.store_counts()
        except StorageError as error:
            _log.info("cache queue %s: the store does not answer: %s", self.queue, error)
        except Exception:  # noqa: BLE001 - what is wrong with looking at one queue must not end the broker
            _log.exception("cache queue %s: unexpected error", self.queue)

    async def _begin(self) -> bool:
        try:
            await ensure_queue(self._adapter, self.queue, self._settings)
            found = await self._adapter.get_state(self._counts_key)
            if found is not None:
                self._counts = self._stored_counts = decode(WriterCounts, found.key, found.value)
            found = await self._adapter.get_state(self._end_key)
            if found is not None:
                self._ends.known = self._stored_end = decode(KnownEnd, found.key, found.value)
            await self.look()
        except StorageError as error:
            if not is_retriable(error):
                raise
            return False
        return True

    async def look(self) -> None:
        """Read how full the queue is, and enforce its bounds.

        Raises:
            StorageError: The store does not answer.
        """
        self._settings = settings_of(await definition_of(self._adapter, self.queue))
        self._settle()
        self._gauge.begin_look()
        info = await self._adapter.describe_shard(self.shard)
        progress, _ = await read_progress(self._adapter, self.queue, info.shard_id)
        self._settle()
        self._ends.look(info, progress.offset)
        if self._ends.known is not None and self._ends.known != self._stored_end:
            await self._adapter.put_state(self._end_key, encode(self._ends.known))
            self._stored_end = self._ends.known
        self._gauge.look(await keep_within_bounds(self._adapter, self.queue, self._settings, info, progress.offset))

    async def configure(self, settings: QueueSettings) -> None:
        """Change the queue's settings; they apply to all later records.

        Raises:
            StorageError: The store does not answer, or refuses them.
        """
        await ensure_queue(self._adapter, self.queue, settings)
        self._settings = settings

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, as of the last read."""
        return self._settings

    @property
    def is_full(self) -> bool:
        """Whether there is no room now, by this writer's estimate. A queue that drops its oldest always has room."""
        settings = self._settings
        if settings.overflow is Overflow.DROP_OLDEST:
            return False
        self._settle()
        gauge = self._gauge
        return not settings.has_room(gauge.record_count, gauge.size_bytes)

    @property
    def refuses(self) -> bool:
        """Whether `put_nowait` would raise `QueueFullError` now."""
        return self._settings.overflow is Overflow.REJECT and self.is_full

    def begin_chunk(self) -> None:
        """Find out how much room there is for records that are about to be collected, and then put in together.

        The result holds until the calling task waits for something: no other task may put records in meanwhile.
        """
        self._room_records = self._room_bytes = math.inf
        settings = self._settings
        if settings.overflow is Overflow.DROP_OLDEST:
            return
        self._settle()
        if settings.max_records:
            self._room_records = settings.max_records - self._gauge.record_count
        if settings.max_bytes:
            self._room_bytes = settings.max_bytes - self._gauge.size_bytes

    @property
    def refuses_more(self) -> bool:
        """Whether the queue refuses the next record of the chunk, because it is full with those before."""
        return (self._room_records <= 0 or self._room_bytes <= 0) and self._settings.overflow is Overflow.REJECT

    def take_room(self, value_bytes: int) -> bool:
        """Take the room for the next record of the chunk; false if it is dropped, and counted as dropped.

        REQUIRES: `refuses_more` is false.
        """
        if self._room_records <= 0 or self._room_bytes <= 0:
            self._has_traffic.set()
            self._counts = WriterCounts(self._counts.rejected, self._counts.dropped_newest + 1)
            return False
        self._room_records -= 1
        self._room_bytes -= value_bytes + _RECORD_BYTES
        return True

    def rejected(self, count: int) -> None:
        """Count records that were refused because the queue is full."""
        self._counts = WriterCounts(self._counts.rejected + count, self._counts.dropped_newest)
        self._has_traffic.set()

    def full_error(self) -> QueueFullError:
        """The error for a producer while `refuses` is true."""
        settings = self._settings
        bounds = [f"{settings.max_records} records"] if settings.max_records else []
        bounds += [format_size(settings.max_bytes)] if settings.max_bytes else []
        return QueueFullError(
            f"the cache queue {self.queue!r} is full ({' or '.join(bounds)}): its sink is out or too slow; try again "
            "later, raise max_bytes or max_records of its [[bridge]], or choose another overflow"
        )

    def for_commit(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records to be put in by a `StorageAdapter.commit`; none if they are dropped, and counted as dropped.

        A queue that rejects accepts them nevertheless: there is no producer any more that could get the error.
        """
        self._has_traffic.set()
        count = len(records)
        if self._settings.overflow is Overflow.DROP_NEWEST and self.is_full:
            self._counts = WriterCounts(self._counts.rejected, self._counts.dropped_newest + count)
            return ()
        self._gauge.committed(count, _size_of(records))
        return self._aged(records)

    def put_nowait(self, records: Sequence[Record], *, has_room: bool = False) -> PendingAppend | None:
        """Append records, and return at once. The queue's mode decides how durable an acknowledged record is.

        Args:
            records: The records.
            has_room: `take_room` was called for each of them: they are put in, even if the queue is full now.

        Returns:
            The append; see `StorageAdapter.append_nowait`. None if the queue is full and drops the newest.

        Raises:
            QueueFullError: The queue is full; nothing was kept.
            OverloadedError: Too many bytes are in flight; see `StorageAdapter.wait_for_room`.
        """
        self._has_traffic.set()
        count = len(records)
        if not has_room and self.is_full:
            if self._settings.overflow is Overflow.REJECT:
                self.rejected(count)
                raise self.full_error()
            self._counts = WriterCounts(self._counts.rejected, self._counts.dropped_newest + count)
            return None
        pending = self._adapter.append_nowait(self.shard, self._aged(records))
        size_bytes = _size_of(records)
        self._under_way.append((pending, count, size_bytes))
        self._gauge.put(count, size_bytes)
        return pending

    def _aged(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records with the time at which they expire in the queue."""
        end_us = self._settings.expires_at_us(self._clock.now_us())
        if not end_us:
            return records
        return [
            record if 0 < record.expires_at_us <= end_us else msgspec.structs.replace(record, expires_at_us=end_us)
            for record in records
        ]

    def _settle(self) -> None:
        """Process the outcomes that are known."""
        under_way = self._under_way
        while under_way and under_way[0][0].is_done:
            pending, count, size_bytes = under_way.popleft()
            try:
                base_offset = pending.result_nowait().base_offset
            except StorageError:
                # The producer gets the error; here only the depth matters.
                base_offset = -1
            if base_offset >= 0:
                self._ends.appended(base_offset, base_offset + count)
            self._gauge.settled(count, size_bytes, base_offset + count if base_offset >= 0 else None)

    async def store_counts(self) -> None:
        """Store the counts of records that this writer did not put in, for operators.

        Raises:
            StorageError: The store does not answer.
        """
        if self._counts != self._stored_counts:
            counts = self._counts
            await self._adapter.put_state(self._counts_key, encode(counts))
            self._stored_counts = counts


def _size_of(records: Sequence[Record]) -> int:
    """Approximate bytes that the store will need for them."""
    return sum(len(record.value) for record in records) + _RECORD_BYTES * len(records)
