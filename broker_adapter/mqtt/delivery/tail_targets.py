"""Which filters a broker follows so that they cover all targets, and how they are found by first level. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from shards.topics.topic_filters import covers

Item = TypeVar("Item")

EVERYTHING: Final = "#"

_COMPARED: Final = 4


class ByFirstLevel(Generic[Item]):
    """Things by their filters. It finds candidates quickly for what may cover a filter, or may be covered by it.

    A filter that another one covers has the same first level, unless that of the other one is a wildcard.
    """

    def __init__(self) -> None:
        self._levels: dict[str, dict[str, Item]] = {}

    def add(self, target: str, item: Item) -> None:
        """Add a thing, or replace the one with this filter."""
        self._levels.setdefault(_level_of(target), {})[target] = item

    def remove(self, target: str) -> None:
        """Remove the thing with this filter."""
        first = _level_of(target)
        level = self._levels[first]
        del level[target]
        if not level:
            del self._levels[first]

    def which_may_cover(self, target: str) -> Iterator[Item]:
        """The things whose filters may cover a target."""
        for first in dict.fromkeys((_level_of(target), "#", "+")):
            yield from self._levels.get(first, {}).values()

    def which_it_may_cover(self, target: str) -> Iterator[Item]:
        """The things whose filters a target may cover."""
        first = _level_of(target)
        levels = self._levels.values() if first in ("#", "+") else [self._levels.get(first, {})]
        for level in levels:
            yield from level.values()


def _level_of(target: str) -> str:
    return target.split("/", 1)[0]


def first_level_of(target: str) -> str:
    """A filter that covers a target and everything else below its first level."""
    first = _level_of(target)
    return EVERYTHING if first in ("+", "#") else f"{first}/#"


def without_covered(targets: Iterable[str]) -> list[str]:
    """The targets that no other one covers, in a fixed order."""
    kept: dict[str, None] = {}
    by_level = ByFirstLevel[str]()
    for target in sorted(set(targets), key=lambda one: (one.count("/"), one)):
        if any(covers(wider, target) for wider in by_level.which_may_cover(target)):
            continue
        for narrower in [one for one in by_level.which_it_may_cover(target) if covers(target, one)]:
            del kept[narrower]
            by_level.remove(narrower)
        kept[target] = None
        by_level.add(target, target)
    return list(kept)


def covering(targets: Iterable[str], max_count: int) -> list[str]:
    """Filters that cover all targets, in a fixed order: the targets themselves, or fewer and wider ones.

    First levels with many targets are widened first. Targets that begin with ``$`` are matched by no filter that begins
    with a wildcard: each keeps a filter of its own, so there may be more than ``max_count`` of these.
    """
    wanted = set(targets)
    if EVERYTHING in wanted:
        wanted = {one for one in wanted if one == EVERYTHING or one.startswith("$")}
    # With very many targets the comparison of all pairs is skipped: they are widened together.
    if len(wanted) <= _COMPARED * max_count:
        wanted = set(without_covered(wanted))
    if len(wanted) > max_count:
        wanted = _widened(wanted, len(wanted) - max_count)
    if len(wanted) > max_count:
        wanted = {first_level_of(one) if one.startswith("$") else EVERYTHING for one in wanted}
    return without_covered(wanted)


def _widened(targets: set[str], excess: int) -> set[str]:
    counts = Counter(map(first_level_of, targets))
    widened: set[str] = set()
    for wide, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if excess <= 0 or count < 2:
            break
        widened.add(wide)
        excess -= count - 1
    return {wide if (wide := first_level_of(target)) in widened else target for target in targets}
