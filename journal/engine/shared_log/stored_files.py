"""The files that the log of a store names, as the engine stores, fetches and deletes them in the log store."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import trio

from journal.engine.shared_log.transfers import Content, Transfers
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.driver import drive
from journal.logstore.errors import LogStoreError, StoreDeposedError
from journal.logstore.keys import FileName
from journal.logstore.objects import ID_BYTES
from journal.logstore.ownership import Member
from journal.logstore.pieces import delete_unneeded
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore
from shards.errors import ConversionFailedError
from shards.seams.file_system import FileSystem

_T = TypeVar("_T")

_DELETES_EACH_S: Final = 60.0

_log = logging.getLogger("journal.engine")


class StoredFiles:
    """The files of one store.

    Args:
        store: The log store. Closed by the caller.
        member: This server, and the store.
        files: The file system.
        off_loop: Gives fetched files their names.
        transfers: Carries the files.

    Attributes:
        stored_bytes: Bytes of files that were stored since the start.
        deleted: Files that were deleted from the log store.
    """

    def __init__(
        self, store: LogStore, member: Member, files: FileSystem, off_loop: OffLoop, transfers: Transfers
    ) -> None:
        self._store = store
        self._member = member
        self._files = files
        self._off_loop = LimitedOffLoop(off_loop)
        self._transfers = transfers
        self._limiter = trio.CapacityLimiter(1)
        self._under_way: set[FileName] = set()
        self._has_given_up = False
        self.stored_bytes = 0
        self.deleted = 0

    @asynccontextmanager
    async def stored(self, paths: Iterable[tuple[FileName, str]]) -> AsyncIterator[None]:
        """Store files, which an entry of the log may name within the block.

        Files that no entry names when the block is left are deleted later.

        Raises:
            ConversionFailedError: The log store does not take them, or they cannot be read.
        """
        names: list[FileName] = []
        try:
            for name, path in paths:
                self._under_way.add(name)
                names.append(name)
                await self._store_file(name, path)
            yield
        except BaseException:
            self._has_given_up = True
            raise
        finally:
            self._under_way.difference_update(names)

    async def _store_file(self, name: FileName, path: str) -> None:
        nonce = secrets.token_bytes(ID_BYTES)
        try:
            self.stored_bytes += await self._transfers.upload(name, path, nonce)
        except LogStoreError as error:
            raise ConversionFailedError(f"the log store does not take the file {name}: {error}") from error
        except OSError as error:
            raise ConversionFailedError(f"{path} cannot be read: {error.strerror}") from error

    async def fetch(self, name: FileName, path: str) -> Content | None:
        """Fetch a file, durably but for its name. What was at the path is replaced when it is whole.

        A part of it may be left beside the path, under its name and a suffix.

        Returns:
            What was written, to be compared with what was expected; None if the file is not there.

        Raises:
            LogStoreError: It cannot be read.
            OSError: The disk refused.
        """
        # Another name each time: what fetched it for a server that was killed may not have ended yet.
        aside = f"{path}.{secrets.token_hex(4)}"
        content = await self._transfers.download(name, aside)
        if content is None:
            await self._off_loop(partial(self._files.remove, aside))
        else:
            await self._off_loop(partial(self._files.rename, aside, path))
        return content

    async def digest(self, path: str) -> Content:
        """Read a file of this server.

        Raises:
            LogStoreError: What reads it failed.
            OSError: It cannot be read.
        """
        return await self._transfers.digest(path)

    async def delete_unneeded(
        self, epoch: int, names: Callable[[], Hashable], is_needed: Callable[[FileName], bool]
    ) -> None:
        """Delete files that nothing refers to any more, once in a while, until another server owns the store.

        Args:
            epoch: The epoch that this server owns.
            names: Returns a value that is another one whenever another set of files may be needed.
            is_needed: Returns whether something refers to a file.
        """
        seen: Hashable = None
        while True:
            await trio.sleep(_DELETES_EACH_S)
            now = names()
            if now == seen and not self._has_given_up:
                continue
            self._has_given_up = False
            try:
                self.deleted += await self._drive(
                    delete_unneeded(self._member, epoch, lambda name: name in self._under_way or is_needed(name))
                )
            except StoreDeposedError:
                # The task that looks for claims says so.
                return
            except LogStoreError as error:
                _log.warning("files that are not needed any more stay in the log store for now: %s", error)
                continue
            seen = now

    async def _drive(self, steps: Steps[_T]) -> _T:
        return await drive(self._store, steps, self._limiter)
