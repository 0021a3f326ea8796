"""Finds the message because of which a broker closes connections, when the broker does not say so. Pure.

MQTT 3.1.1 has no other way to refuse a message, and mosquitto 2.0.11 closes before its PUBACK of MQTT 5 is sent if
other messages are in progress after it. If this only counted as an outage, the message would be sent for ever. So
messages without an answer at the end of a connection are sent again one at a time. A message that was the first without
an answer three times in a row, the last time alone, is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ENOUGH_COUNT: Final = 3


class PoisonMessageDetector:
    """Knowledge about one queue's messages at one broker, from all connections. Offsets are those of the queue."""

    def __init__(self) -> None:
        self._suspect_offset: int | None = None
        self._count = 0
        self._careful_to_offset = -1

    def must_go_alone(self, offset: int) -> bool:
        """Whether this message has to be sent alone."""
        return offset <= self._careful_to_offset

    def closed(self, under_way: Sequence[int]) -> bool:
        """The broker closed with these messages unanswered, in order; returns whether the first one is the cause."""
        if not under_way:
            return False
        self._count = self._count + 1 if under_way[0] == self._suspect_offset else 1
        self._suspect_offset = under_way[0]
        self._careful_to_offset = max(under_way)
        return len(under_way) == 1 and self._count >= _ENOUGH_COUNT
