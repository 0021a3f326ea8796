"""Reading from a journal server in code without an event loop, such as a Spark task, with read-ahead.

A thread runs the adapter; the amount that it reads ahead is bounded. A server that does not answer is an error after a
while, so that a task does not wait for ever.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

import trio

from broker_adapter import StorageAdapter, StoredBatches, open_adapter
from shards.errors import StorageError
from shards.history import HistoryGap
from spark_export.errors import DataLossError, UnreadableError

PATIENCE_S: Final = 60.0
"""How long a server may take to answer, in seconds."""
CONNECT_PATIENCE_S: Final = 15.0
_READ_BYTES: Final = 4 << 20
_READS_AHEAD: Final = 2


@asynccontextmanager
async def connected(server: str, *, patience_s: float = CONNECT_PATIENCE_S) -> AsyncIterator[StorageAdapter]:
    """An adapter to a server, as a context manager.

    Raises:
        UnreadableError: It cannot be reached within ``patience_s`` seconds.
    """
    with trio.CancelScope(deadline=trio.current_time() + patience_s) as scope:
        async with open_adapter(server, ends_at_restore=True, first_within_s=math.inf) as adapter:
            scope.deadline = float("inf")
            yield adapter
    if scope.cancelled_caught:
        raise UnreadableError(
            f"no journal server answers at {server} within {patience_s:g} s; check that it runs and that this machine "
            f"reaches it"
        )


class ServerConnection:
    """A connection to a server, as a context manager; it is opened when it is first used.

    Args:
        server: URL, as ``journal://host:port``.
        restores: Restores from backups that the server knew when the query was planned; None if it was not contacted.
        patience_s: How long the server may take to answer, in seconds.
    """

    def __init__(
        self, server: str, restores: Sequence[HistoryGap] | None = None, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._server = server
        self._restores = restores
        self._patience_s = patience_s
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        if self._failure is None:
            self._token.run_sync_soon(self._tasks.cancel_scope.cancel)
        self._thread.join()

    def require(self) -> None:
        """Check that the server can be reached and was not restored since the query was planned.

        Raises:
            UnreadableError: It cannot be reached, or was restored.
        """
        self._start()

    def read(self, shard: str, shard_id: int, first: int, end: int) -> Iterator[StoredBatches]:
        """Batches with the records of a shard from offset ``first`` up to ``end``, perhaps with others.

        Raises:
            DataLossError: They do not exist (any more).
            UnreadableError: The server cannot be reached.
            StorageError: The server refuses the request.
        """
        self._start()
        send, receive = trio.open_memory_channel[StoredBatches | Exception](_READS_AHEAD)
        self._token.run_sync_soon(self._tasks.start_soon, self._fetch, send, shard, shard_id, first, end)
        try:
            while True:
                try:
                    item = trio.from_thread.run(receive.receive, trio_token=self._token)
                except trio.EndOfChannel:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._token.run_sync_soon(receive.close)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-server-connection", daemon=True)
            self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with connected(self._server) as self._adapter:
            if self._restores is not None and tuple(self._adapter.restores) != tuple(self._restores):
                self._failure = UnreadableError(
                    f"the journal server at {self._server} was restored from a backup after this was planned: it may "
                    "hold other records under the same offsets; run it again"
                )
                return
            async with trio.open_nursery() as self._tasks:
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()
                await trio.sleep_forever()

    async def _fetch(
        self,
        send: trio.MemorySendChannel[StoredBatches | Exception],
        shard: str,
        shard_id: int,
        first: int,
        end: int,
    ) -> None:
        async with send:
            try:
                async for found in self._batches(shard, shard_id, first, end):
                    await send.send(found)
            except trio.BrokenResourceError:
                # The reader does not want the rest.
                return
            except (StorageError, UnreadableError, DataLossError) as error:
                await send.send(error)

    async def _batches(self, shard: str, shard_id: int, first: int, end: int) -> AsyncIterator[StoredBatches]:
        try:
            with trio.fail_after(self._patience_s):
                info = await self._adapter.describe_shard(shard)
        except trio.TooSlowError:
            raise self._silent(shard, first) from None
        if info.shard_id != shard_id:
            raise DataLossError(
                f"shard {shard!r} was deleted and created again: the one with id {shard_id} is gone, this one has id "
                f"{info.shard_id}"
            )
        while first < end:
            try:
                with trio.fail_after(self._patience_s):
                    found = await self._adapter.read_batches(shard, first, max_bytes=_READ_BYTES)
            except trio.TooSlowError:
                raise self._silent(shard, first) from None
            if found.next_offset <= first:
                raise DataLossError(f"shard {shard!r} ends at offset {first} at {self._server}, {end} was seen before")
            yield found
            first = found.next_offset

    def _silent(self, shard: str, offset: int) -> UnreadableError:
        return UnreadableError(
            f"the journal server at {self._server} does not answer within {self._patience_s:g} s (shard {shard!r}, "
            f"offset {offset}); check that it runs, then run the query again"
        )
