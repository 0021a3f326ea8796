"""Storing the positions of a group: all shards that have moved together, retried later after a refusal.

A position that could not be stored counts as not stored. While changes are refused, for example because the disk is
full, all positions wait; the wait is doubled after every refusal, up to half a minute. So no position is lost, and the
number of attempts does not depend on the number of shards.
"""

from __future__ import annotations

import abc
import logging
from itertools import islice
from typing import Final

import trio

from journal.engine.write.commands import Commands
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.segments.shard import Shard

_log = logging.getLogger("journal.groups")

_STORED_AT_ONCE = 200
_REFUSED: Final = BackOff(1.0, 30.0, jitter=0.0)


class Position(abc.ABC):
    """The position of a group in one shard.

    Attributes:
        shard: The shard.
        stored_offset: The stored value of its cursor; -1 if there is none.
    """

    __slots__ = ("shard", "stored_offset")

    def __init__(self, shard: Shard, stored_offset: int) -> None:
        self.shard = shard
        self.stored_offset = stored_offset

    @property
    @abc.abstractmethod
    def committed_offset(self) -> int:
        """The offset to store: the lowest one that is not acknowledged."""


class GroupPositions:
    """Stores the positions of one group.

    Args:
        commands: Commits the cursors.
        cursor_name: Name of the cursor in each shard.
    """

    def __init__(self, commands: Commands, cursor_name: str) -> None:
        self._commands = commands
        self._cursor_name = cursor_name
        self._moved: dict[Position, None] = {}
        self._wake = trio.Event()
        self._finishing = trio.Event()
        self._refusals = 0

    def __len__(self) -> int:
        """Return the number of positions that are not stored yet."""
        return len(self._moved)

    def moved(self, position: Position) -> None:
        """Store the position soon, if it is not stored already."""
        if position.committed_offset > position.stored_offset:
            self._moved[position] = None
            self._wake.set()

    def forget(self, position: Position) -> None:
        """Drop the position of a shard that left the group."""
        self._moved.pop(position, None)

    def finish(self) -> None:
        """Make `run` return when everything is stored, or at the next refusal: then records are delivered again."""
        self._finishing.set()
        self._wake.set()

    async def run(self) -> None:
        """Store moved positions until `finish`, or until the engine has failed."""
        while True:
            self._wake = trio.Event()
            if self._moved:
                refusal = await self._store_some()
                if refusal is None:
                    self._refusals = 0
                elif self._finishing.is_set() or self._commands.has_failed:
                    _log.warning(
                        "%d positions of %s are not stored; the records after them will be delivered again: %s",
                        len(self._moved),
                        self._cursor_name,
                        refusal,
                    )
                    return
                else:
                    await self._rest(refusal)
            elif self._finishing.is_set():
                return
            else:
                await self._wake.wait()

    async def _store_some(self) -> StorageError | None:
        """Store some of the positions together. If they are refused, they stay pending, and the reason is returned."""
        decided: dict[Position, int] = {}
        refusal: StorageError | None = None
        for position in tuple(islice(self._moved, _STORED_AT_ONCE)):
            if position.shard.damage:
                # The shard is stopped or deleted: the members are notified of that separately.
                del self._moved[position]
                continue
            offset = position.committed_offset
            try:
                group = self._commands.commit_cursor_nowait(position.shard, self._cursor_name, offset)
            except StorageError as error:
                refusal = error
                break
            del self._moved[position]
            decided[position] = offset
        if not decided:
            # Otherwise only the wait for the disk would be a checkpoint.
            await trio.lowlevel.checkpoint()
            return refusal
        try:
            await self._commands.wait_for(group)
        except StorageError as error:
            self._moved.update(dict.fromkeys(decided))
            return error
        for position, offset in decided.items():
            position.stored_offset = max(position.stored_offset, offset)
            self.moved(position)
        return refusal

    async def _rest(self, refusal: StorageError) -> None:
        if not self._refusals:
            _log.warning("positions of %s wait to be stored: %s", self._cursor_name, refusal)
        pause_s = _REFUSED.delay_s(self._refusals)
        self._refusals += 1
        with trio.move_on_after(pause_s):
            await self._finishing.wait()
