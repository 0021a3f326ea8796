"""Retention, applied from time to time: records that are too old or too many are trimmed, old active segments closed.

Trims are decisions in the journal, like those that clients request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import trio

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


class SegmentRetention:
    """Applies the retention of one engine's shards.

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

    async def open_shards(self) -> None:
        """Open the shards with a time limit: they must be checked even if no client uses them."""
        step = TimeSlice()
        for shard_id, record in self._table.catalogue.records():
            if record.config.retention != Retention():
                self._table.by_id(shard_id)
            if step.is_over:
                await step.rest()

    def retain(self, shard: Shard) -> None:
        """Decide the trim that the shard's retention requires, and limit the size of its memory segments."""
        if shard.deleted or shard.damage or not shard.segments:
            return
        retention = shard.config.retention
        if retention != Retention():
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
        """Close open shards that are not used: the oldest beyond the number that may stay open.

        Shards that need regular checks stay open: those with a retention of their own, and those whose active log
        segment will be closed by age.
        """
        step = TimeSlice()
        if not self._table.may_close():
            return
        remaining = self._table.open_shards()
        remaining.reverse()
        while remaining and self._table.may_close():
            # No list keeps the closed shards: freeing all of them at once would be one long step.
            shard = remaining.pop()
            active = shard.active()
            if (
                shard.is_at_rest
                and shard.config.retention == Retention()
                and not self._is_waiting(shard)
                and (active is None or not self._is_for_conversion_one_day(active))
            ):
                self._closing(shard)
                self._table.close(shard)
            if step.is_over:
                await step.rest()

    async def apply(self) -> None:
        """Trim records beyond their retention; close active segments that are due and shards that are not used."""
        now, monotonic_us = self._expiry_us(), self._monotonic_us()
        step = TimeSlice()
        for shard in self._table.open_shards():
            active = shard.active()
            if (
                active is not None
                and not shard.damage
                and (self._is_outdated(shard, active, now) or self._is_for_conversion(active, now, monotonic_us))
            ):
                self._commands.roll_nowait(shard)
            self.retain(shard)
            if step.is_over:
                self._committer.write_if_long()
                await step.rest()
        self._committer.kick()
        await trio.lowlevel.checkpoint()
        await self.close_idle()

    def _is_outdated(self, shard: Shard, active: Segment, now_us: int) -> bool:
        """Whether all records of the active segment are too old: after it is closed, it can be trimmed."""
        max_age = shard.config.retention.max_age_s
        return (
            max_age > 0
            and active.next_offset > active.base_offset
            and now_us - active.newest_append_us > max_age * 1_000_000
        )

    def _is_for_conversion(self, active: Segment, now_us: int, monotonic_us: int) -> bool:
        """Whether the active segment is old enough to be closed, so that it is converted to Parquet.

        Its age is the elapsed time since it was first seen here, or the difference of two times of day if that is more:
        only these tell the age of a segment from before the start. They alone are not enough. When the system's clock
        was set back, a segment is of a time that is still to come, for as long as append times do not advance.
        """
        if not self._is_for_conversion_one_day(active):
            return False
        if active.seen_since_us is None:
            active.seen_since_us = monotonic_us
        age_us = max(now_us - active.created_us, monotonic_us - active.seen_since_us)
        return age_us > self._conversion.close_after_s * 1_000_000

    def _is_for_conversion_one_day(self, active: Segment) -> TypeGuard[LogSegment]:
        """Whether it will be, at some age."""
        return self._conversion.enabled and isinstance(active, LogSegment) and active.next_offset > active.base_offset
