"""The offsets of a shard that were lost with the memory, so that a reader that resumes by lsn gets the gap.

The offsets alone are not sufficient: a reader knows the lsn up to which it has everything, and the lost records were
lost together with their lsns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from shards.model import SegmentKind

Loss: TypeAlias = tuple[int, int]
"""(first offset after the lost ones, an lsn that is not below that of any lost record)."""

MOST_LOSSES = 64
"""For older losses the surrounding segments are sufficient to report them, perhaps once too often."""


class Kept(Protocol):
    """The properties of a segment that are used here."""

    kind: SegmentKind
    base_offset: int
    next_offset: int
    last_lsn: int


def with_loss(losses: tuple[Loss, ...], loss: Loss, start_offset: int) -> tuple[Loss, ...]:
    """Add the newest loss, and remove those that were trimmed."""
    kept = [one for one in losses if start_offset < one[0] < loss[0]]
    return (*kept, loss)[-MOST_LOSSES:]


def losses_of_restart(losses: tuple[Loss, ...], segments: Iterable[Kept], start_offset: int) -> tuple[Loss, ...]:
    """The losses if the process ended now, which include memory segments that are followed by segments in files."""
    found = dict(losses)
    behind: Kept | None = None
    for segment in segments:
        if segment.kind is SegmentKind.MEMORY:
            if segment.next_offset > segment.base_offset:
                behind = segment
        elif behind is not None:
            found[behind.next_offset] = behind.last_lsn
            behind = None
    return tuple(sorted(one for one in found.items() if one[0] > start_offset))[-MOST_LOSSES:]


def resume_offset(
    losses: tuple[Loss, ...], segments: Iterable[Kept], start_offset: int, lsn: int, found_offset: int
) -> int:
    """Where a reader that resumes at an lsn begins: before the first gap that it has not received, if there is one.

    Args:
        losses: Losses of the shard.
        segments: All segments of the shard.
        start_offset: First offset of the shard that was not trimmed.
        lsn: The lsn at which the reader resumes.
        found_offset: Offset of the first batch with this lsn or a later one, or the shard's end.
    """
    for gap_offset, next_offset, last_lsn in _gaps(losses, segments, start_offset):
        if gap_offset >= found_offset:
            break
        if last_lsn >= lsn if last_lsn is not None else next_offset == found_offset:
            return gap_offset
    return found_offset


def _gaps(
    losses: tuple[Loss, ...], segments: Iterable[Kept], start_offset: int
) -> Iterator[tuple[int, int, int | None]]:
    """(first lost offset, first offset after them, lsn not below any lost record if known) of each gap, in order."""
    at, waiting = start_offset, list(reversed(losses))
    for segment in segments:
        while waiting and waiting[-1][0] <= segment.base_offset:
            next_offset, last_lsn = waiting.pop()
            if at < next_offset:
                yield at, next_offset, last_lsn
                at = next_offset
        if at < segment.base_offset and segment.next_offset > segment.base_offset:
            yield at, segment.base_offset, None
        at = max(at, segment.next_offset)
    for next_offset, last_lsn in reversed(waiting):
        if at < next_offset:
            yield at, next_offset, last_lsn
            at = next_offset
