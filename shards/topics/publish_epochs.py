"""Which shards have published something newer than an lsn, found without looking at the others.

Shards lie in *eras*, in the order in which they published last. An era ends when it has become large, or when somebody
asks for a new one; so "has this shard published since then?" is one comparison on the way of every publish. What the
shards hold, and who wants to know of them, is no business of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

_ERA_SHARDS = 1000
_MOST_ERAS = 256


class Publishing(Protocol):
    """What is asked of a shard.

    Attributes:
        era: The era in which it published last, None before its first time; kept here alone.
    """

    era: PublishEpoch[Any] | None

    @property
    def shard_id(self) -> int:
        """Its number."""


S = TypeVar("S", bound=Publishing)


class PublishEpoch(Generic[S]):
    """Shards that published last while this was the newest era.

    Attributes:
        number: Rises from era to era, from 1. One made of two has the lower number.
        shards: By id.
        closed: Ids of those that nobody has opened since they were closed.
        next_lsn: What they or any shard of an older era had published when it ended lies below this lsn.
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
    """All shards that have published; the cost of a question follows the answer, the memory the number of shards.

    Args:
        next_lsn: Tells the lsn that is given out next: what is published later may be below it, what is published now
            is.

    Attributes:
        newest: The era of the shards that publish now. Whoever publishes compares it with the shard's own and calls
            `note` if they differ.
    """

    def __init__(self, next_lsn: Callable[[], int]) -> None:
        self._next_lsn = next_lsn
        self._ended: list[PublishEpoch[S]] = []
        self._closed: dict[int, PublishEpoch[S]] = {}
        self.newest: PublishEpoch[S] = PublishEpoch(1)

    def load(self, shards: Sequence[S], last_lsn: Callable[[S], int]) -> None:
        """Take in the shards of a store that is being opened: what each published last says where it lies.

        REQUIRES: nothing has published since the store was opened.
        """
        in_order = sorted(shards, key=last_lsn)
        for start in range(0, len(in_order), _ERA_SHARDS):
            some = in_order[start : start + _ERA_SHARDS]
            for shard in some:
                self.note(shard)
            self.begin_era(last_lsn(some[-1]) + 1)

    def begin_era(self, next_lsn: int | None = None) -> int:
        """End the newest era, so that every shard is noted at its next publish; return the new one's number."""
        ended = self.newest
        self.newest = PublishEpoch(ended.number + 1)
        if len(ended):
            ended.next_lsn = self._next_lsn() if next_lsn is None else next_lsn
            self._ended.append(ended)
            if len(self._ended) > _MOST_ERAS:
                self._merge()
        return self.newest.number

    def note(self, shard: S) -> int:
        """A shard is about to publish; return the number of the era in which it did so last, 0 if it never did."""
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
        """A shard is gone."""
        if shard.era is not None:
            shard.era.shards.pop(shard.shard_id, None)
            shard.era = None
        elif (era := self._closed.pop(shard.shard_id, None)) is not None:
            era.closed.discard(shard.shard_id)

    def close(self, shard: S) -> None:
        """Remember the shard by its id alone: its object goes. Another one for the same shard begins without an era."""
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
        """Drop the empty eras, or make one of the two neighbours with the fewest shards."""
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
