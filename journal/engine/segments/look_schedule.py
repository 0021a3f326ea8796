"""Which open shards a look of the background work has to visit: those that have changed, and those whose time has come.

A shard is visited at the first look after it was opened. Each visit then says what can make something due in it: a
time, or the next append. Every other change, such as one of its settings or segments, is noted by the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from journal.engine.state.shard_table import ShardTable
from shards.segments.due_times import DueTimes
from shards.segments.log_segment import LogSegment
from shards.segments.shard import Shard


class LookSchedule:
    """The shards that the next looks visit, by id: it keeps no shard open and none in memory.

    Args:
        table: The shards. Those that are not open are not visited; they are noted again when they are opened.
        longest_age_us: Elapsed time after which a shard is visited again if its active log segment is still the one
            that was seen, see `note_seen`.
    """

    def __init__(self, table: ShardTable, longest_age_us: float) -> None:
        self._table = table
        self._longest_age_us = longest_age_us
        # Not a set: the order of the visits has to be the same in each run of a simulation.
        self._changed: dict[int, None] = {}
        self._due_times = DueTimes()
        # By elapsed time, which only rises: the oldest are at the beginning.
        self._seen: deque[tuple[int, list[int]]] = deque()

    def note(self, shard: Shard) -> None:
        """Have the next look visit a shard. It costs as much as putting a number into a dictionary."""
        shard.tells_appends = False
        self._changed[shard.shard_id] = None

    def note_seen(self, shard: Shard, segment: LogSegment, monotonic_us: int) -> None:
        """Note that a look visits a shard whose active segment has its first records, and have it visited later.

        Args:
            shard: The shard.
            segment: Its active segment, which was not seen before.
            monotonic_us: The elapsed time at the beginning of the look.
        """
        segment.seen_since_us = monotonic_us
        if not self._seen or self._seen[-1][0] != monotonic_us:
            self._seen.append((monotonic_us, []))
        self._seen[-1][1].append(shard.shard_id)

    def visited(self, shard: Shard, *, due_us: int | None, tells_appends: bool) -> None:
        """A shard was visited: say what can make something due in it.

        Args:
            shard: The shard.
            due_us: Time of day at which something may be due, if no append comes before; None if time changes nothing.
            tells_appends: Whether an append may make something due earlier.
        """
        shard.tells_appends = tells_appends
        if due_us is not None:
            self._due_times.put(shard, due_us)

    def take(self, now_us: int, monotonic_us: int) -> Iterator[Shard | None]:
        """The shards to visit in this look, one for each step; None for a step that found none.

        What is noted between the steps is visited in the next look.

        Args:
            now_us: The time of day by which ages are computed.
            monotonic_us: The elapsed time.
        """
        changed, self._changed = self._changed, {}
        due_times = self._due_times.take(now_us)
        for shard_id in changed:
            yield self._table.still_open(shard_id)
        for due in due_times:
            while due.shard_ids:
                shard = self._table.still_open(due.shard_ids.pop())
                if shard is not None and shard.due is due:
                    shard.due = None
                    yield shard
                else:
                    yield None
        while self._seen and monotonic_us - self._seen[0][0] > self._longest_age_us:
            seen_us, shard_ids = self._seen.popleft()
            while shard_ids:
                shard = self._table.still_open(shard_ids.pop())
                active = None if shard is None else shard.active()
                yield shard if isinstance(active, LogSegment) and active.seen_since_us == seen_us else None
