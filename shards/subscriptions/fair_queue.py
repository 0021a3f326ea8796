"""The shards of a feed that have something to read, in turn, and the lsn up to which all of it has been read.

A feed reads every shard that matches a filter from an lsn on. Shards take turns, so what it has read last says nothing
about what it has read altogether: that is told here. Reading itself lies with the engines, and so does waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar


class Standing:
    """Where a feed stands in one shard.

    Attributes:
        shard_id: The shard's number.
        offset: Next record to read; None before anybody has looked where the feed begins in this shard.
        end: First record that the feed does not give, once it is known: it lies above the feed's last lsn.
        queued: It waits for its turn.
        goal: Offset whose passing a round waits for; -1 if none does.
    """

    __slots__ = ("end", "goal", "offset", "queued", "shard_id")

    def __init__(self, shard_id: int, offset: int | None) -> None:
        self.shard_id = shard_id
        self.offset = offset
        self.end: int | None = None
        self.queued = False
        self.goal = -1


T = TypeVar("T", bound=Standing)


class FairQueue(Generic[T]):
    """See the module.

    `next` hands a standing out; whoever takes it reads and then says how it went with `done`. One at a time.

    Args:
        start_lsn: Everything above it is to be read.
        until_lsn: And nothing above this, if it is given.
        committed_lsn: Tells the lsn up to which everything is published that ever will be.
        published: Tells the offset up to which a standing's shard is published.

    Attributes:
        finding: Shards that have something to read may still be missing here: nothing can be said of the whole.
    """

    def __init__(
        self, start_lsn: int, until_lsn: int | None, committed_lsn: Callable[[], int], published: Callable[[T], int]
    ) -> None:
        self._until_lsn = until_lsn
        self._committed_lsn = committed_lsn
        self._published = published
        self._standings: dict[int, T] = {}
        self._ready: deque[T] = deque()
        self._reached_lsn = self._round_lsn = start_lsn
        # Of the round: how many at the head of those that wait have had no turn in it yet, and how many have had one
        # but have not reached their goal.
        self._without_turn = 0
        self._goals = 0
        self._postponed: set[int] = set()
        self.finding = False

    def __contains__(self, shard_id: int) -> bool:
        return shard_id in self._standings

    def __len__(self) -> int:
        return len(self._standings)

    def get(self, shard_id: int) -> T | None:
        """Where the feed stands in a shard, None if it is no shard of the feed."""
        return self._standings.get(shard_id)

    @property
    def waiting_count(self) -> int:
        """How many wait for their turn."""
        return len(self._ready)

    def standings(self) -> list[T]:
        """All of them."""
        return list(self._standings.values())

    def attach(self, standing: T) -> bool:
        """Take a shard in, which waits for its turn then; True if nothing waited before."""
        self._standings[standing.shard_id] = standing
        return self.queue(standing)

    def queue(self, standing: T) -> bool:
        """There may be something to read in this shard; True if nothing waited before."""
        if standing.queued:
            return False
        standing.queued = True
        self._ready.append(standing)
        return len(self._ready) == 1

    def next(self) -> T | None:
        """The shard whose turn it is, None when there is nothing to read."""
        while self._ready:
            standing = self._ready.popleft()
            standing.queued = False
            is_of_round = self._without_turn > 0
            if is_of_round:
                self._without_turn -= 1
            if self._standings.get(standing.shard_id) is standing:
                if is_of_round:
                    standing.goal = self._published(standing)
                    self._goals += 1
                return standing
        return None

    def done(self, standing: T, *, more: bool) -> None:
        """What was to be read of a shard in this turn is read; with ``more`` it waits for another one."""
        if self._standings.get(standing.shard_id) is not standing:
            return
        if standing.goal >= 0 and (not more or (standing.offset is not None and standing.offset >= standing.goal)):
            standing.goal = -1
            self._goals -= 1
        if more:
            self.queue(standing)

    def postpone(self, standing: T) -> None:
        """A shard whose turn it is cannot be read now: nothing is said of the whole before it is resumed."""
        if self._standings.get(standing.shard_id) is standing:
            self._postponed.add(standing.shard_id)

    def resume(self, standing: T) -> bool:
        """A postponed shard waits for its turn again; False if the feed does not have it any more."""
        if self._standings.get(standing.shard_id) is not standing:
            return False
        self._postponed.discard(standing.shard_id)
        self.queue(standing)
        return True

    @property
    def has_postponed(self) -> bool:
        """Whether a shard has something to read that cannot be read now."""
        return bool(self._postponed)

    def remove(self, standing: T) -> None:
        """A shard is gone."""
        if self._standings.get(standing.shard_id) is standing:
            del self._standings[standing.shard_id]
            self._postponed.discard(standing.shard_id)
            if standing.goal >= 0:
                self._goals -= 1

    def clear(self) -> dict[int, T]:
        """The feed is over; give what it had, of which nothing is known here any more."""
        standings, self._standings = self._standings, {}
        self._ready = deque()
        self._postponed.clear()
        self._without_turn = self._goals = 0
        return standings

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read just now."""
        return not self._ready and not self.finding

    @property
    def is_over(self) -> bool:
        """Whether everything up to the feed's last lsn has been read."""
        is_read = self.is_idle and not self._postponed
        return self._until_lsn is not None and is_read and self._committed_lsn() >= self._until_lsn

    def reached_lsn(self) -> int:
        """The lsn up to which everything of the feed has been read. Ask it between two turns, not too often.

        While something always waits, it goes in rounds: when every shard that waited at the beginning of a round has
        been read as far as it was published then, everything committed by then has been read. To note for all of them
        at once how far that is would be one long step; what a shard has published at its first turn is no less.
        """
        if not self.finding and not self._postponed:
            if not self._ready:
                self._reached_lsn = max(self._reached_lsn, self._committed_lsn())
            elif not self._goals and not self._without_turn:
                self._reached_lsn = max(self._reached_lsn, self._round_lsn)
                self._round_lsn = self._committed_lsn()
                self._without_turn = len(self._ready)
        if self._until_lsn is not None:
            return min(self._reached_lsn, max(self._until_lsn, 0))
        return self._reached_lsn
