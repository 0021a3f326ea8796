"""The process that transfers files: ``python -m journal.engine.shared_log.transfer_worker``.

It is started by `worker_transfers`, which tells what both say. It ends when its input is closed
(`journal.engine.workers.serving`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TypeVar

import msgspec
import trio

from journal.engine.shared_log.transfers import Content, DirectTransfers
from journal.engine.shared_log.worker_transfers import Place, Said, TransferRequest
from journal.engine.wal.disk import in_thread
from journal.engine.workers.serving import incoming_lines, write_lines
from journal.logstore.counting import CountedLogStore
from journal.logstore.errors import LogStoreError, StoreUnreachableError
from journal.logstore.store import Created, LogStore
from journal.logstore.stores.addresses import StoreAddress
from journal.logstore.stores.divided import DividedLogStore
from shards.errors import InvalidRequestError
from shards.seams.os_file_system import OsFileSystem

_T = TypeVar("_T")


class _ReportingLogStore:
    """Passes every call to a store, and says afterwards that it was made, whatever came of it."""

    def __init__(self, store: LogStore) -> None:
        self._store = CountedLogStore(store)

    def create(self, key: str, data: bytes) -> Created:
        return self._reported(lambda: self._store.create(key, data))

    def get(self, key: str) -> bytes | None:
        return self._reported(lambda: self._store.get(key))

    def list_after(self, key: str) -> list[str]:
        return self._reported(lambda: self._store.list_after(key))

    def delete(self, key: str) -> None:
        self._reported(lambda: self._store.delete(key))

    def close(self) -> None:
        self._store.close()

    def _reported(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        finally:
            _say(Said(self._store.take()))


def _say(said: Said) -> None:
    write_lines([msgspec.json.encode(said) + b"\n"])


async def _off_loop(work: Callable[[], _T], *, limiter: trio.CapacityLimiter) -> _T:
    result = await in_thread(work, limiter=limiter)
    _say(Said())
    return result


def _opened(place: Place) -> LogStore:
    addresses = [StoreAddress.parse(text) for text in place.addresses]
    store = addresses[0].open()
    if len(addresses) == 1:
        return store
    try:
        return DividedLogStore(store, addresses[0].root, addresses[1].open(), addresses[1].root)
    except BaseException:
        store.close()
        raise


async def answer(store: LogStore, request: TransferRequest) -> Said:
    """Transfer a file, and return how it ended."""
    transfers = DirectTransfers(store, request.place.member, OsFileSystem(), _off_loop)
    try:
        if request.upload:
            size_bytes = await transfers.upload(request.name, request.path, bytes.fromhex(request.upload))
            return Said(is_done=True, content=Content(size_bytes, ""))
        if request.download:
            return Said(is_done=True, content=await transfers.download(request.name, request.path))
        return Said(is_done=True, content=await transfers.digest(request.path))
    except LogStoreError as error:
        return Said(is_done=True, error=(type(error).__name__, str(error)))
    except OSError as error:
        number = error.errno or errno.EIO
        return Said(is_done=True, os_error=(number, error.strerror or str(error), error.filename or request.path))


async def _serve() -> None:
    lines = incoming_lines()
    with ExitStack() as stack:
        store: _ReportingLogStore | None = None
        while True:
            request = msgspec.json.decode(await trio.to_thread.run_sync(lines.get), type=TransferRequest)
            try:
                if store is None:
                    opened = _ReportingLogStore(await trio.to_thread.run_sync(_opened, request.place))
                    store = stack.enter_context(closing(opened))
            except (InvalidRequestError, LogStoreError) as error:
                # It is tried again with the next request.
                kind = type(error) if isinstance(error, LogStoreError) else StoreUnreachableError
                _say(Said(is_done=True, error=(kind.__name__, str(error))))
            else:
                _say(await answer(store, request))


def main() -> None:
    """Answer requests until the input is closed."""
    trio.run(_serve)


if __name__ == "__main__":
    main()
