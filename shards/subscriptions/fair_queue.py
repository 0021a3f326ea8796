"""The order in which a subscription by filter reads its shards, and the lsn up to which everything has been read.

Such a subscription reads every shard that matches a filter from an lsn on. Shards are read in turn, so its last read
alone does not tell its progress: that is computed here. The engines do the reading and waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar


class QueuedPosition:
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


T = TypeVar("T", bound=QueuedPosition)


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
        self._positions: dict[int, T] = {}
        self._ready: deque[T] = deque()
        self._reached_lsn = self._round_lsn = start_lsn
        # In the present round: how many positions at the head of the queue have not been read yet, and how many have
        # been read but have not reached their goal.
        self._without_turn = 0
        self._goals = 0
        self._postponed: set[int] = set()
        self.finding = False

    def __contains__(self, shard_id: int) -> bool:
        return shard_id in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, shard_id: int) -> T | None:
        """The position in a shard, None if the shard is not part of the subscription."""
        return self._positions.get(shard_id)

    @property
    def waiting_count(self) -> int:
        """Number of positions that wait for their turn."""
        return len(self._ready)

    def attach(self, position: T) -> bool:
        """Add a shard, which then waits for its turn; True if no shard waited before."""
        self._positions[position.shard_id] = position
        return self.queue(position)

    def queue(self, position: T) -> bool:
        """Queue a shard that may have something to read; True if no shard waited before."""
        if position.queued:
            return False
        position.queued = True
        self._ready.append(position)
        return len(self._ready) == 1

    def next(self) -> T | None:
        """The shard to read next, None if there is nothing to read."""
        while self._ready:
            position = self._ready.popleft()
            position.queued = False
            is_of_round = self._without_turn > 0
            if is_of_round:
                self._without_turn -= 1
            if self._positions.get(position.shard_id) is position:
                if is_of_round:
                    position.goal = self._published(position)
                    self._goals += 1
                return position
        return None

    def done(self, position: T, *, more: bool) -> None:
        """Note that a shard has been read in its turn; with ``more`` it waits for another one."""
        if self._positions.get(position.shard_id) is not position:
            return
        if position.goal >= 0 and (not more or (position.offset is not None and position.offset >= position.goal)):
            position.goal = -1
            self._goals -= 1
        if more:
            self.queue(position)

    def postpone(self, position: T) -> None:
        """Postpone a shard that cannot be read now: no progress is reported before it is resumed."""
        if self._positions.get(position.shard_id) is position:
            self._postponed.add(position.shard_id)

    def resume(self, position: T) -> bool:
        """Queue a postponed shard again; False if the subscription does not have it any more."""
        if self._positions.get(position.shard_id) is not position:
            return False
        self._postponed.discard(position.shard_id)
        self.queue(position)
        return True

    @property
    def has_postponed(self) -> bool:
        """Whether a shard has something to read that cannot be read now."""
        return bool(self._postponed)

    def remove(self, position: T) -> None:
        """Remove a shard that was deleted or stopped."""
        if self._positions.get(position.shard_id) is position:
            del self._positions[position.shard_id]
            self._postponed.discard(position.shard_id)
            if position.goal >= 0:
                self._goals -= 1

    def clear(self) -> dict[int, T]:
        """End the subscription; returns its positions, of which nothing is kept here."""
        positions, self._positions = self._positions, {}
        self._ready = deque()
        self._postponed.clear()
        self._without_turn = self._goals = 0
        return positions

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
