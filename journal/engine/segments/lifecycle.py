"""Files of segments that come and go: Parquet files put into their place, files of dropped segments removed, marks.

A Parquet file is written in ``sealing/`` and renamed to its place before the decision that it counts is in the journal.
Until that is known, a note in ``sealing/`` names the place, so that a start after a crash finds a file that nobody
recorded without looking through all of them. A **mark** beside the Parquet files of a shard tells readers of the bare
directory where a trim inside a file has its border.

Work on the files goes one piece after the other, so that a removal never meets the file that replaces it.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections import deque
from collections.abc import Callable, Iterable

import trio

from journal.engine.directory.json_files import write_json
from journal.engine.wal.disk_full import RetriableWhenFull, is_full
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.segment_paths import FAN_OUT, sealed_directory, start_mark_path
from shards.segments.shard import Shard

_NOTE = ".place"
_SYNCED_ONE_BY_ONE = 32


class UnsyncedDirectoryError(OSError):
    """A directory could not be synced: no retry can tell any more whether its entries will survive."""


class NotWithdrawnError(OSError):
    """A Parquet file that does not count is still in its place: its note must stay, so that a start removes it."""


class SegmentFiles:
    """The comings and goings of one engine's segment files.

    Args:
        files: The file system.
        directory: The data directory.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._log = f"{directory}/log"
        self._sealed = f"{directory}/sealed"
        self._sealing = f"{directory}/sealing"
        self._limiter = trio.CapacityLimiter(1)
        self._to_remove: deque[LogSegment | ParquetSegment] = deque()
        self._to_mark: dict[int, Shard] = {}
        self._to_tidy: dict[str, set[int]] = {}
        self._unsynced: set[str] = set()

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)

    def hold(self) -> trio.CapacityLimiter:
        """While this is held (``async with``), no file of a segment comes or goes."""
        return self._limiter

    # Leaving

    def drop(self, segment: Segment) -> bool:
        """Have the files of a segment removed that no shard holds any more; False if it has none."""
        # An empty segment never had a file: the one of its name belongs to the segment that began at the same
        # offset after it (a mode switched back and forth with no record in between).
        if isinstance(segment, LogSegment | ParquetSegment) and segment.size_bytes:
            self._to_remove.append(segment)
            return True
        return False

    def mark(self, shard: Shard) -> None:
        """Have it marked where the shard starts if that is inside a Parquet file."""
        if any(isinstance(segment, ParquetSegment) for segment in shard.segments[:1]):
            self._to_mark[shard.shard_id] = shard

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be removed or marked."""
        return not (self._to_remove or self._to_mark or self._to_tidy)

    async def settle(self) -> None:
        """Remove and mark what is waiting for it. A file that was never written, or is gone already, is no error.

        Raises:
            DiskFullError: A mark cannot be written; it is tried again.
            OSError: The disk failed.
        """
        while not self.settled:
            await self._off_loop(self._settle)

    async def settle_durably(self) -> None:
        """The same, so that no crash undoes it. When it returns nothing is waiting, whatever came up meanwhile.

        Raises:
            DiskFullError: A mark cannot be written; it is tried again.
            OSError: The disk failed.
        """
        while self._unsynced or not self.settled:
            await self._off_loop(self._settle_durably)

    def _settle_durably(self) -> None:
        self._settle()
        unsynced = set(self._unsynced)
        self._sync(unsynced)
        self._unsynced -= unsynced

    def _settle(self) -> None:
        for shard in list(self._to_mark.values()):
            self._to_mark.pop(shard.shard_id)
            try:
                # A sync in it may be repeated: all of the mark is written again before that.
                with RetriableWhenFull(self._sealed):
                    self._write_mark(shard)
            except BaseException:
                self._to_mark[shard.shard_id] = shard
                raise
        while self._to_remove:
            # Taken off when it is done: the loop adds at the other end meanwhile.
            segment = self._to_remove[0]
            with RetriableWhenFull(posixpath.dirname(segment.path)):
                # There are file systems that need space to remove a file.
                self._remove(segment.path)
                if isinstance(segment, LogSegment):
                    self._remove(segment.index_path)
            if not isinstance(segment, LogSegment):
                self._to_tidy.setdefault(posixpath.dirname(segment.path), set()).add(segment.shard_id)
            self._to_remove.popleft()
        while self._to_tidy:
            directory, shard_ids = next(iter(self._to_tidy.items()))
            with RetriableWhenFull(directory):
                self._tidy(directory, shard_ids)
            del self._to_tidy[directory]

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
        # Also if it is gone already: the process before this one may have been killed before it synced the directory,
        # and the name would come back with a power loss when nothing remembers it any more.
        self._unsynced.add(posixpath.dirname(path))

    def _tidy(self, directory: str, shard_ids: set[int]) -> None:
        """Remove the marks of shards that have no Parquet file any more, and the directory when it is empty."""
        if not self._files.exists(directory):
            self._unsynced.add(posixpath.dirname(directory))
            return
        names = self._files.listdir(directory)
        for shard_id in shard_ids:
            mark = posixpath.basename(start_mark_path(directory, shard_id))
            if mark in names and not any(name.endswith(f"-{shard_id:016x}.parquet") for name in names):
                self._remove(f"{directory}/{mark}")
                names.remove(mark)
        if not names:
            self._files.remove_directory(directory)
            self._unsynced.discard(directory)
            self._unsynced.add(self._sealed)

    def _sync(self, directories: Iterable[str]) -> None:
        there = [directory for directory in sorted(directories) if self._files.exists(directory)]
        if len(there) > _SYNCED_ONE_BY_ONE:
            # They may lie in file systems of their own.
            self._files.sync_all(self._log)
            self._files.sync_all(self._sealed)
            return
        for directory in there:
            self._files.sync_directory(directory)

    # Marks

    def _write_mark(self, shard: Shard) -> None:
        first = next(iter(shard.segments), None)
        if not shard.gone and isinstance(first, ParquetSegment) and shard.start_offset > first.base_offset:
            directory = posixpath.dirname(first.path)
            if self._files.exists(directory):
                self._put_mark(directory, shard.shard_id, shard.start_offset)

    def _put_mark(self, directory: str, shard_id: int, start_offset: int) -> None:
        aside = f"{self._sealing}/start-{shard_id:016x}"
        write_json(self._files, aside, {"start_offset": start_offset})
        self._files.rename(aside, start_mark_path(directory, shard_id))
        self._unsynced.add(directory)

    # Coming

    def new_path(self, shard_id: int, base_offset: int) -> str:
        """Where a Parquet file may be written; never the same again, since a writer may outlive its engine."""
        return f"{self._sealing}/{shard_id:016x}-{base_offset:020}-{secrets.token_hex(4)}.parquet"

    async def place(self, path: str, segment: ParquetSegment, start_offset: int) -> None:
        """Give a synced Parquet file its place, durably. It counts from when that is decided; until then it is noted.

        Args:
            path: Where it was written, as `new_path` gave it.
            segment: The segment that it will be.
            start_offset: Where its shard starts.

        Raises:
            UnsyncedDirectoryError: Do not rely on the file, nor on another one in its directory.
            OSError: The disk refused, or the file is missing. Call `withdraw`.
        """
        await self._off_loop(lambda: self._place(path, segment, start_offset))

    def _place(self, path: str, segment: ParquetSegment, start_offset: int) -> None:
        # A file of this path that waits to be removed is replaced now. Nothing else is settled here: only between two
        # flushes is it sure that a log file will not be written once more.
        for waiting in list(self._to_remove):
            if waiting.path == segment.path:
                self._to_remove.remove(waiting)
        write_json(
            self._files,
            f"{path}{_NOTE}",
            {"shard_id": segment.shard_id, "path": segment.path.removeprefix(f"{self._sealed}/")},
        )
        self._files.sync_directory(self._sealing)
        directory = posixpath.dirname(segment.path)
        try:
            self._make_directory(directory)
            if start_offset > segment.base_offset:
                self._put_mark(directory, segment.shard_id, start_offset)
            self._files.rename(path, segment.path)
            self._sync_directory(directory)
        except UnsyncedDirectoryError:
            raise
        except OSError as error:
            # What found no space or no file changed nothing and may be tried again. A sync that failed may not, also if
            # it was for lack of space.
            if is_full(error) or isinstance(error, FileNotFoundError):
                raise
            raise UnsyncedDirectoryError(error.errno, error.strerror, directory) from error

    def _make_directory(self, path: str) -> None:
        """Make a directory and its missing parents durably. A full disk can be told from a failed sync."""
        parent = posixpath.dirname(path)
        if not self._files.exists(path):
            self._make_directory(parent)
            self._files.mkdir(path)
        self._sync_directory(parent)

    def _sync_directory(self, directory: str) -> None:
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            raise UnsyncedDirectoryError(error.errno, error.strerror, directory) from error

    async def discard(self, path: str) -> None:
        """Remove what ``sealing/`` has of a file that counts, or never will: the note has done its duty.

        Raises:
            OSError: The disk refused; a start does it.
        """

        def remove() -> None:
            for leftover in (path, f"{path}{_NOTE}"):
                if self._files.exists(leftover):
                    self._files.remove(leftover)

        await self._off_loop(remove)

    async def withdraw(self, segment: ParquetSegment) -> None:
        """Take a file away that was placed and will not count; `discard` its note afterwards.

        Raises:
            UnsyncedDirectoryError: Whether the removal lasts is not known; the note must stay.
            NotWithdrawnError: The disk refused; a start does it, as long as the note is there.
        """

        def remove() -> None:
            directory = posixpath.dirname(segment.path)
            try:
                if self._files.exists(segment.path):
                    self._files.remove(segment.path)
                    self._sync_directory(directory)
                self._tidy(directory, {segment.shard_id})
            except UnsyncedDirectoryError:
                raise
            except OSError as error:
                raise NotWithdrawnError(error.errno, error.strerror, segment.path) from error

        await self._off_loop(remove)

    # After a stop

    def clean_up(self, is_recorded: Callable[[int, str], bool]) -> None:
        """Empty ``sealing/``, and remove files that were placed but do not count.

        Args:
            is_recorded: Whether the shard of this number has, or may have, the file at this path.

        Raises:
            OSError: The disk failed.
        """
        names = self._files.listdir(self._sealing)
        for name in names:
            note = self._read_note(f"{self._sealing}/{name}") if name.endswith(_NOTE) else None
            if note is None:
                continue
            shard_id, path = note
            if not is_recorded(shard_id, path):
                directory = posixpath.dirname(path)
                if self._files.exists(path):
                    self._files.remove(path)
                    self._files.sync_directory(directory)
                # It may have been made for this file alone.
                self._tidy(directory, {shard_id})
        # The notes are all that remembers these directories: what was removed must not come back once they are gone.
        unsynced = set(self._unsynced)
        self._sync(unsynced)
        self._unsynced -= unsynced
        for name in names:
            self._files.remove(f"{self._sealing}/{name}")

    def _read_note(self, path: str) -> tuple[int, str] | None:
        file = self._files.open(path, write=False)
        try:
            stored = file.pread(4096, 0)
        finally:
            file.close()
        try:
            content = json.loads(stored)
            return int(content["shard_id"]), f"{self._sealed}/{content['path']}"
        except (ValueError, KeyError, TypeError):
            # It was not whole yet when the power went: nothing was placed on its account.
            return None

    def sweep(self, deleted: Iterable[tuple[int, str]]) -> None:
        """Remove all files of shards that were deleted before a crash, when no view remembers which these were.

        Args:
            deleted: Number and name of each.
        """
        ids_of: dict[str, set[str]] = {}
        for shard_id, name in deleted:
            ids_of.setdefault(f"{self._log}/{shard_id % FAN_OUT:02x}", set()).add(f"{shard_id:016x}")
            ids_of.setdefault(sealed_directory(self._sealed, name), set()).add(f"{shard_id:016x}")
        for directory, ids in ids_of.items():
            # As in `_remove`: what is gone may be gone in the cache alone.
            if not self._files.exists(directory):
                self._unsynced.add(posixpath.dirname(directory))
                continue
            self._unsynced.add(directory)
            names = self._files.listdir(directory)
            for name in names:
                if ids.intersection(posixpath.splitext(name)[0].replace("_", "-").split("-")):
                    self._remove(f"{directory}/{name}")
            if names and directory.startswith(f"{self._sealed}/"):
                self._tidy(directory, set())
