"""MQTT topic filters: validation, matching, relations of two. `shards.topics.filter_index` handles many at a time.

Rules of MQTT 5, section 4.7: ``+`` matches one whole level, ``#`` at the end its parent and all levels below, and no
wildcard in the first level matches a topic that begins with ``$``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from shards.errors import InvalidNameError
from shards.topics.names import MAX_SHARD_NAME_BYTES, validate_text


def is_filter(target: str) -> bool:
    """Return whether a read or subscription target is a filter; without a wildcard it is a shard name."""
    return "+" in target or "#" in target


def validate_filter(topic_filter: str) -> str:
    """Return the filter if it is valid.

    Raises:
        InvalidNameError: It is empty, too long, has control characters, or a wildcard that is not a level of its own.
    """
    validate_text("topic filter", topic_filter, MAX_SHARD_NAME_BYTES)
    levels = topic_filter.split("/")
    if any("+" in level and level != "+" for level in levels):
        raise InvalidNameError(
            f"topic filter {topic_filter!a} has '+' within a level, it must be a whole level: 'a/+/b'"
        )
    if "#" in topic_filter and (topic_filter.count("#") > 1 or levels[-1] != "#"):
        raise InvalidNameError(f"topic filter {topic_filter!a} has '#' elsewhere than as the whole last level: 'a/#'")
    return topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a valid filter matches a topic name."""
    if topic_filter == topic:
        return True
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    filter_levels, levels = topic_filter.split("/"), topic.split("/")
    if filter_levels[-1] == "#":
        del filter_levels[-1]
        if len(levels) < len(filter_levels):
            return False
        del levels[len(filter_levels) :]
    return len(filter_levels) == len(levels) and all(
        wanted in ("+", level) for wanted, level in zip(filter_levels, levels, strict=True)
    )


def matches_all_between(bounds: Iterable[tuple[str, str] | None]) -> bool:
    """Return whether the filter `#` matches every name that lies between bounds.

    It matches all names but those that begin with ``$``. In the order of UTF-8 bytes these lie from ``$`` up to ``%``.

    Args:
        bounds: Pairs of two texts: no name is below the first one or above the second. None if they are not known.
    """
    return all(pair is not None and (pair[0] >= "%" or pair[1] < "$") for pair in bounds)


def literal_prefix(topic_filter: str) -> str:
    """Return the whole levels before the first wildcard, with the ``/`` after them; the whole filter without one.

    Every topic that the filter matches begins with it, except that ``a/b/#`` also matches ``a/b``.
    """
    wildcard = re.search("[+#]", topic_filter)
    return topic_filter[: wildcard.start()] if wildcard else topic_filter


def pattern(topic_filter: str) -> re.Pattern[str]:
    """Return a regular expression that matches exactly the topics that the valid filter matches.

    It never backtracks: a level is the text between two slashes.
    """
    levels = topic_filter.split("/")
    tail = ""
    if levels[-1] == "#":
        del levels[-1]
        tail = "(?:/.*)?" if levels else ".*"
    not_internal = r"(?!\$)" if topic_filter[0] in "+#" else ""
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    return re.compile(f"{not_internal}{body}{tail}", re.DOTALL)


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
    if narrow == "#":
        # Every topic has a first level, so `+/#` matches all that `#` matches.
        return wide in ("#", "+/#")
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
