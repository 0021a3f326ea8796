"""The answer to a producer's batch, from its sequence and the state of the records stored under it.

A pure table. It keeps two promises: a sequence is stored at most once, and records that are acknowledged as durable can
be read until retention drops them. So records that were lost with the memory are never acknowledged as a durable
duplicate: they are stored again if no later record of their producer is kept (so the order stays), and refused
    otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TypeAlias

from shards.idempotence.producer_state import ProducerState, Relation


class Place(enum.IntEnum):
    """Where a record is stored, the safest first."""

    FILE = 0
    """In log or Parquet segments."""
    TRIMMED_FILE = 1
    """Dropped by retention; in files before."""
    TRIMMED = 2
    """Dropped by retention; possibly only in memory before."""
    MEMORY = 3
    """In memory segments."""
    LOST = 4
    """In memory when the node stopped, so lost."""


PlacesOf: TypeAlias = Callable[[int, int], tuple[Place, Place]]
"""The safest and the least safe place of the records in a range of offsets; a higher value is less safe."""


class Answer(enum.Enum):
    """The server's action for the batch."""

    STORE = enum.auto()
    """Stored: it is new, or its first copy was lost."""
    DURABLE_DUPLICATE = enum.auto()
    """Acknowledged again at level durable; not stored."""
    MEMORY_DUPLICATE = enum.auto()
    """Acknowledged again at level memory; not stored."""
    GAP = enum.auto()
    """Refused with ``sequence_gap``: a batch before it is missing."""
    LOST = enum.auto()
    """Refused with ``sequence_lost``: it was lost, or it is not known whether it is stored, and later ones are kept."""


_STORED = {
    Place.FILE: Answer.DURABLE_DUPLICATE,
    Place.TRIMMED_FILE: Answer.DURABLE_DUPLICATE,
    Place.TRIMMED: Answer.MEMORY_DUPLICATE,
    Place.MEMORY: Answer.MEMORY_DUPLICATE,
    Place.LOST: Answer.LOST,
}


def decide(relation: Relation, place: Place, *, is_last: bool, memory_lost: bool) -> Answer:
    """Return the answer from the table.

    Args:
        relation: Relation of the batch's first sequence to the producer's state.
        place: The least safe place of the batch's known records; for `Relation.FORGOTTEN`, of the records that they may
            be. Without meaning for the other relations.
        is_last: Every record of the producer from this sequence on is lost, too.
        memory_lost: Records of the producer after the last known one may have been lost.
    """
    match relation:
        case Relation.NEXT:
            return Answer.STORE
        case Relation.AHEAD:
            return Answer.STORE if memory_lost else Answer.GAP
        case Relation.MISSING:
            return Answer.LOST
        case Relation.KNOWN if place is Place.LOST and is_last:
            return Answer.STORE
        case _:
            return _STORED[place]


def answer_to(state: ProducerState, sequence: int, count: int, places_of: PlacesOf) -> tuple[Answer, int]:
    """Decide about a batch of ``count`` records that begins with ``sequence``.

    Clients repeat the batches that they sent before. If records are divided into batches in another way, the answer is
    valid for all of them.

    Returns:
        The answer, and the offset of the batch's first record if it is known, or -1.
    """
    relation = state.relation(sequence)
    offset = -1
    place = Place.LOST
    is_last = False
    if relation is Relation.KNOWN:
        offset = state.offset_of(sequence)
        ranges = state.ranges_from(sequence)
        place = _least_safe(reversed(ranges), count, places_of)
        is_last = place is Place.LOST and all(places_of(first, end)[0] is Place.LOST for first, end in ranges)
    elif relation is Relation.FORGOTTEN:
        place = places_of(*state.forgotten_range())[1]
    return decide(relation, place, is_last=is_last, memory_lost=state.memory_lost), offset


def _least_safe(ranges: Iterable[tuple[int, int]], count: int, places_of: PlacesOf) -> Place:
    """The least safe place of the first ``count`` records in ranges of offsets."""
    found = Place.FILE
    for first, end in ranges:
        taken = min(end - first, count)
        found = max(found, places_of(first, first + taken)[1])
        count -= taken
        if not count:
            break
    return found
