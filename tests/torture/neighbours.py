"""What went on around a moment of a history, in words: trims, conversions, switches of mode, starts, deaths, faults."""

from __future__ import annotations

from collections.abc import Sequence

from tests.torture.history import NEVER, Death, Event, Operation, Trim

_AROUND_NS = 2e9
_SHOWN = 12


class Neighbours:
    """The operations of a history that may explain an anomaly.

    Args:
        operations: In the order in which they began.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = [one for one in operations if isinstance(one, Trim | Death | Event)]

    def around(self, shard: str, assignment: str, first_ns: float, last_ns: float) -> str:
        """What concerns a shard and a subscription from two seconds before an interval to its end.

        An operation of unknown outcome has no end: it counts by when it began.
        """
        found = [
            one
            for one in self._operations
            if one.began_ns <= last_ns
            and _known_end(one) >= first_ns - _AROUND_NS
            and _concerns(one, shard, assignment)
        ]
        left_out = f"{len(found) - _SHOWN} earlier ones, " if len(found) > _SHOWN else ""
        return left_out + ", ".join(map(_told, found[-_SHOWN:])) if found else "nothing"


def _known_end(one: Operation) -> float:
    return one.began_ns if one.ended_ns == NEVER else one.ended_ns


def _concerns(one: Operation, shard: str, assignment: str) -> bool:
    if isinstance(one, Trim):
        return one.shard == shard
    if isinstance(one, Event):
        return one.shard in ("", shard) and one.assignment in ("", assignment)
    return True


def _told(one: Operation) -> str:
    if isinstance(one, Trim):
        what = f"trim to {one.before} ({one.outcome})"
    elif isinstance(one, Death):
        what = f"death of the server ({one.how})"
    else:
        assert isinstance(one, Event)  # the only kinds that are kept
        what = one.what
    return f"{what} at {seconds(one.began_ns)}"


def seconds(at_ns: float) -> str:
    """A time of the history for people."""
    return f"{at_ns / 1e9:.3f} s"
