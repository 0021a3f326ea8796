"""The numbers that the server has given to the shards that a client uses on its connection.

A handle belongs to its connection, and to appends and reads of its shard alike. A server allows each connection so many
open handles (`limits.max_handles_per_connection`); at this limit the client closes some that it does not use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from journal.client.appends import Appends
from journal.client.connection import Connection
from journal.protocol import Op, encode
from journal.protocol.messages import HandleRequest
from shards.errors import StorageError

_CLOSED_AT_ONCE: Final = 1 / 8


class OpenHandles:
    """The handles of reads, and the closing of all that neither reads nor appends use.

    Args:
        appends: Keep those of the shards that they append to, and are given a way to make room for more.
    """

    def __init__(self, appends: Appends) -> None:
        self._appends = appends
        self._connection: Connection | None = None
        self._by_shard: dict[str, int] = {}
        # Shards whose handle the server is asked for: it is used in the next moment.
        self._asked_for: Counter[str] = Counter()
        appends.make_room_with(self.close_unused)

    def connected(self, connection: Connection) -> None:
        """On a new connection no shard has a handle."""
        self._connection = connection
        self._by_shard.clear()

    def disconnected(self) -> None:
        self._connection = None

    def of(self, shard: str) -> int | None:
        return self._by_shard.get(shard)

    def keep(self, connection: Connection, shard: str, handle: int) -> None:
        """Use a handle from now on, if it is one of the present connection.

        Those who wait for a handle may have this one as soon as the request for which it was opened is sent.
        """
        if connection is self._connection:
            self._by_shard[shard] = handle
            self._appends.share_handles_soon()

    def forget(self, shard: str, handle: int) -> None:
        """The server does not know the handle, so the shard has to be opened again."""
        if self._by_shard.get(shard) == handle:
            del self._by_shard[shard]

    @contextmanager
    def asking_for(self, shard: str) -> Iterator[None]:
        """The shard's handles are not closed for the length of the block: the server is asked for one."""
        self._asked_for[shard] += 1
        try:
            yield
        finally:
            self._asked_for[shard] -= 1
            if not self._asked_for[shard]:
                del self._asked_for[shard]

    @property
    def are_short(self) -> bool:
        """Whether others wait for a handle."""
        return self._appends.is_short_of_handles

    async def wait_for_one(self, *, again: bool) -> None:
        """Wait until a handle was closed, in turn with others who wait for one, or the connection has ended."""
        closed = trio.Event()
        self._appends.wait_for_handle(closed.set, again=again)
        try:
            await closed.wait()
        except trio.Cancelled:
            self._appends.wait_no_more(closed.set)
            raise

    def close_unused(self, connection: Connection) -> bool:
        """Close a part of the handles that are not in use, as the server allows no more; false if there are none."""
        if connection is not self._connection:
            return False
        unused, used = self._appends.handles_by_use()
        by_appends = {handle: shard for handle, shard in unused.items() if shard.name not in self._asked_for}
        by_reads = {
            handle: name
            for name, handle in self._by_shard.items()
            if handle not in used and name not in self._asked_for
        }
        handles = [*dict.fromkeys((*by_reads, *by_appends))]
        for handle in handles[: math.ceil(len(handles) * _CLOSED_AT_ONCE)]:
            if handle in by_reads:
                del self._by_shard[by_reads[handle]]
            if handle in by_appends:
                by_appends[handle].handle = None
            connection.call_nowait(Op.CLOSE_SHARD, encode(HandleRequest(handle)), _closed)
        return bool(handles)


def _closed(_error: StorageError | None, _body: bytes | memoryview) -> None:
    """A handle was closed. An error says that it is gone already, with its shard or with the connection."""
