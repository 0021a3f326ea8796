"""Which message it is that a broker ends connections over, when it does not say so. Pure.

MQTT 3.1.1 has no other way to refuse a message, and mosquitto 2.0.11 closes before its refusal of MQTT 5 is on the wire
if others are under way behind it. Taken for outages alone, such a message would come back for ever. So what was under
way when a broker closed is sent again one message at a time, and a message that was the first without an answer three
times in a row, the last time alone, is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ENOUGH_COUNT: Final = 3


class Suspicion:
    """What is known of one queue's messages at one broker, over all connections. Offsets are those of the queue."""

    def __init__(self) -> None:
        self._suspect_offset: int | None = None
        self._count = 0
        self._careful_to_offset = -1

    def must_go_alone(self, offset: int) -> bool:
        """Whether nothing else is to be under way with this message."""
        return offset <= self._careful_to_offset

    def closed(self, under_way: Sequence[int]) -> bool:
        """The broker closed with these messages sent and not answered, in order; whether the first is to blame."""
        if not under_way:
            return False
        self._count = self._count + 1 if under_way[0] == self._suspect_offset else 1
        self._suspect_offset = under_way[0]
        self._careful_to_offset = max(under_way)
        return len(under_way) == 1 and self._count >= _ENOUGH_COUNT
