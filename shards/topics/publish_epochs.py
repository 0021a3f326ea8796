"""Finds the shards that have published something newer than an lsn, without examining the others.

Shards are grouped into *epochs*, in the order of their last publish. An epoch ends when it has become large, or when a
caller requests a new one; so "has this shard published since then?" is one comparison for every publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

_ERA_SHARDS = 1000
_MOST_ERAS = 256


class Publishing(Protocol):
    """The properties of a shard that are used here.

    Attributes:
        era: The epoch of its last publish, None before the first one; set only by this module.
    """

    era: PublishEpoch[Any] | None

    @property
    def shard_id(self) -> int:
        """Id of the shard."""


S = TypeVar("S", bound=Publishing)


class PublishEpoch(Generic[S]):
    """Shards whose last publish was while this was the newest epoch.

    Attributes:
        number: Rises from epoch to epoch, from 1. A merged one has the lower number.
        shards: Shards by id.
        closed: Ids of those that were closed and not opened again.
        next_lsn: Everything that these or shards of older epochs had published at its end is below this lsn.
    """

    __slots__ = ("closed", "next_lsn", "number", "shards")

    def __init__(self, number: int) -> None:
        self.number = number
        self.shards: dict[int, S] = {}
        self.closed: set[int] = set()
        self.next_lsn = 0

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.shards) + len(self.closed)


class PublishEpochs(Generic[S]):
    """All shards that have published; the cost of a query depends on its result, the memory on the number of shards.

    Args:
        next_lsn: Returns the lsn that is assigned next: all published lsns are below it, later ones may be, too.

    Attributes:
        newest: The epoch of the shards that publish now. Before a publish, the caller compares it with the shard's own
            epoch and calls `note` if they differ.
    """

    def __init__(self, next_lsn: Callable[[], int]) -> None:
        self._next_lsn = next_lsn
        self._ended: list[PublishEpoch[S]] = []
        self._closed: dict[int, PublishEpoch[S]] = {}
        self.newest: PublishEpoch[S] = PublishEpoch(1)

    def load(self, shards: Sequence[S], last_lsn: Callable[[S], int]) -> None:
        """Add the shards of a store that is being opened, sorted by the lsn of their last publish.

        REQUIRES: nothing has published since the store was opened.
        """
        in_order = sorted(shards, key=last_lsn)
        for start in range(0, len(in_order), _ERA_SHARDS):
            some = in_order[start : start + _ERA_SHARDS]
            for shard in some:
                self.note(shard)
            self.begin_era(last_lsn(some[-1]) + 1)

    def begin_era(self, next_lsn: int | None = None) -> int:
        """End the newest epoch, so that every shard is noted at its next publish; returns the number of the new one."""
        ended = self.newest
        self.newest = PublishEpoch(ended.number + 1)
        if len(ended):
            ended.next_lsn = self._next_lsn() if next_lsn is None else next_lsn
            self._ended.append(ended)
            if len(self._ended) > _MOST_ERAS:
                self._merge()
        return self.newest.number

    def note(self, shard: S) -> int:
        """Note that a shard is about to publish; returns the number of its epoch before, 0 if it never published."""
        before = shard.era
        if before is not None:
            before.shards.pop(shard.shard_id, None)
        elif (before := self._closed.pop(shard.shard_id, None)) is not None:
            before.closed.discard(shard.shard_id)
        if len(self.newest) >= _ERA_SHARDS:
            self.begin_era()
        self.newest.shards[shard.shard_id] = shard
        shard.era = self.newest
        return before.number if before is not None else 0

    def discard(self, shard: S) -> None:
        """Remove a deleted shard."""
        if shard.era is not None:
            shard.era.shards.pop(shard.shard_id, None)
            shard.era = None
        elif (era := self._closed.pop(shard.shard_id, None)) is not None:
            era.closed.discard(shard.shard_id)

    def close(self, shard: S) -> None:
        """Keep only the id of a shard that is closed. A new object for the same shard begins without an epoch."""
        era = shard.era
        if era is not None:
            del era.shards[shard.shard_id]
            era.closed.add(shard.shard_id)
            self._closed[shard.shard_id] = era
            shard.era = None

    def newer_than(self, lsn: int) -> list[S]:
        """All shards that may have published something with a higher lsn, and some others, in any order.

        Those that were closed are in `closed_newer_than`.
        """
        return [shard for era in self._eras_above(lsn) for shard in era.shards.values()]

    def closed_newer_than(self, lsn: int) -> list[int]:
        """Ids of the shards that were closed and may have published something with a higher lsn, and of some others.

        They may be open again, as long as they have not published.
        """
        return [shard_id for era in self._eras_above(lsn) for shard_id in era.closed]

    def _eras_above(self, lsn: int) -> Iterator[PublishEpoch[S]]:
        yield self.newest
        for era in reversed(self._ended):
            if era.next_lsn <= lsn + 1:
                return
            yield era

    def _merge(self) -> None:
        """Drop the empty epochs, or merge the two neighbours with the fewest shards."""
        eras = self._ended = [era for era in self._ended if len(era)]
        if len(eras) <= _MOST_ERAS:
            return
        sizes = [len(era) for era in eras]
        at = min(range(len(eras) - 1), key=lambda at: sizes[at] + sizes[at + 1])
        older, newer = eras[at], eras[at + 1]
        small, large = (older, newer) if sizes[at] < sizes[at + 1] else (newer, older)
        for shard in small.shards.values():
            shard.era = large
        for shard_id in small.closed:
            self._closed[shard_id] = large
        large.shards |= small.shards
        large.closed |= small.closed
        large.number, large.next_lsn = older.number, newer.next_lsn
        eras[at : at + 2] = [large]
