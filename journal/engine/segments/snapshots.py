"""Snapshots: the files of a running engine as of one lsn, kept unchanged while a backup copies them.

A snapshot is a data directory of its own under ``snapshots/``. Its segments are hard links, which use no space until
the engine removes the originals; its views are a copy that RocksDB makes, by hard links too; its journal files are
copied up to the end of a durable group, since journal files are recycled and may be on a file system of their own. It
is checked and recovered like any data directory.

To release a snapshot, it is first renamed, in one step: a program that still copies it finds no file at all, rather
than missing some of them. A snapshot does not outlive the process; a start removes those that a crash left.
"""

from __future__ import annotations

import errno
import posixpath
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from journal.engine.directory.data_directory import (
    DataDirectory,
    let_go_of_snapshot,
    segment_directories,
    write_markers,
)
from journal.engine.environment import Environment
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.wal.disk import LimitedOffLoop
from journal.engine.wal.journal_file import WrittenFile
from shards.errors import DiskFullError, OverloadedError, StorageFailedError
from shards.seams.store import DirectoryStore

_COPIED_AT_ONCE = 1 << 20
_PATIENCE_S = 5.0
"""How long a caller waits for the snapshot of another caller, which may be released soon."""


@attrs.frozen(slots=True)
class Snapshot:
    """A snapshot that is held.

    Attributes:
        path: Its directory; absolute if the path of the data directory is.
        lsn: It contains every entry up to this one and none after it.
    """

    path: str
    lsn: int


class Snapshots:
    """Makes snapshots of one engine, one at a time.

    Args:
        environment: What the engine runs on.
        directory: The data directory.
        checkpointer: Makes checkpoints, and moves no file while a snapshot is made.
        segment_files: Moves and removes segment files.
        store: The store of the views.
        newest_lsn: Returns the newest lsn in the journal's groups; used if the journal has no file.
        unfetched: The shared files that are not here.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        directory: DataDirectory,
        checkpointer: Checkpointer,
        segment_files: SegmentFiles,
        store: DirectoryStore,
        newest_lsn: Callable[[], int],
        unfetched: UnfetchedFiles,
    ) -> None:
        self._files = environment.files
        self._directory = directory
        self._checkpointer = checkpointer
        self._segment_files = segment_files
        self._store = store
        self._newest_lsn = newest_lsn
        self._unfetched = unfetched
        self._off_loop = LimitedOffLoop(environment.off_loop)
        self._turn = trio.Semaphore(1)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Snapshot]:
        """Hold a snapshot for the length of the block.

        It contains everything that was acknowledged as durable before. Records in memory segments are not in it.

        Raises:
            OverloadedError: Another snapshot is held and was not released within five seconds.
            FileUnavailableError: Files of the history were not fetched from the log store yet.
            DiskFullError: No checkpoint can be made.
            StorageFailedError: The disk failed, or refused the snapshot.
        """
        for key in self._unfetched.keys:
            self._unfetched.check(key, f"records of {self._directory.path}")
        await self._take_turn()
        path = f"{self._directory.snapshots}/{secrets.token_hex(4)}"
        try:
            taken: list[Snapshot] = []

            async def make() -> None:
                taken.append(Snapshot(path, await self._make(path)))

            try:
                # The copy is not cancelled half-way: while it runs, the directory cannot be removed.
                with trio.CancelScope(shield=True):
                    await self._checkpointer.after_checkpoint(make)
                yield taken[0]
            finally:
                with trio.CancelScope(shield=True):
                    await self._off_loop(lambda: let_go_of_snapshot(self._files, path))
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        with trio.move_on_after(_PATIENCE_S) as waiting:
            await self._turn.acquire()
        if waiting.cancelled_caught:
            raise OverloadedError(
                f"another backup is copying a snapshot of {self._directory.path}; wait for its end or stop it"
            )

    async def _make(self, path: str) -> int:
        try:
            # The views first: what they contain is then durable in the journal, which is copied up to a later point.
            await self._off_loop(lambda: self._copy_views(path))
            async with self._segment_files.hold():
                written = await self._checkpointer.journal.written()
                await self._off_loop(lambda: self._copy_rest(path, written))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(f"{self._directory.path}: {error.strerror}; free some space") from error
            if error.errno == errno.EXDEV:
                raise StorageFailedError(
                    f"no snapshot of {self._directory.path} can be made: {error.filename} is on another file system "
                    f"than {self._directory.snapshots}; only journal/ and state/ may be. The server continues without "
                    f"it: back up while it is stopped, or move that directory to the file system of the others"
                ) from error
            raise StorageFailedError(
                f"no snapshot of {self._directory.path} can be made: {error}; the server continues without it"
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
        # Copies, not links: journal/ may be a file system of its own.
        write_markers(files, path, self._directory.node_id)
        for name in segment_directories(files, source):
            self._link_all(f"{source}/{name}", f"{path}/{name}")
        # Without its note, a Parquet file that was placed but not decided would be taken for a valid one.
        self._link_all(f"{source}/sealing", f"{path}/sealing", only=".place")

    def _link_all(self, source: str, target: str, *, only: str = "") -> None:
        self._files.mkdir(target)
        for name in self._files.listdir(source):
            if name.endswith(only):
                self._files.link(f"{source}/{name}", f"{target}/{name}")

    def _copy_journal_file(self, written: WrittenFile, target: str) -> None:
        """Copy the written part of a journal file; the rest is a hole, which reads as zeros like the original."""
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
