"""Life cycle of segment files: moving shared files into place, removing them and the logs of dropped segments.

A shared file is written in ``sealing/`` and renamed to its place before the journal has the decision that makes it
valid. Until then a note in ``sealing/`` names the places, so that a start after a crash finds files that are not
recorded without searching all directories.

The work on files is done one piece after the other, so that a removal never affects a file that replaced the old one.
"""

from __future__ import annotations

import errno
import json
import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import trio

from journal.engine.directory.json_files import write_json
from journal.engine.wal.disk import LimitedOffLoop, OffLoop, RetriableWhenFull, is_full
from shards.errors import ConversionFailedError
from shards.seams.file_system import FileSystem, Identity
from shards.segments.log_segment import LogSegment
from shards.segments.segment import Segment
from shards.segments.segment_paths import FAN_OUT

_NOTE = ".place"
_SYNCED_ONE_BY_ONE = 32
_KNOWN_DIRECTORIES = 10_000


class UnsyncedDirectoryError(OSError):
    """A directory could not be synced: no later sync can prove that its entries will survive a power loss."""


class NotWithdrawnError(OSError):
    """A Parquet file that is not valid is still in its place: its note must stay, so that a start removes it."""


class SegmentFiles:
    """Moves and removes the segment files of one engine.

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
        self._to_remove: deque[LogSegment] = deque()
        self._unsynced: set[str] = set()
        self._known: dict[str, Identity] = {}

    def hold(self) -> trio.CapacityLimiter:
        """Return a lock (``async with``); while it is held, no segment file is created, moved or removed."""
        return self._off_loop.limiter

    # Removing

    def drop(self, segment: Segment) -> bool:
        """Remove the log of a segment that no shard has any more, at the next `settle`; False if it has none.

        A shared file is removed when nothing refers to it any more, see `remove_shared`.
        """
        # An empty segment never had a file: the file with its name belongs to the segment that began at the same
        # offset after it (the mode was switched back and forth without a record in between).
        if isinstance(segment, LogSegment) and segment.size_bytes:
            self._to_remove.append(segment)
            return True
        return False

    @property
    def settled(self) -> bool:
        """Whether no removal is pending."""
        return not self._to_remove

    async def settle(self) -> None:
        """Remove all that is pending. A file that was never written or is already missing is not an error.

        Raises:
            DiskFullError: A file system that needs space to remove a file has none; the next call tries again.
            OSError: The disk failed.
        """
        while not self.settled:
            await self._off_loop(self._settle)

    async def settle_durably(self) -> None:
        """The same, durably. On return nothing is pending, including requests that came in the meantime.

        Raises:
            DiskFullError: As `settle`.
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
        while self._to_remove:
            # Removed from the queue only when it is done: the event loop adds at the other end in the meantime.
            segment = self._to_remove[0]
            with RetriableWhenFull(posixpath.dirname(segment.path)):
                # Some file systems need space to remove a file.
                self._remove(segment.path)
                self._remove(segment.index_path)
            self._to_remove.popleft()

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
        # Also if it is already missing: the process before may have been killed before it synced the directory, and
        # after a power loss the name would return when nothing refers to it any more.
        self._unsynced.add(posixpath.dirname(path))

    def _sync(self, directories: Iterable[str]) -> None:
        there = [directory for directory in sorted(directories) if self._files.exists(directory)]
        if len(there) > _SYNCED_ONE_BY_ONE:
            # The directories may be on different file systems.
            self._files.sync_all(self._log)
            self._files.sync_all(self._sealed)
            return
        for directory in there:
            self._files.sync_directory(directory)

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
            self._require_known(directory, valid)
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

    def _require_known(self, directory: str, valid: Iterable[str]) -> None:
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

    # After a stop

    def clean_up(self, is_valid: Callable[[str], bool]) -> None:
        """Empty ``sealing/``, and remove files that were placed but are not valid. Called at a start.

        Args:
            is_valid: Returns whether the shared file at this path is valid.

        Raises:
            OSError: The disk failed.
        """
        names = self._files.listdir(self._sealing)
        for name in names:
            content = self._read_note(f"{self._sealing}/{name}") if name.endswith(_NOTE) else None
            for place in _shared_places(content):
                if not is_valid(f"{self._sealed}/{place}"):
                    self._remove_shared(f"{self._sealed}/{place}")
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

    def sweep(self, deleted: Iterable[int]) -> None:
        """Remove all logs of shards whose deletion was replayed after a crash; the views do not have their segments.

        Args:
            deleted: Id of each shard.
        """
        ids_of: dict[str, set[str]] = {}
        for shard_id in deleted:
            ids_of.setdefault(f"{self._log}/{shard_id % FAN_OUT:02x}", set()).add(f"{shard_id:016x}")
        for directory, ids in ids_of.items():
            # As in `_remove`: a missing file may be removed in the page cache only.
            if not self._files.exists(directory):
                self._unsynced.add(posixpath.dirname(directory))
                continue
            self._unsynced.add(directory)
            for name in self._files.listdir(directory):
                if name.partition("-")[0] in ids:
                    self._remove(f"{directory}/{name}")


def _shared_places(note: object) -> list[str]:
    """Places of the shared files in a note."""
    places = note.get("files") if isinstance(note, dict) else None
    return [place for place in places if isinstance(place, str)] if isinstance(places, list) else []
