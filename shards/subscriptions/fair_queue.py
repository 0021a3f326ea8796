"""The order in which a subscription by filter reads its shards, and the lsn up to which everything has been read.

Such a subscription reads every shard that matches a filter from an lsn on. Shards are read in turn, so its last read
alone does not tell its progress: that is computed here. The engines do the reading and waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar


class Standing:
    """The position of a subscription in one shard.

    Attributes:
        shard_id: Id of the shard.
        offset: Next record to read; None while the first offset in this shard is not known.
        end: First record after the subscription's last lsn, once it is known.
        queued: It waits for its turn.
        goal: Offset that must be reached in the present round; -1 if there is none.
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

    `next` returns a position; the caller reads there and then reports the result with `done`. One at a time.

    Args:
        start_lsn: Everything above it is to be read.
        until_lsn: Nothing above it is to be read, if it is given.
        committed_lsn: Returns the lsn up to which everything is published.
        published: Returns the offset up to which a position's shard is published.

    Attributes:
        finding: Shards with something to read may still be missing here, so no progress can be reported.
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
        # In the present round: how many positions at the head of the queue have not been read yet, and how many have
        # been read but have not reached their goal.
        self._without_turn = 0
        self._goals = 0
        self._postponed: set[int] = set()
        self.finding = False

    def __contains__(self, shard_id: int) -> bool:
        return shard_id in self._standings

    def __len__(self) -> int:
        return len(self._standings)

    def get(self, shard_id: int) -> T | None:
        """The position in a shard, None if the shard is not part of the subscription."""
        return self._standings.get(shard_id)

    @property
    def waiting_count(self) -> int:
        """Number of positions that wait for their turn."""
        return len(self._ready)

    def standings(self) -> list[T]:
        """All positions."""
        return list(self._standings.values())

    def attach(self, standing: T) -> bool:
        """Add a shard, which then waits for its turn; True if no shard waited before."""
        self._standings[standing.shard_id] = standing
        return self.queue(standing)

    def queue(self, standing: T) -> bool:
        """Queue a shard that may have something to read; True if no shard waited before."""
        if standing.queued:
            return False
        standing.queued = True
        self._ready.append(standing)
        return len(self._ready) == 1

    def next(self) -> T | None:
        """The shard to read next, None if there is nothing to read."""
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
        """Note that a shard has been read in its turn; with ``more`` it waits for another one."""
        if self._standings.get(standing.shard_id) is not standing:
            return
        if standing.goal >= 0 and (not more or (standing.offset is not None and standing.offset >= standing.goal)):
            standing.goal = -1
            self._goals -= 1
        if more:
            self.queue(standing)

    def postpone(self, standing: T) -> None:
        """Postpone a shard that cannot be read now: no progress is reported before it is resumed."""
        if self._standings.get(standing.shard_id) is standing:
            self._postponed.add(standing.shard_id)

    def resume(self, standing: T) -> bool:
        """Queue a postponed shard again; False if the subscription does not have it any more."""
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
        """Remove a shard that was deleted or stopped."""
        if self._standings.get(standing.shard_id) is standing:
            del self._standings[standing.shard_id]
            self._postponed.discard(standing.shard_id)
            if standing.goal >= 0:
                self._goals -= 1

    def clear(self) -> dict[int, T]:
        """End the subscription; returns its positions, of which nothing is kept here."""
        standings, self._standings = self._standings, {}
        self._ready = deque()
        self._postponed.clear()
        self._without_turn = self._goals = 0
        return standings

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read now."""
        return not self._ready and not self.finding

    @property
    def is_over(self) -> bool:
        """Whether everything up to the subscription's last lsn has been read."""
        is_read = self.is_idle and not self._postponed
        return self._until_lsn is not None and is_read and self._committed_lsn() >= self._until_lsn

    def reached_lsn(self) -> int:
        """The lsn up to which everything of the subscription has been read. Call it between two turns, not too often.

        While shards always wait, this goes in rounds: when every shard that waited at the beginning of a round has been
        read up to its published end of that time, everything that was committed then has been read. To record the ends
        of all shards at once would be one long step; the published end at a shard's first turn is at least as high.
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
