"""What shards keep, looked at now and then: what is too old or too much goes, and what is open for long is closed.

Nothing is dropped here: a trim is decided like one that a client asks for.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from journal.engine.segments.flusher import slices
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.group_commit import Committer
from journal.engine.write.commands import Commands
from journal.settings.server import SealingConfig, ShardsConfig
from shards.model import Retention, SegmentKind
from shards.segments.log_segment import LogSegment
from shards.segments.retention import due
from shards.segments.segment import Segment
from shards.segments.shard import Shard

_LOOKED_AT_AT_ONCE = 500


class SegmentRetention:
    """Carries out the retention of one engine's shards.

    Args:
        defaults: What a shard keeps that says nothing else.
        sealing: When an open segment is to be closed, so that it can be sealed.
        table: The shards.
        commands: Decides.
        committer: Makes it durable.
        expiry_us: The time that ages are reckoned from.
        drop: Takes over segments of which only the memory has to go.
        closing: Called with a shard that is about to be closed.
        is_waiting: Whether a shard has changed and waits to be flushed or saved.
    """

    def __init__(
        self,
        *,
        defaults: ShardsConfig,
        sealing: SealingConfig,
        table: ShardTable,
        commands: Commands,
        committer: Committer,
        expiry_us: Callable[[], int],
        drop: Callable[[list[Segment]], None],
        closing: Callable[[Shard], None],
        is_waiting: Callable[[Shard], bool],
    ) -> None:
        self._defaults = defaults
        self._sealing = sealing
        self._table = table
        self._commands = commands
        self._committer = committer
        self._expiry_us = expiry_us
        self._drop = drop
        self._closing = closing
        self._is_waiting = is_waiting

    async def open_shards(self) -> None:
        """Open the shards that keep things for a time only: they must be looked at even if nobody uses them."""
        step = TimeSlice()
        for shard_id, record in self._table.catalogue.records():
            if record.config.retention != Retention():
                self._table.by_id(shard_id)
            if step.is_over:
                await step.rest()

    def retain(self, shard: Shard) -> None:
        """Decide the trim that the shard's retention asks for, and keep its memory segments within their bound."""
        if shard.deleted or shard.damage or not shard.segments:
            return
        retention = shard.config.retention
        if retention != Retention():
            # Nothing is due as long as the oldest segment stays; records lost before it are a gap that readers meet.
            self._trim(shard, due(retention, shard.segments, self._expiry_us()))
        if not retention.max_bytes:
            self._bound_memory(shard)

    def _trim(self, shard: Shard, offset: int) -> None:
        if offset > max(shard.segments[0].base_offset, shard.start_offset, shard.trim_decided):
            shard.trim_decided = min(offset, shard.published_offset)
            self._commands.trim_nowait(shard, shard.trim_decided)

    def _bound_memory(self, shard: Shard) -> None:
        """Let the oldest memory segments go when they hold more than a shard may that names no bound of its own.

        Behind log segments they leave a gap: what is in files stays until a retention says otherwise.
        """
        memory = [segment for segment in shard.segments if segment.kind is SegmentKind.MEMORY]
        over = sum(segment.size_bytes for segment in memory) - self._defaults.memory_max_bytes
        for segment in memory:
            if over <= 0 or not segment.sealed or segment is shard.published_segment:
                return
            over -= segment.size_bytes
            if segment is shard.segments[0] or segment.base_offset <= shard.trim_decided:
                self._trim(shard, segment.next_offset)
            else:
                shard.segments.remove(segment)
                shard.note_loss(segment.next_offset, segment.last_lsn)
                self._drop([segment])

    async def close_idle(self) -> None:
        """Close shards that were opened and are not used: the oldest beyond what may stay open.

        Those that are looked at from time to time stay open: with a retention of their own, or with an active log
        segment that will be closed when it is old enough.
        """
        step = TimeSlice()
        if not self._table.may_close():
            return
        remaining = self._table.open_shards()
        remaining.reverse()
        while remaining and self._table.may_close():
            # No list holds the closed ones: freeing all of them at its end would be one long step.
            shard = remaining.pop()
            active = shard.active()
            if (
                shard.is_at_rest
                and shard.config.retention == Retention()
                and not self._is_waiting(shard)
                and (active is None or not self._is_for_sealing_one_day(active))
            ):
                self._closing(shard)
                self._table.close(shard)
            if step.is_over:
                await step.rest()

    async def apply(self) -> None:
        """Trim what retention no longer keeps, and close what is to be sealed or is not used."""
        now = self._expiry_us()
        for some in slices(self._table.open_shards(), _LOOKED_AT_AT_ONCE):
            for shard in some:
                active = shard.active()
                if (
                    active is not None
                    and not shard.damage
                    and (self._is_outdated(shard, active, now) or self._is_for_sealing(active, now))
                ):
                    self._commands.roll_nowait(shard)
                self.retain(shard)
            self._committer.kick()
            await trio.lowlevel.checkpoint()
        await self.close_idle()

    def _is_outdated(self, shard: Shard, active: Segment, now_us: int) -> bool:
        """Whether nothing young is in the active segment: closed, it can go."""
        max_age = shard.config.retention.max_age_s
        return (
            max_age > 0
            and active.next_offset > active.base_offset
            and now_us - active.newest_append_us > max_age * 1_000_000
        )

    def _is_for_sealing(self, active: Segment, now_us: int) -> bool:
        """Whether the active segment is old and large enough to be closed, so that it becomes a Parquet file."""
        return self._is_for_sealing_one_day(active) and now_us - active.created_us > self._sealing.max_age_s * 1_000_000

    def _is_for_sealing_one_day(self, active: Segment) -> bool:
        """Whether it will be, when it is old enough."""
        sealing = self._sealing
        return (
            sealing.enabled
            and sealing.max_age_s > 0
            and isinstance(active, LogSegment)
            and active.next_offset > active.base_offset
            and active.size_bytes >= sealing.min_bytes
        )
