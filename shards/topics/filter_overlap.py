"""Relations between two topic filters. Those between a filter and a topic are in `shards.topics.topic_filters`."""

from __future__ import annotations

from shards.topics.topic_filters import is_filter


def overlap(left: str, right: str) -> bool:
    """Whether some topic matches both filters (either may be a plain topic)."""
    if _tells_apart(left, right) or _tells_apart(right, left):
        return False
    left_levels, right_levels = left.split("/"), right.split("/")
    for left_level, right_level in zip(left_levels, right_levels, strict=False):
        if "#" in (left_level, right_level):
            return True
        if left_level != right_level and "+" not in (left_level, right_level):
            return False
    return _rest_may_be_empty(left_levels, right_levels) and _rest_may_be_empty(right_levels, left_levels)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that matches ``narrow`` matches ``wide`` too."""
    if _tells_apart(wide, narrow):
        return False
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    for wide_level, narrow_level in zip(wide_levels, narrow_levels, strict=False):
        if wide_level == "#":
            return True
        if narrow_level == "#" or wide_level not in ("+", narrow_level):
            return False
    return (
        len(wide_levels) <= len(narrow_levels) + 1
        and _rest_may_be_empty(wide_levels, narrow_levels)
        and (len(narrow_levels) <= len(wide_levels))
    )


def _tells_apart(wild: str, other: str) -> bool:
    """Whether the `$`-rule keeps them apart: a wildcard in the first level matches no topic that begins with ``$``."""
    return is_filter(wild[0]) and other.startswith("$")


def _rest_may_be_empty(levels: list[str], shorter: list[str]) -> bool:
    """Whether the additional levels of ``levels`` match no level at all."""
    return levels[len(shorter) :] in ([], ["#"])
