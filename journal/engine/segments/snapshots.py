"""Snapshots: the files of a running engine as they lie at one lsn, held in place while somebody copies them away.

A snapshot is a data directory of its own under ``snapshots/``. Its segments are hard links, which cost no space until
the engine removes the originals; its views are a copy that RocksDB makes, by hard links too; its journal files are
copied up to the end of a durable group, since journal files are recycled and may lie in a file system of their own. It
is checked and recovered like any other.

What lets go of a snapshot first gives it another name, in one step: whoever still copies finds the files gone rather
than some of them missing. A snapshot does not outlive the process; a start removes those that a crash left.
"""

from __future__ import annotations

import errno
import posixpath
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from journal.engine.directory.data_directory import DataDirectory, remove_snapshot, segment_directories, write_markers
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.wal.journal_file import JournalWriter, WrittenFile
from shards.errors import DiskFullError, OverloadedError, StorageFailedError
from shards.seams.file_system import FileSystem
from shards.seams.store import DirectoryStore

_COPIED_AT_ONCE = 1 << 20
_GONE = ".gone"
_PATIENCE_S = 5.0
"""How long one that wants a snapshot waits for the one that holds it, which may just be letting go."""


@attrs.frozen(slots=True)
class Snapshot:
    """What is held.

    Attributes:
        path: Its directory, absolute as far as the data directory's path is.
        lsn: Every entry up to this one is in it, none after it.
    """

    path: str
    lsn: int


class Snapshots:
    """Makes snapshots of one engine, one at a time.

    Args:
        files: The file system.
        directory: The data directory.
        writer: Writes the journal.
        checkpointer: Makes checkpoints, and moves no file while it is asked not to.
        segment_files: The comings and goings of the segments' files.
        store: The views.
        newest_lsn: The newest lsn that the journal's groups cover, for a journal without a file.
    """

    def __init__(
        self,
        *,
        files: FileSystem,
        directory: DataDirectory,
        writer: JournalWriter,
        checkpointer: Checkpointer,
        segment_files: SegmentFiles,
        store: DirectoryStore,
        newest_lsn: Callable[[], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self._writer = writer
        self._checkpointer = checkpointer
        self._segment_files = segment_files
        self._store = store
        self._newest_lsn = newest_lsn
        self._limiter = trio.CapacityLimiter(1)
        self._turn = trio.Semaphore(1)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Snapshot]:
        """Hold a snapshot for the length of the block.

        Whatever was acknowledged as durable before is in it. What memory-mode shards hold in memory is not.

        Raises:
            OverloadedError: Another one is held, and was not let go of within five seconds.
            DiskFullError: No checkpoint can be made.
            StorageFailedError: The disk failed, or refused the snapshot.
        """
        await self._take_turn()
        path = f"{self._directory.snapshots}/{secrets.token_hex(4)}"
        try:
            taken: list[Snapshot] = []

            async def make() -> None:
                taken.append(Snapshot(path, await self._make(path)))

            try:
                # Making it is not given up half-way: what is being made cannot be removed.
                with trio.CancelScope(shield=True):
                    await self._checkpointer.after_checkpoint(make)
                yield taken[0]
            finally:
                with trio.CancelScope(shield=True):
                    await self._off_loop(lambda: self._let_go(path))
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        with trio.move_on_after(_PATIENCE_S) as waiting:
            await self._turn.acquire()
        if waiting.cancelled_caught:
            raise OverloadedError(
                f"another backup is copying a snapshot of {self._directory.path}; wait until it is done, or end it"
            )

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)

    async def _make(self, path: str) -> int:
        try:
            # The views first: what they hold is durable in the journal by then, which is copied up to a later point.
            await self._off_loop(lambda: self._copy_views(path))
            async with self._segment_files.hold():
                written = await self._checkpointer.written(self._writer)
                await self._off_loop(lambda: self._copy_rest(path, written))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(f"{self._directory.path}: {error.strerror}; free some space") from error
            if error.errno == errno.EXDEV:
                raise StorageFailedError(
                    f"no snapshot of {self._directory.path} can be made: {error.filename} lies in another file system "
                    f"than {self._directory.snapshots}, where only journal/ and state/ may. The server goes on without "
                    f"it: back up while it is stopped, or move that directory into the file system of the others"
                ) from error
            raise StorageFailedError(
                f"no snapshot of {self._directory.path} can be made: {error}; the server goes on without it"
            ) from error
        return written[-1].last_lsn if written else self._newest_lsn()

    def _copy_views(self, path: str) -> None:
        self._files.mkdir(path)
        self._store.copy_to(f"{path}/state")

    def _copy_rest(self, path: str, written: list[WrittenFile]) -> None:
        files, source = self._files, self._directory.path
        files.link(f"{source}/FORMAT", f"{path}/FORMAT")
        files.mkdir(f"{path}/journal")
        for file in written:
            self._copy_journal_file(file, f"{path}/journal/{posixpath.basename(file.path)}")
        for name in ("log", "sealed"):
            files.mkdir(f"{path}/{name}")
        # No links, as journal/ may be a file system of its own.
        write_markers(files, path, self._directory.node_id)
        for name in segment_directories(files, source):
            self._link_all(f"{source}/{name}", f"{path}/{name}")
        # Without its note, a Parquet file that was placed but not decided upon would count as left over.
        self._link_all(f"{source}/sealing", f"{path}/sealing", only=".place")

    def _link_all(self, source: str, target: str, *, only: str = "") -> None:
        self._files.mkdir(target)
        for name in self._files.listdir(source):
            if name.endswith(only):
                self._files.link(f"{source}/{name}", f"{target}/{name}")

    def _copy_journal_file(self, written: WrittenFile, target: str) -> None:
        """Copy what is written of a journal file; the rest of it is a hole, which reads as the zeros that it has."""
        source = self._files.open(written.path, write=False)
        try:
            copy = self._files.open(target, create=True)
            try:
                for position in range(0, written.end, _COPIED_AT_ONCE):
                    size = min(_COPIED_AT_ONCE, written.end - position)
                    copy.pwritev([source.pread(size, position)], position)
                copy.truncate(written.size_bytes)
            finally:
                copy.close()
        finally:
            source.close()

    def _let_go(self, path: str) -> None:
        if self._files.exists(path):
            self._files.rename(path, f"{path}{_GONE}")
            remove_snapshot(self._files, f"{path}{_GONE}")
