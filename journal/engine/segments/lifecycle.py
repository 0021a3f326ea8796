"""Life cycle of segment files: moving Parquet files into place, removing files of dropped segments, writing marks.

A Parquet file is written in ``sealing/`` and renamed to its place before the journal has the decision that makes it
valid. Until then a note in ``sealing/`` names the place, so that a start after a crash finds a file that is not
recorded without searching all directories. A **mark** next to the Parquet files of a shard tells programs that read the
directory without the engine at which offset the shard starts, if that is inside a Parquet file.

The work on files is done one piece after the other, so that a removal never affects a file that replaced the old one.
"""

from __future__ import annotations

import errno
import json
import posixpath
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import trio

from journal.engine.directory.json_files import write_json
from journal.engine.wal.disk import LimitedOffLoop, OffLoop, RetriableWhenFull, is_full
from shards.errors import ConversionFailedError
from shards.seams.file_system import FileSystem, Identity
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.segment_paths import FAN_OUT, sealed_directory, start_mark_path
from shards.segments.shard import Shard

_NOTE = ".place"
_SYNCED_ONE_BY_ONE = 32
_KNOWN_DIRECTORIES = 10_000


class UnsyncedDirectoryError(OSError):
    """A directory could not be synced: no later sync can prove that its entries will survive a power loss."""


class NotWithdrawnError(OSError):
    """A Parquet file that is not valid is still in its place: its note must stay, so that a start removes it."""


class SegmentFiles:
    """Moves, removes and marks the segment files of one engine.

    Args:
        files: The file system.
        directory: The data directory.
        off_loop: Does what blocks.
    """

    def __init__(self, files: FileSystem, directory: str, off_loop: OffLoop) -> None:
        self._files = files
        self._log = f"{directory}/log"
        self._sealed = f"{directory}/sealed"
        self._sealing = f"{directory}/sealing"
        self._off_loop = LimitedOffLoop(off_loop)
        self._to_remove: deque[LogSegment | ParquetSegment] = deque()
        self._to_mark: dict[int, Shard] = {}
        self._to_tidy: dict[str, set[int]] = {}
        self._unsynced: set[str] = set()
        self._known: dict[str, Identity] = {}

    def hold(self) -> trio.CapacityLimiter:
        """Return a lock (``async with``); while it is held, no segment file is created, moved or removed."""
        return self._off_loop.limiter

    # Removing

    def drop(self, segment: Segment) -> bool:
        """Remove the files of a segment that no shard has any more, at the next `settle`; False if it has no file."""
        # A shared file is removed when nothing refers to it any more, see `remove_shared`.
        if isinstance(segment, ParquetSegment) and segment.place is not None:
            return False
        # An empty segment never had a file: the file with its name belongs to the segment that began at the same
        # offset after it (the mode was switched back and forth without a record in between).
        if isinstance(segment, LogSegment | ParquetSegment) and segment.size_bytes:
            self._to_remove.append(segment)
            return True
        return False

    def mark(self, shard: Shard) -> None:
        """Write a mark at the next `settle` if the shard starts inside a Parquet file."""
        if any(isinstance(segment, ParquetSegment) and segment.place is None for segment in shard.segments[:1]):
            self._to_mark[shard.shard_id] = shard

    @property
    def settled(self) -> bool:
        """Whether no removal and no mark is pending."""
        return not (self._to_remove or self._to_mark or self._to_tidy)

    async def settle(self) -> None:
        """Remove and mark all that is pending. A file that was never written or is already missing is not an error.

        Raises:
            DiskFullError: A mark cannot be written; the next call tries again.
            OSError: The disk failed.
        """
        while not self.settled:
            await self._off_loop(self._settle)

    async def settle_durably(self) -> None:
        """The same, durably. On return nothing is pending, including requests that came in the meantime.

        Raises:
            DiskFullError: A mark cannot be written; the next call tries again.
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
                # A sync in it may be repeated, since the whole mark is written again before it.
                with RetriableWhenFull(self._sealed):
                    self._write_mark(shard)
            except BaseException:
                self._to_mark[shard.shard_id] = shard
                raise
        while self._to_remove:
            # Removed from the queue only when it is done: the event loop adds at the other end in the meantime.
            segment = self._to_remove[0]
            with RetriableWhenFull(posixpath.dirname(segment.path)):
                # Some file systems need space to remove a file.
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
        # Also if it is already missing: the process before may have been killed before it synced the directory, and
        # after a power loss the name would return when nothing refers to it any more.
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
        if not names and self._known.get(directory) in (None, self._files.identity(directory)):
            self._files.remove_directory(directory)
            self._known.pop(directory, None)
            self._unsynced.discard(directory)
            self._unsynced.add(self._sealed)

    def _sync(self, directories: Iterable[str]) -> None:
        there = [directory for directory in sorted(directories) if self._files.exists(directory)]
        if len(there) > _SYNCED_ONE_BY_ONE:
            # The directories may be on different file systems.
            self._files.sync_all(self._log)
            self._files.sync_all(self._sealed)
            return
        for directory in there:
            self._files.sync_directory(directory)

    # Marks

    def _write_mark(self, shard: Shard) -> None:
        first = next(iter(shard.segments), None)
        if (
            not shard.gone
            and isinstance(first, ParquetSegment)
            and first.place is None
            and shard.start_offset > first.base_offset
        ):
            directory = posixpath.dirname(first.path)
            if self._files.exists(directory):
                self._put_mark(directory, shard.shard_id, shard.start_offset)

    def _put_mark(self, directory: str, shard_id: int, start_offset: int) -> None:
        aside = f"{self._sealing}/start-{shard_id:016x}"
        write_json(self._files, aside, {"start_offset": start_offset})
        self._files.rename(aside, start_mark_path(directory, shard_id))
        self._unsynced.add(directory)

    # Placing

    def new_path(self, shard_id: int, base_offset: int) -> str:
        """A new path for writing a Parquet file; never the same, since a worker process may outlive its engine."""
        return f"{self._sealing}/{shard_id:016x}-{base_offset:020}-{secrets.token_hex(4)}.parquet"

    async def place(self, path: str, segment: ParquetSegment, shard: Shard) -> None:
        """Move a synced Parquet file into place, durably. Until it is made valid by a decision, it has a note.

        Args:
            path: The path from `new_path` at which it was written.
            segment: The segment that it will be.
            shard: Its shard.

        Raises:
            ConversionFailedError: Its directory was moved or replaced. Call `withdraw`.
            UnsyncedDirectoryError: The file must not be used, nor another one in its directory.
            OSError: The disk refused, or the file is missing. Call `withdraw`.
        """
        start_offset = shard.start_offset
        others = [other.path for other in shard.segments if isinstance(other, ParquetSegment)]
        await self._off_loop(lambda: self._place(path, segment, start_offset, others))

    def _place(self, path: str, segment: ParquetSegment, start_offset: int, others: list[str]) -> None:
        # A file of this path that is to be removed is replaced now. Other removals wait: only between two flushes it
        # is certain that a log file will not be written again.
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
        self._require_known(directory, others)
        try:
            self._make_directory(directory)
            self._know(directory)
            if start_offset > segment.base_offset:
                self._put_mark(directory, segment.shard_id, start_offset)
            self._files.rename(path, segment.path)
            self._sync_directory(directory)
            self._know(directory)
        except UnsyncedDirectoryError:
            raise
        except OSError as error:
            # A lack of space or a missing file changed nothing, so another attempt is possible. After a failed sync it
            # is not, even if the reason was a lack of space.
            if is_full(error) or isinstance(error, FileNotFoundError):
                raise
            raise UnsyncedDirectoryError(error.errno, error.strerror, directory) from error

    def _require_known(self, directory: str, others: list[str]) -> None:
        """Check that a directory of Parquet files was not replaced: the log file will be removed once it has the file.

        What was there before this process is known by the newest Parquet file of the shard.
        """
        known = self._known.get(directory)
        if known is None:
            is_there = not others or posixpath.dirname(others[-1]) != directory or self._files.exists(others[-1])
        else:
            is_there = self._files.identity(directory) == known
        if not is_there:
            raise ConversionFailedError(
                f"{directory} is not the directory that it was: it was moved or replaced, or files in it are missing. "
                f"Put it back; until then segments of its shard stay log files"
            )

    def _know(self, directory: str) -> None:
        """Remember which directory is in use from now on, or check that it still is that one."""
        found = self._files.identity(directory)
        if found is None or self._known.setdefault(directory, found) != found:
            raise FileNotFoundError(errno.ENOENT, "the directory was moved or replaced", directory)
        if len(self._known) > _KNOWN_DIRECTORIES:
            del self._known[next(iter(self._known))]

    def _make_directory(self, path: str) -> None:
        """Create a directory and its missing parents durably; a full disk and a failed sync raise different errors."""
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

    async def place_shared(self, prefix: str, moves: Sequence[tuple[str, str]], valid: Sequence[str]) -> None:
        """Move synced shared files into place, durably. Until a decision makes them valid, there is a note.

        Args:
            prefix: The path from `new_prefix`.
            moves: For each file where it was written, and its place.
            valid: The shared files that are valid now.

        Raises:
            ConversionFailedError: A directory was moved or replaced. Call `withdraw_shared`.
            UnsyncedDirectoryError: The files must not be used, nor others in their directories.
            OSError: The disk refused, or a file is missing. Call `withdraw_shared`.
        """
        await self._off_loop(lambda: self._place_shared(prefix, moves, valid))

    def _place_shared(self, prefix: str, moves: Sequence[tuple[str, str]], valid: Sequence[str]) -> None:
        places = [place.removeprefix(f"{self._sealed}/") for _, place in moves]
        write_json(self._files, f"{prefix}{_NOTE}", {"files": places})
        self._files.sync_directory(self._sealing)
        directories = sorted({posixpath.dirname(place) for _, place in moves})
        for directory in directories:
            self._require_known_day(directory, valid)
        try:
            for directory in directories:
                self._make_directory(directory)
                self._know(directory)
            for path, place in moves:
                self._files.rename(path, place)
            for directory in directories:
                self._sync_directory(directory)
                self._know(directory)
        except UnsyncedDirectoryError:
            raise
        except OSError as error:
            if is_full(error) or isinstance(error, FileNotFoundError):
                raise
            raise UnsyncedDirectoryError(error.errno, error.strerror, self._sealed) from error

    def _require_known_day(self, directory: str, valid: Iterable[str]) -> None:
        """Check that the directory of a day was not replaced: logs will be removed once it has the file.

        What was there before this process is known by the valid files in it.
        """
        known = self._known.get(directory)
        if known is None:
            others = [path for path in valid if posixpath.dirname(path) == directory]
            is_there = not others or any(map(self._files.exists, others))
        else:
            is_there = self._files.identity(directory) == known
        if not is_there:
            raise ConversionFailedError(
                f"{directory} is not the directory that it was: it was moved or replaced, or files in it are missing. "
                f"Put it back; until then segments of its day stay log files"
            )

    async def withdraw_shared(self, places: Sequence[str]) -> None:
        """Remove shared files that were placed and will not become valid; call `discard_shared` afterwards.

        Raises:
            UnsyncedDirectoryError: It is not known whether the removal is durable; the note must stay.
            NotWithdrawnError: The disk refused; the next start removes the files as long as the note exists.
        """

        def remove() -> None:
            for place in places:
                try:
                    self._remove_shared(place)
                    self._sync_now()
                except UnsyncedDirectoryError:
                    raise
                except OSError as error:
                    raise NotWithdrawnError(error.errno, error.strerror, place) from error

        await self._off_loop(remove)

    async def remove_shared(self, places: Sequence[str]) -> None:
        """Remove shared files to which nothing refers any more, durably. A missing one is not an error.

        Raises:
            DiskFullError: A file system that needs space to remove a file has none; another call may succeed.
            OSError: The disk failed.
        """

        def remove() -> None:
            with RetriableWhenFull(self._sealed):
                for place in places:
                    self._remove_shared(place)
            self._sync_now()

        await self._off_loop(remove)

    def _remove_shared(self, place: str) -> None:
        directory = posixpath.dirname(place)
        self._remove(place)
        if self._files.exists(directory) and not self._files.listdir(directory):
            self._files.remove_directory(directory)
            self._known.pop(directory, None)
            self._unsynced.discard(directory)
            self._unsynced.add(self._sealed)
        elif not self._files.exists(directory):
            self._unsynced.add(self._sealed)

    def _sync_now(self) -> None:
        for directory in sorted(self._unsynced):
            if self._files.exists(directory):
                self._sync_directory(directory)
            self._unsynced.discard(directory)

    def new_prefix(self, file_id: int) -> str:
        """The beginning of the paths at which the shared files of a conversion are written."""
        return f"{self._sealing}/{file_id:016x}"

    def tails_path(self, prefix: str) -> str:
        """Where the logs are written of which nothing is in a log file, for the conversion with this prefix."""
        return f"{prefix}-tails"

    async def write_aside(self, path: str, content: bytes, position: int) -> None:
        """Write a part of a file in ``sealing/``. It is not synced, as no start needs it.

        Raises:
            OSError: The disk refused.
        """

        def write() -> None:
            file = self._files.open(path, create=True)
            try:
                file.pwritev([content], position)
            finally:
                file.close()

        await self._off_loop(write)

    async def discard_shared(self, prefix: str) -> None:
        """Remove the files in ``sealing/`` of a conversion to shared files that is finished or given up, and its note.

        Raises:
            OSError: The disk refused; the next start removes them.
        """

        def remove() -> None:
            name = posixpath.basename(prefix)
            for leftover in self._files.listdir(self._sealing):
                # The note last: it names files that may be in their places.
                if leftover.startswith(f"{name}-"):
                    self._files.remove(f"{self._sealing}/{leftover}")
            if self._files.exists(f"{prefix}{_NOTE}"):
                self._files.remove(f"{prefix}{_NOTE}")

        await self._off_loop(remove)

    async def discard(self, path: str) -> None:
        """Remove the files in ``sealing/`` of a conversion that is finished or given up, and its note.

        Raises:
            OSError: The disk refused; the next start removes them.
        """

        def remove() -> None:
            for leftover in (path, f"{path}{_NOTE}"):
                if self._files.exists(leftover):
                    self._files.remove(leftover)

        await self._off_loop(remove)

    async def withdraw(self, segment: ParquetSegment) -> None:
        """Remove a file that was placed and will not become valid; call `discard` for its note afterwards.

        Raises:
            UnsyncedDirectoryError: It is not known whether the removal is durable; the note must stay.
            NotWithdrawnError: The disk refused; the next start removes the file as long as the note exists.
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

    def clean_up(self, is_recorded: Callable[[int, str], bool], is_shared: Callable[[str], bool]) -> None:
        """Empty ``sealing/``, and remove files that were placed but are not valid. Called at a start.

        Args:
            is_recorded: Returns whether the shard with this id has, or may have, the file at this path.
            is_shared: Returns whether the shared file at this path is valid.

        Raises:
            OSError: The disk failed.
        """
        names = self._files.listdir(self._sealing)
        for name in names:
            content = self._read_note(f"{self._sealing}/{name}") if name.endswith(_NOTE) else None
            for place in _shared_places(content):
                if not is_shared(f"{self._sealed}/{place}"):
                    self._remove_shared(f"{self._sealed}/{place}")
            note = _place_of_shard(content)
            if note is None:
                continue
            shard_id, path = note[0], f"{self._sealed}/{note[1]}"
            if not is_recorded(shard_id, path):
                directory = posixpath.dirname(path)
                if self._files.exists(path):
                    self._files.remove(path)
                    self._files.sync_directory(directory)
                # The directory may have been created for this file alone.
                self._tidy(directory, {shard_id})
        # Only the notes name these directories: the removals must be durable before the notes are removed.
        unsynced = set(self._unsynced)
        self._sync(unsynced)
        self._unsynced -= unsynced
        for name in names:
            self._files.remove(f"{self._sealing}/{name}")

    def _read_note(self, path: str) -> object:
        file = self._files.open(path, write=False)
        try:
            return json.loads(file.pread(file.size(), 0))
        except ValueError:
            # The note was incomplete when the power failed, so its file was not placed.
            return None
        finally:
            file.close()

    def sweep(self, deleted: Iterable[tuple[int, str]]) -> None:
        """Remove all files of shards whose deletion was replayed after a crash; the views do not have their segments.

        Args:
            deleted: Id and name of each shard.
        """
        ids_of: dict[str, set[str]] = {}
        for shard_id, name in deleted:
            ids_of.setdefault(f"{self._log}/{shard_id % FAN_OUT:02x}", set()).add(f"{shard_id:016x}")
            ids_of.setdefault(sealed_directory(self._sealed, name), set()).add(f"{shard_id:016x}")
        for directory, ids in ids_of.items():
            # As in `_remove`: a missing file may be removed in the page cache only.
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


def _place_of_shard(note: object) -> tuple[int, str] | None:
    """Shard id and place of the file in a note; None if it is of shared files, or incomplete."""
    if isinstance(note, dict) and isinstance(note.get("shard_id"), int) and isinstance(note.get("path"), str):
        return note["shard_id"], note["path"]
    return None


def _shared_places(note: object) -> list[str]:
    """Places of the shared files in a note."""
    places = note.get("files") if isinstance(note, dict) else None
    return [place for place in places if isinstance(place, str)] if isinstance(places, list) else []
