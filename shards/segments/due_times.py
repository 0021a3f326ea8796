"""Lists of shards by the time at which something may be due in them.

A look at what is due takes the lists whose time has come. Its cost depends on the shards in these, not on all shards.
Pure: the callers give the times.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol

WIDTH_US: Final = 8_000_000
"""A shard may be in a list whose time is earlier than its own, by less than this: so there are few lists."""


class DueTime:
    """The shards of one list.

    Attributes:
        time_us: Its time in microseconds; by which clock, the owner decides.
        shard_ids: Their ids. A shard of which `Listed.due` is not this list has left it.
    """

    __slots__ = ("shard_ids", "time_us")

    def __init__(self, time_us: int) -> None:
        self.time_us = time_us
        self.shard_ids: list[int] = []


class Listed(Protocol):
    """The properties of a shard that are used here.

    Attributes:
        due: The list that it is in; None if it is in none.
    """

    due: DueTime | None

    @property
    def shard_id(self) -> int:
        """Id of the shard."""


class DueTimes:
    """All lists of one engine. A shard is in one of them at most; what it has left before is skipped by the caller.

    A shard needs 8 bytes in a list: only its id, so that a shard that is closed or deleted is not kept in memory.
    """

    def __init__(self) -> None:
        self._lists: dict[int, DueTime] = {}
        self._times: list[int] = []

    def put(self, shard: Listed, due_us: int) -> None:
        """Have a shard taken at a time, or earlier.

        A shard in a list of an earlier time stays there. When that list is taken, the caller puts the shard into the
        list of its present time. So a time that is put off again and again costs nothing.

        Args:
            shard: The shard.
            due_us: When something may be due in it, in microseconds.
        """
        time_us = due_us - due_us % WIDTH_US
        if shard.due is not None and shard.due.time_us <= time_us:
            return
        due = self._lists.get(time_us)
        if due is None:
            due = self._lists[time_us] = DueTime(time_us)
            heapq.heappush(self._times, time_us)
        due.shard_ids.append(shard.shard_id)
        shard.due = due

    def take(self, now_us: int) -> list[DueTime]:
        """Remove and return the lists whose time has come, the earliest first.

        The caller sets `Listed.due` of their shards to None, unless it is another list.
        """
        taken = []
        while self._times and self._times[0] <= now_us:
            taken.append(self._lists.pop(heapq.heappop(self._times)))
        return taken
