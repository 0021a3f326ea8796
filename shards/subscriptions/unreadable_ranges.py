"""Ranges of records that subscriptions pass over because the store cannot read them, each counted once."""

from __future__ import annotations

from typing import Final

_REMEMBERED: Final = 10_000


class UnreadableRanges:
    """The ranges that the subscriptions of one program have met.

    A range is known by its shard and the text of the error, which names the file and the position in it.

    Attributes:
        count: Number of different ranges.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[tuple[str, str], None] = {}

    def note(self, shard: str, error: object) -> bool:
        """Note that a shard cannot be read. Returns whether the range is new."""
        place = (shard, str(error))
        if place in self._known:
            return False
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[place] = None
        self.count += 1
        return True
