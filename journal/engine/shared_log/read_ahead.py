"""Reading slots of the log before they are asked for, several at a time: a server that joins has many to read.

A slot never gets other bytes, so one that was read early is what would be read later. One that was missing may be
there later, so nothing is remembered of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import trio
from trio.to_thread import run_sync

from journal.logstore.errors import LogStoreError
from journal.logstore.keys import Position, slot_key
from journal.logstore.store import LogStore

MOST_AHEAD: Final = 31
"""Slots that are read before they are asked for."""

MOST_AT_A_TIME: Final = 8
"""Requests that are under way."""

MOST_BYTES: Final = 4 << 20
"""No request begins when slots of so many bytes were read early. Those that are under way then are read as well."""

FOUND_FOR_EACH: Final = 16
"""So many slots must have followed each other for one to be read early. At the end of the log slots are asked for that
do not exist yet: a sixteenth of all at most, and the next one once more."""


class ReadAhead:
    """Slots that were read early.

    Args:
        store: The log store.
        root: What the keys of its store begin with.
    """

    def __init__(self, store: LogStore, root: str) -> None:
        self._store = store
        self._root = root
        self._limiter = trio.CapacityLimiter(MOST_AT_A_TIME)
        self._found: dict[str, bytes] = {}
        self._in_a_row = 0

    def has(self, position: Position) -> bool:
        """Whether a slot was read early, and not taken yet."""
        return slot_key(self._root, position) in self._found

    def take(self, key: str) -> bytes | None:
        """The object under a key, if it was read early; it is forgotten here."""
        return self._found.pop(key, None)

    def note(self, *, is_slot: bool) -> None:
        """A slot was the next one of the log, or there was none."""
        self._in_a_row = self._in_a_row + 1 if is_slot else 0

    async def read(self, position: Position) -> None:
        """Read the slot at a position and some of those after it, if many were there before it.

        What cannot be read now is left to the one that asks for it.
        """
        count = min(MOST_AHEAD, self._in_a_row // FOUND_FOR_EACH)
        self._found.clear()
        if not count:
            return
        keys = (slot_key(self._root, attrs.evolve(position, slot=position.slot + n)) for n in range(count + 1))
        async with trio.open_nursery() as nursery:
            for _ in range(min(MOST_AT_A_TIME, count + 1)):
                nursery.start_soon(self._read, keys)

    async def _read(self, keys: Iterator[str]) -> None:
        """Read objects until one is missing, or many bytes are here. The keys are shared by several such tasks."""
        while sum(map(len, self._found.values())) < MOST_BYTES and (key := next(keys, None)) is not None:
            try:
                data = await run_sync(self._store.get, key, limiter=self._limiter)
            except LogStoreError:
                return
            if data is None:
                # Here the log seems to end.
                self._in_a_row = 0
                return
            self._found[key] = data
