"""Writing the journal: groups in files that are made once, written in place, and recycled after a checkpoint.

A process trusts only what it wrote and synced itself. What it finds at its start may be in the page cache only, and
after a failed sync the kernel may never write it. So it continues in a new file (`JournalWriter.begin`), and removes
the files of earlier processes rather than recycling them.

Runs in the disk thread, through the `FileSystem` interface; never on the event loop. The one exception is a group that
the disk writes itself: its place is given out and noted on the event loop, while the disk does nothing else.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter

from journal.engine.wal.background_sync import BackgroundSync
from journal.engine.wal.disk import DirectOutcome, DirectWrite, RetriableWhenFull
from journal.engine.wal.entry import GROUP_HEADER_SIZE, encode_group_header
from journal.engine.wal.journal_file import (
    FIRST_GROUP_POSITION,
    JournalFileHeader,
    UsedFile,
    WrittenFile,
    journal_path,
)
from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram
from shards.seams.file_system import File, FileSystem
from shards.segments.chunks import Readable

_ZEROES = bytes(1 << 20)
_LEAST_ROOM_BYTES = 64 << 10
"""Room in a file that is created on a full disk: for trims and deletions, which free space."""

_FREE = re.compile(r"free-(\d{16})\.jnl")


class JournalWriter:
    """Writes commit groups, each durable when `write_group` returns. Call `begin` first.

    Copies of groups that are durable elsewhere are written with `write_copy`: at most the last one is not synced yet.
    So a power loss takes the end of the last group, and never leaves a hole before it.

    An error of the file system is final: the owner must stop acknowledging and open the journal again, because after a
    failed fsync the kernel may hold pages that it will never write.

    Args:
        files: The file system.
        directory: The journal's directory, which exists.
        file_bytes: Size of each file.
        new_salt: Returns 64 random bits for each use of a file.
        used: The files that the recovery found, oldest first.
        spares: Highest number of the zeroed files that an orderly stop left; all other zeroed files are removed.

    Attributes:
        sync_s: Seconds that the fdatasync of each group took.
        used_bytes: Bytes of all files that contain entries since the last checkpoint.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        file_bytes: int,
        new_salt: Callable[[], int],
        used: list[UsedFile],
        spares: int = 0,
    ) -> None:
        self._files = files
        self._directory = directory
        self._retriable_when_full = RetriableWhenFull(directory)
        self._file_bytes = file_bytes
        self._new_salt = new_salt
        self._used = used
        self.used_bytes = 0
        self._count_used()
        found = [(int(match[1]), match[0]) for name in files.listdir(directory) if (match := _FREE.fullmatch(name))]
        self._free = [
            path for number, name in found if self._is_usable(path := f"{directory}/{name}", is_whole=number <= spares)
        ]
        # Spares are made in another thread while the disk thread may need one: each gets its own number.
        self._free_numbers = itertools.count(max((number for number, _ in found), default=0) + 1)
        self._next_number = used[-1].header.number + 1 if used else 1
        self._current: File | None = None
        self._position = 0
        self._next_lsn = 0
        self._is_marked = False
        self._failure: OSError | None = None
        self._end = 0
        self._sync = BackgroundSync("journal-sync")
        self.sync_s = Histogram(DURATION_BOUNDS_S)

    def _is_usable(self, path: str, *, is_whole: bool) -> bool:
        """Whether a spare is known to be complete and has the present file size; removes it otherwise."""
        file = self._files.open(path)
        try:
            size = file.size()
        finally:
            file.close()
        if is_whole and size == self._file_bytes:
            return True
        self._files.remove(path)
        return False

    @property
    def largest_group_bytes(self) -> int:
        """Largest size of a group's entries, so that they fit into a file with their header and the mark at its end."""
        return self._file_bytes - FIRST_GROUP_POSITION - 2 * GROUP_HEADER_SIZE

    @property
    def spare_count(self) -> int:
        """Number of zeroed files that are ready for use."""
        return len(self._free)

    @property
    def newest_spare(self) -> int:
        """The highest number among the spares, 0 if there are none."""
        numbers = (_FREE.fullmatch(path.rpartition("/")[2]) for path in self._free)
        return max((int(match[1]) for match in numbers if match), default=0)

    @property
    def newest_number(self) -> int:
        """Number of the file that is being written."""
        return self._used[-1].header.number

    def _count_used(self) -> None:
        # Counted when it changes: every chunk that is received asks for it.
        self.used_bytes = sum(file.header.size_bytes for file in self._used)

    @property
    def used_count(self) -> int:
        """Number of files in use."""
        return len(self._used)

    @property
    def is_marked(self) -> bool:
        """Whether something durable after the last group proves that it was complete, or there is no group."""
        return self._is_marked

    def written(self) -> list[WrittenFile]:
        """How far each file in use is written, oldest first. The bytes before these ends do not change any more.

        Call it where `write_group` is called: between two groups.
        """
        newest = len(self._used) - 1
        return [
            WrittenFile(
                file.path,
                file.header.size_bytes,
                self._position if at == newest else file.header.size_bytes,
                file.last_lsn,
            )
            for at, file in enumerate(self._used)
        ]

    def begin(self, first_lsn: int, entries: Readable = b"", next_lsn: int | None = None) -> None:
        """Continue in a new file. Call it once, before any other method.

        What the recovery found may be in the page cache only. No later group proves that its last group was synced, so
        that group is written again here. The new file replaces the content of earlier files from ``first_lsn`` on: a
        torn group, or the group that is copied.

        Must not return before the file, its name and the group will survive power loss.

        Args:
            first_lsn: lsn of the first entry that is copied, or else of the next entry.
            entries: The entries of the last group, to be copied.
            next_lsn: lsn after the last group.

        Raises:
            OSError: The disk failed. The content of the last recovered group must not be used.
        """
        with self._final_failure():
            self._open_next(first_lsn, entries, first_lsn if next_lsn is None else next_lsn)
            self._is_marked = not len(entries)
            # A start that was killed before it wrote anything left such a file; it is replaced completely.
            replaced = [file for file in self._used[:-1] if file.header.first_lsn >= first_lsn and not file.keep]
            for file in replaced:
                self._files.remove(file.path)
                self._used.remove(file)
            self._count_used()

    def write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Make the entries durable.

        Must not return before they will survive power loss.

        Raises:
            DiskFullError: There is no space for another file. Nothing of the group is valid; write it again later.
            OSError: The disk failed; nothing of the group may be acknowledged, now or later.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._write_group(entries, size_bytes, first_lsn, next_lsn)
        except OSError as error:
            self._failure = error
            raise

    def place(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> DirectWrite | None:
        """Where the disk can write and sync a group without this object; None if that takes `write_group`.

        That is so if another file or another sync comes first, and for files that are not the operating system's. On
        the event loop: the disk does nothing else until `placed` was called.
        """
        current = self._current
        if (
            current is None
            or self._failure is not None
            or self._sync.is_under_way
            or self._position + GROUP_HEADER_SIZE + size_bytes > self._end
            or (descriptor := current.direct_fileno()) is None
        ):
            return None
        header = encode_group_header(self._used[-1].header.salt & 0xFFFFFFFF, size_bytes, first_lsn, next_lsn)
        return DirectWrite(descriptor, [header, *entries], self._position, size_bytes, next_lsn)

    def placed(self, write: DirectWrite, result: DirectOutcome) -> None:
        """Note that a group of `place` was written. On the event loop.

        REQUIRES: it was; otherwise call `write_group`.

        Raises:
            OSError: The sync failed; nothing of the group may be acknowledged, now or later.
        """
        if result.error_number:
            text = f"fdatasync: {os.strerror(result.error_number)}"
            self._failure = OSError(result.error_number, text, self._used[-1].path)
            raise self._failure
        self.sync_s.observe(result.sync_s)
        self._note_written(write.size_bytes, write.next_lsn)

    def write_copy(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Write entries that are durable elsewhere. They are synced in the background, before anything else is written.

        Raises:
            DiskFullError: There is no space for another file. Nothing of the group is valid; write it again later.
            OSError: The disk failed, perhaps when the group before was synced.
        """
        with self._final_failure():
            self._finish_sync()
            self._sync.begin(self._write(entries, size_bytes, first_lsn, next_lsn))
            self._note_written(size_bytes, next_lsn)

    def _write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        self._finish_sync()
        current = self._write(entries, size_bytes, first_lsn, next_lsn)
        began_s = perf_counter()
        current.fdatasync()
        self.sync_s.observe(perf_counter() - began_s)
        self._note_written(size_bytes, next_lsn)

    def _finish_sync(self) -> None:
        if (took_s := self._sync.finish()) is not None:
            self.sync_s.observe(took_s)

    def write_mark(self) -> None:
        """Prove durably that the last group was complete, so that damage to it is never taken for a torn write.

        Raises:
            DiskFullError: There is no space for the mark; try again later.
            OSError: The disk failed, now or before; nothing more may be written.
        """
        with self._final_failure():
            if self._is_marked:
                return
            self._finish_sync()
            if self._position + GROUP_HEADER_SIZE > self._end:
                self._next_file(self._next_lsn)
            else:
                self._write_mark(continues_in=0)
            self._is_marked = True

    @contextmanager
    def _final_failure(self) -> Iterator[None]:
        """Refuse all writes after a failure: the owner may start another write before it is notified."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

    def _write(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> File:
        """Write a group, unsynced; returns its file."""
        if self._position + GROUP_HEADER_SIZE + size_bytes > self._end:
            self._next_file(first_lsn)
        assert self._current is not None, "begin opened it"
        used = self._used[-1]
        header = encode_group_header(used.header.salt & 0xFFFFFFFF, size_bytes, first_lsn, next_lsn)
        with self._retriable_when_full:
            # On a file system that writes in place there is space. On others the whole group is written again before
            # its sync.
            self._current.pwritev([header, *entries], self._position)
        return self._current

    def _note_written(self, size_bytes: int, next_lsn: int) -> None:
        self._position += GROUP_HEADER_SIZE + size_bytes
        self._is_marked = False
        self._next_lsn = next_lsn
        self._used[-1].last_lsn = next_lsn - 1

    def _write_mark(self, *, continues_in: int) -> None:
        assert self._current is not None, "begin opened it"
        lsn = self._next_lsn
        salt = self._used[-1].header.salt & 0xFFFFFFFF
        with self._retriable_when_full:
            # As for a group: nothing of it is valid before the sync, and all of it is written again.
            self._current.pwritev([encode_group_header(salt, 0, lsn, lsn, continues_in)], self._position)
        self._current.fdatasync()
        self._position += GROUP_HEADER_SIZE

    def _next_file(self, first_lsn: int) -> None:
        before, position, used = self._current, self._position, self._used[-1]
        self._open_next(first_lsn, b"", first_lsn)
        assert before is not None, "begin opened it"
        # Durable before the first group of the new file: without that file the journal would be incomplete.
        header = encode_group_header(used.header.salt & 0xFFFFFFFF, 0, first_lsn, first_lsn, self.newest_number)
        before.pwritev([header], position)
        before.fdatasync()
        before.close()

    def _open_next(self, first_lsn: int, entries: Readable, next_lsn: int) -> None:
        """Create the next file, durably, with its first group if it has entries; write to it from now on."""
        size_bytes = len(entries)
        # The group may have been written under a setting with larger files.
        needed_bytes = FIRST_GROUP_POSITION + size_bytes + 2 * GROUP_HEADER_SIZE
        # Nothing of the new file's content is written yet: without space for it the caller may try again.
        with self._retriable_when_full if self._current is not None else nullcontext():
            source, file_bytes = self._zeroed(needed_bytes)
        header = JournalFileHeader(self._next_number, self._new_salt(), file_bytes, first_lsn)
        first_group = (
            [encode_group_header(header.salt & 0xFFFFFFFF, size_bytes, first_lsn, next_lsn), entries]
            if size_bytes
            else []
        )
        path = journal_path(self._directory, header.number)
        file = self._files.open(source)
        try:
            file.pwritev([header.encode(), *first_group], 0)
            file.fdatasync()
            self._files.rename(source, path)
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        self._current = file
        self._position = FIRST_GROUP_POSITION + (GROUP_HEADER_SIZE + size_bytes if size_bytes else 0)
        # There is always room for the mark with the number of the next file.
        self._end = file_bytes - GROUP_HEADER_SIZE
        self._next_number += 1
        self._next_lsn = next_lsn
        self._used.append(UsedFile(path, header, next_lsn - 1, made_here=True))
        self._count_used()

    def _zeroed(self, needed_bytes: int) -> tuple[str, int]:
        """Take a zeroed file that is large enough; (path, size)."""
        if needed_bytes > self._file_bytes:
            return self._make_zeroed(needed_bytes), needed_bytes
        if self._free:
            return self._free.pop(), self._file_bytes
        try:
            return self._make_zeroed(self._file_bytes), self._file_bytes
        except OSError as error:
            if self._current is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A start on a full disk: acknowledged data can still be read, and space can be freed.
            small_bytes = needed_bytes + _LEAST_ROOM_BYTES
            return self._make_zeroed(small_bytes), small_bytes

    def add_spare(self) -> None:
        """Create one more zeroed file, so that the change to the next file does not wait for it."""
        self._free.append(self._make_zeroed(self._file_bytes))

    def _make_zeroed(self, size_bytes: int) -> str:
        path = f"{self._directory}/free-{next(self._free_numbers):016}.jnl"
        file = self._files.open(path, create=True)
        try:
            for position in range(0, size_bytes, len(_ZEROES)):
                size = min(len(_ZEROES), size_bytes - position)
                file.pwritev([memoryview(_ZEROES)[:size]], position)
            file.fsync()
        except OSError:
            # On a full disk an unfinished spare would only take the remaining space.
            self._files.remove(path)
            raise
        finally:
            file.close()
        self._files.sync_directory(self._directory)
        return path

    def release_up_to(self, lsn: int, spare_count: int) -> None:
        """Recycle the files whose entries all have lsns up to this one; keep at most ``spare_count`` spares.

        REQUIRES: a checkpoint of that lsn is durable. The newest file stays in use.

        Raises:
            OSError: The disk failed, now or before; nothing more may be written.
        """
        with self._final_failure():
            self._release_up_to(lsn, spare_count)

    def _release_up_to(self, lsn: int, spare_count: int) -> None:
        spares: list[str] = []
        while len(self._used) > 1 and self._used[1].header.first_lsn <= lsn + 1:
            file = self._used.pop(0)
            self._count_used()
            if file.keep:
                self._files.rename(file.path, f"{self._directory}/damaged-{file.header.number:016}.jnl")
            elif (
                file.made_here
                and len(self._free) + len(spares) < spare_count
                and file.header.size_bytes == self._file_bytes
            ):
                path = f"{self._directory}/free-{next(self._free_numbers):016}.jnl"
                self._files.rename(file.path, path)
                spares.append(path)
            else:
                self._files.remove(file.path)
        self._files.sync_directory(self._directory)
        # Only now: entries must not be written to a file whose old name may return after a crash.
        self._free.extend(spares)

    def close(self) -> None:
        """Close the file, when everything that was written is durable.

        Raises:
            OSError: The disk failed when the last group was synced.
        """
        try:
            self._finish_sync()
        finally:
            self._sync.close()
            if self._current is not None:
                self._current.close()
                self._current = None
