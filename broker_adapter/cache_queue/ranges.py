"""Ranges of offsets, each from one offset up to but not including another: sorted and disjoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""First offset, offset after the last."""


def covered_count(ranges: Iterable[Range], first_offset: int, next_offset: int) -> int:
    """How many offsets of ``[first_offset, next_offset)`` are in the ranges."""
    return sum(max(0, min(after, next_offset) - max(first, first_offset)) for first, after in ranges)


def contains(ranges: Iterable[Range], offset: int) -> bool:
    """Whether an offset is in one of the ranges."""
    return any(first <= offset < after for first, after in ranges)


def with_offsets(ranges: Sequence[Range], offsets: Iterable[int]) -> tuple[Range, ...]:
    """The ranges with additional offsets."""
    merged: list[Range] = []
    for first, after in sorted((*ranges, *((offset, offset + 1) for offset in offsets))):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(after, merged[-1][1]))
        else:
            merged.append((first, after))
    return tuple(merged)


def from_offset(ranges: Iterable[Range], offset: int) -> tuple[Range, ...]:
    """The parts of the ranges at or above an offset."""
    return tuple((max(first, offset), after) for first, after in ranges if after > offset)


def intersection(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """The offsets that are in both."""
    found = []
    for first, after in ranges:
        for other_first, other_after in others:
            lower, upper = max(first, other_first), min(after, other_after)
            if lower < upper:
                found.append((lower, upper))
    return found
