"""Carrying whole files between this server's disk and the log store: the interface, and doing it in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs
import trio

from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.driver import drive
from journal.logstore.keys import FileName
from journal.logstore.ownership import Member
from journal.logstore.pieces import PIECE_BYTES, Piece, get_piece, piece_count, put_piece
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore
from shards.seams.file_system import File, FileSystem

_T = TypeVar("_T")

_PIECES_IN_A_SYNC: Final = 16
"""So a sync is short, and few pages wait for the disk."""


@attrs.frozen(slots=True)
class Content:
    """What a file consists of.

    Attributes:
        size_bytes: Its size.
        sha256: 64 hexadecimal digits.
    """

    size_bytes: int
    sha256: str


class Transfers(Protocol):
    """Carries files of one store."""

    async def upload(self, name: FileName, path: str, nonce: bytes) -> int:
        """Store a file in the log store.

        Args:
            name: Its name there. No other file ever had it.
            path: Where it lies here.
            nonce: 16 random bytes. With the same ones it may be called again after an error, for the same file.

        Returns:
            Its size in bytes. All of it is in the log store.

        Raises:
            LogStoreError: The log store does not take it, or it is not known whether it has.
            OSError: The file cannot be read.
        """
        ...

    async def download(self, name: FileName, path: str) -> Content | None:
        """Fetch a file from the log store, and make it durable here.

        Args:
            name: Its name there.
            path: Where it is written. After an error or a cancellation there may be a part of it.

        Returns:
            What was written, to be compared with what was expected; None if it, or a piece of it, is not there.

        Raises:
            LogStoreError: It cannot be read.
            OSError: The disk refused.
        """
        ...

    async def digest(self, path: str) -> Content:
        """Read a file here.

        Raises:
            LogStoreError: What reads it failed.
            OSError: It cannot be read.
        """
        ...


class DirectTransfers:
    """`Transfers` by this process, in threads. One request of the log store is under way at a time.

    Args:
        store: The log store.
        member: This server, and the store.
        files: The file system.
        off_loop: Reads and writes files.
    """

    def __init__(self, store: LogStore, member: Member, files: FileSystem, off_loop: OffLoop) -> None:
        self._store = store
        self._member = member
        self._files = files
        self._off_loop = LimitedOffLoop(off_loop)
        self._limiter = trio.CapacityLimiter(1)

    async def upload(self, name: FileName, path: str, nonce: bytes) -> int:
        file = await self._off_loop(lambda: self._files.open(path, write=False))
        try:
            size_bytes = file.size()
            count = piece_count(size_bytes)
            for number in range(count):
                content = await self._off_loop(partial(file.pread, PIECE_BYTES, number * PIECE_BYTES))
                await self._drive(put_piece(self._member, nonce, name, number, Piece(content, count)))
        finally:
            file.close()
        return size_bytes

    async def download(self, name: FileName, path: str) -> Content | None:
        out = await self._off_loop(partial(self._files.open, path, create=True))
        try:
            await self._off_loop(partial(out.truncate, 0))
            digest = hashlib.sha256()
            number = position = 0
            count = 1
            while number < count:
                piece = await self._drive(get_piece(self._member, name, number))
                if piece is None:
                    return None
                await self._off_loop(partial(_write, out, digest.update, piece.content, position))
                position += len(piece.content)
                count = piece.count
                number += 1
                if number % _PIECES_IN_A_SYNC == 0:
                    await self._off_loop(out.fsync)
            await self._off_loop(out.fsync)
        finally:
            out.close()
        return Content(position, digest.hexdigest())

    async def digest(self, path: str) -> Content:
        file = await self._off_loop(lambda: self._files.open(path, write=False))
        try:
            size_bytes = file.size()
            digest = hashlib.sha256()
            for position in range(0, size_bytes, PIECE_BYTES):
                await self._off_loop(partial(_read, file, digest.update, position))
        finally:
            file.close()
        return Content(size_bytes, digest.hexdigest())

    async def _drive(self, steps: Steps[_T]) -> _T:
        return await drive(self._store, steps, self._limiter)


def _read(file: File, update: Callable[[bytes], None], position: int) -> None:
    update(file.pread(PIECE_BYTES, position))


def _write(out: File, update: Callable[[bytes], None], content: bytes, position: int) -> None:
    update(content)
    out.pwritev([content], position)
