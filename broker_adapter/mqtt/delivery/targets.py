"""Which filters over shards reach what a session's topic filters ask for, without there being too many. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from broker_adapter.filter_overlap import covers

EVERYTHING = "#"


def widened(target: str) -> str:
    """A filter that covers a target and everything else below its first level."""
    first = target.split("/", 1)[0]
    return EVERYTHING if first in ("+", "#") else f"{first}/#"


def covering(targets: Iterable[str], max_count: int) -> list[str]:
    """Filters that cover all targets, in a fixed order: the targets themselves, or fewer and wider ones.

    Names that begin with ``$`` are matched by no filter that begins with a wildcard: they keep a filter of their own.
    """
    kept = _minimal(targets)
    if len(kept) > max_count:
        kept = _minimal(widened(target) for target in kept)
    if len(kept) > max_count:
        kept = _minimal(one if one.startswith("$") else EVERYTHING for one in kept)
    return kept


def _minimal(targets: Iterable[str]) -> list[str]:
    """Without those that another one covers."""
    kept: list[str] = []
    for target in sorted(set(targets), key=lambda one: (len(one), one)):
        if not any(covers(wider, target) for wider in kept):
            kept = [one for one in kept if not covers(target, one)]
            kept.append(target)
    return kept
