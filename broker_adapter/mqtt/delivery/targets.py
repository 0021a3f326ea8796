"""Filters over shards that cover a set of targets, without there being too many of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from shards.topics.filter_overlap import covers

EVERYTHING: Final = "#"

_COMPARED: Final = 4


def first_level_of(target: str) -> str:
    """A filter that covers a target and everything else below its first level."""
    first = target.split("/", 1)[0]
    return EVERYTHING if first in ("+", "#") else f"{first}/#"


def without_covered(targets: Iterable[str]) -> list[str]:
    """The targets that no other one covers, in a fixed order."""
    kept: list[str] = []
    for target in sorted(set(targets), key=lambda one: (one.count("/"), one)):
        if not any(covers(wider, target) for wider in kept):
            kept = [one for one in kept if not covers(target, one)]
            kept.append(target)
    return kept


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
