"""Retention, applied from time to time: records that are too old or too many are trimmed, old active segments closed.

Trims are decisions in the journal, like those that clients request. A look visits the shards in which something may
have become due, not all that are open: see `journal.engine.segments.look_schedule`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeGuard

import trio

from journal.engine.segments.look_schedule import LookSchedule
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.group_commit import Committer
from journal.engine.write.commands import Commands
from journal.settings.server import ConversionConfig, ShardsConfig
from shards.model import Retention, SegmentKind
from shards.segments.log_segment import LogSegment
from shards.segments.retention import due
from shards.segments.segment import Segment
from shards.segments.shard import Shard

_UNBOUNDED: Final = Retention()
_SECOND_US: Final = 1_000_000
_MOST_REFUSED: Final = 5_000
"""Open shards that one look examines in vain to close them, some milliseconds of work: there may be a million."""


class SegmentRetention:
    """Applies the retention of one engine's shards.

    It visits a shard after each call of `note`, and when its time has come. The table calls `note_opened` for it.

    Args:
        defaults: Retention of shards that have none of their own.
        conversion: When an active segment is to be closed so that it can be converted.
        table: The shards.
        commands: Decides.
        committer: Makes them durable.
        expiry_us: Returns the time for computing ages, in microseconds since 1970.
        monotonic_us: Returns elapsed time in microseconds, whatever the time of day is set to.
        drop: Accepts memory segments that are dropped.
        closing: Called with a shard that is about to be closed.
        is_waiting: Whether a shard has changes that are not flushed or saved yet.
    """

    def __init__(
        self,
        *,
        defaults: ShardsConfig,
        conversion: ConversionConfig,
        table: ShardTable,
        commands: Commands,
        committer: Committer,
        expiry_us: Callable[[], int],
        monotonic_us: Callable[[], int],
        drop: Callable[[list[Segment]], None],
        closing: Callable[[Shard], None],
        is_waiting: Callable[[Shard], bool],
    ) -> None:
        self._defaults = defaults
        self._conversion = conversion
        self._table = table
        self._commands = commands
        self._committer = committer
        self._expiry_us = expiry_us
        self._monotonic_us = monotonic_us
        self._drop = drop
        self._closing = closing
        self._is_waiting = is_waiting
        self._close_after_us = conversion.close_after_s * _SECOND_US
        self._schedule = LookSchedule(table, self._close_after_us)
        # Ids of open shards, in the order in which they are to be closed; some may be closed or deleted already.
        self._closing_order: deque[int] = deque()
        self.note = self._schedule.note
        """Have the next look visit a shard: call it after each change of its settings or segments, and when a shard
        with `Shard.tells_appends` publishes."""
        for shard in table.open_shards():
            self.note_opened(shard)
        table.opening = self.note_opened

    def note_opened(self, shard: Shard) -> None:
        """Note that a shard was opened: the next look visits it, and it may be closed when nothing uses it."""
        self._schedule.note(shard)
        self._may_close_later(shard)

    def _may_close_later(self, shard: Shard) -> None:
        if not shard.in_closing_order:
            shard.in_closing_order = True
            self._closing_order.append(shard.shard_id)

    async def open_shards(self) -> None:
        """Open the shards with a time limit: they must be checked even if no client uses them."""
        step = TimeSlice()
        for shard_id, record in self._table.catalogue.records():
            if record.config.retention != _UNBOUNDED:
                self._table.by_id(shard_id)
            if step.is_over:
                await step.rest()

    def retain(self, shard: Shard) -> None:
        """Decide the trim that the shard's retention requires, and limit the size of its memory segments."""
        if shard.deleted or shard.damage or not shard.segments:
            return
        retention = shard.config.retention
        if retention != _UNBOUNDED:
            # Nothing is due while the oldest segment is kept; lost records before it are a gap for readers.
            self._trim(shard, due(retention, shard.segments, self._expiry_us()))
        if not retention.max_bytes and self._defaults.memory_max_bytes:
            self._bound_memory(shard)

    def _trim(self, shard: Shard, offset: int) -> None:
        if offset > max(shard.segments[0].base_offset, shard.start_offset, shard.trim_decided):
            shard.trim_decided = min(offset, shard.published_offset)
            self._commands.trim_nowait(shard, shard.trim_decided)

    def _bound_memory(self, shard: Shard) -> None:
        """Drop the oldest memory segments of a shard without a retention of its own when they exceed the default bound.

        After log segments this leaves a gap: records in files are kept until a retention trims them.
        """
        memory = [segment for segment in shard.segments if segment.kind is SegmentKind.MEMORY]
        over = sum(segment.size_bytes for segment in memory) - self._defaults.memory_max_bytes
        for segment in memory:
            if over <= 0 or not segment.closed or segment is shard.published_segment:
                return
            over -= segment.size_bytes
            if segment is shard.segments[0] or segment.base_offset <= shard.trim_decided:
                self._trim(shard, segment.next_offset)
            else:
                shard.segments.remove(segment)
                shard.note_loss(segment.next_offset, segment.last_lsn)
                self._drop([segment])

    async def close_idle(self) -> None:
        """Close open shards that are not used, those beyond the number that may stay open.

        First come those that were opened, or could not be closed, the longest ago.

        Shards that need regular checks stay open: those with a retention of their own, and those whose active log
        segment will be closed by age. One call examines a limited number of shards that cannot be closed; the next
        one goes on behind them.
        """
        step = TimeSlice()
        refused = 0
        for _ in range(len(self._closing_order)):
            if not (self._table.may_close() and refused < _MOST_REFUSED) and not self._has_many_removed():
                return
            # No variable but this one keeps a closed shard: freeing many at once would be one long step.
            shard = self._table.still_open(self._closing_order.popleft())
            if shard is not None:
                refused += not self._closed_if_idle(shard)
            if step.is_over:
                await step.rest()

    def _has_many_removed(self) -> bool:
        """Whether most of the shards in the order are not open any more: they are taken out, also if none is closed."""
        return len(self._closing_order) > 2 * self._table.open_count + _MOST_REFUSED

    def _closed_if_idle(self, shard: Shard) -> bool:
        """Close a shard that was taken out of the order, or put it back; False if it stays open."""
        shard.in_closing_order = False
        if self._is_kept_open(shard):
            # It is put back when it is visited after that has changed.
            return False
        if not self._table.may_close() or not shard.is_at_rest or self._is_waiting(shard):
            self._may_close_later(shard)
            return False
        self._closing(shard)
        self._table.close(shard)
        return True

    def _is_kept_open(self, shard: Shard) -> bool:
        """Whether a shard stays open until something changes about which `note` is called."""
        active = shard.active()
        return (
            bool(shard.damage)
            or shard.in_memory_mode
            or shard.config.retention != _UNBOUNDED
            or (active is not None and self._is_for_conversion_one_day(active))
        )

    async def apply(self) -> None:
        """Trim records beyond their retention; close active segments that are due and shards that are not used."""
        now_us, monotonic_us = self._expiry_us(), self._monotonic_us()
        step = TimeSlice()
        for shard in self._schedule.take(now_us, monotonic_us):
            if shard is not None:
                self._visit(shard, now_us, monotonic_us)
            if step.is_over:
                self._committer.write_if_long()
                await step.rest()
        self._committer.kick()
        await trio.lowlevel.checkpoint()
        await self.close_idle()

    def _visit(self, shard: Shard, now_us: int, monotonic_us: int) -> None:
        """Decide all that is due in a shard, and when to visit it again."""
        active = shard.active()
        if active is not None and not shard.damage:
            is_too_old = self._is_outdated(shard, active, now_us)
            if is_too_old or self._is_for_conversion(shard, active, now_us, monotonic_us):
                self._commands.roll_nowait(shard)
        self.retain(shard)
        if not shard.damage:
            self._schedule.visited(shard, due_us=self._due_us(shard), tells_appends=self._may_be_due_by_append(shard))
        if not self._is_kept_open(shard):
            self._may_close_later(shard)

    def _due_us(self, shard: Shard) -> int | None:
        """The earliest time of day at which age makes something due in a shard, unless more is appended; None if never.

        What is due now and could not be decided, since its records are not published yet, has a time in the past: the
        next look visits the shard again.
        """
        times = []
        max_age_us = shard.config.retention.max_age_s * _SECOND_US
        active = shard.active()
        if active is not None and active.next_offset > active.base_offset:
            if max_age_us:
                times.append(active.newest_append_us + max_age_us)
            if self._is_for_conversion_one_day(active):
                times.append(active.created_us + int(self._close_after_us))
        if max_age_us:
            decided = max(shard.start_offset, shard.trim_decided)
            oldest = next((each for each in shard.segments if each.next_offset > decided), None)
            if oldest is not None and oldest.closed:
                times.append(oldest.newest_append_us + max_age_us)
        return min(times, default=None)

    def _may_be_due_by_append(self, shard: Shard) -> bool:
        """Whether an append can make something due in a shard before the time that `_due_us` returns.

        Each append counts for a bound of bytes or records. The first one in a segment begins the time to its closing.
        """
        retention = shard.config.retention
        if retention.max_bytes or retention.max_records or shard.in_memory_mode:
            return True
        active = shard.active()
        if (active is None or active.next_offset == active.base_offset) and (
            self._conversion.enabled or retention.max_age_s
        ):
            return True
        return any(segment.kind is SegmentKind.MEMORY for segment in shard.segments)

    def _is_outdated(self, shard: Shard, active: Segment, now_us: int) -> bool:
        """Whether all records of the active segment are too old: after it is closed, it can be trimmed."""
        max_age = shard.config.retention.max_age_s
        return (
            max_age > 0
            and active.next_offset > active.base_offset
            and now_us - active.newest_append_us > max_age * _SECOND_US
        )

    def _is_for_conversion(self, shard: Shard, active: Segment, now_us: int, monotonic_us: int) -> bool:
        """Whether the active segment is old enough to be closed, so that it is converted to Parquet.

        Its age is the elapsed time since it was first seen here, or the difference of two times of day if that is more:
        only these tell the age of a segment from before the start. They alone are not enough. When the system's clock
        was set back, a segment is of a time that is still to come, for as long as append times do not advance.
        """
        if not self._is_for_conversion_one_day(active):
            return False
        if active.seen_since_us is None:
            self._schedule.note_seen(shard, active, monotonic_us)
            return now_us - active.created_us > self._close_after_us
        return max(now_us - active.created_us, monotonic_us - active.seen_since_us) > self._close_after_us

    def _is_for_conversion_one_day(self, active: Segment) -> TypeGuard[LogSegment]:
        """Whether it will be, at some age."""
        return self._conversion.enabled and isinstance(active, LogSegment) and active.next_offset > active.base_offset
