"""Journal files on disk: pre-zeroed once, written in place, recycled after a checkpoint.

Writing into space that is allocated already makes an fsync several times cheaper than growing a file, so a file is
zeroed when it is made and never changes its size. Every life of a file has a new random salt, which the group headers
are checksummed with: what an earlier life left behind is never taken for an entry.

Runs on the disk thread, through the `FileSystem` seam; not on the event loop.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import attrs
from crc32c import crc32c

from journal.entry import GROUP_HEADER_SIZE, encode_group_header
from journal.histogram import DURATION_BOUNDS_S, Histogram
from shards.chunks import Readable
from shards.errors import CorruptionError, FormatVersionError
from shards.file_system import File, FileSystem

MAGIC = b"JRNL"
VERSION = 1
FIRST_GROUP_POSITION = 4096
"""The file header has a block of its own."""

_HEADER = struct.Struct("<4sIHHIQQQQ")
_ZEROES = bytes(1 << 20)
_USED = re.compile(r"journal-(\d{16})\.jnl")
_FREE = re.compile(r"free-(\d{16})\.jnl")


@attrs.frozen(slots=True)
class JournalFileHeader:
    """magic, header_crc (over 8..48), version u16, 6 zero bytes, number, salt, file size, first lsn (u64 each).

    Attributes:
        number: Place in the sequence of journal files, from 1.
        salt: Random; seeds the checksum of this life's group headers (its low 32 bits).
        first_lsn: No entry in it has a lower lsn.
    """

    number: int
    salt: int
    size_bytes: int
    first_lsn: int

    def encode(self) -> bytes:
        """One block."""
        fields = _HEADER.pack(MAGIC, 0, VERSION, 0, 0, self.number, self.salt, self.size_bytes, self.first_lsn)
        return (fields[:4] + struct.pack("<I", crc32c(fields[8:])) + fields[8:]).ljust(FIRST_GROUP_POSITION, b"\0")

    @classmethod
    def decode(cls, path: str, data: bytes) -> JournalFileHeader:
        """Read a file's first block.

        Raises:
            CorruptionError: Not a journal file, or a damaged one.
            FormatVersionError: Written by a newer program.
        """
        if len(data) < _HEADER.size:
            raise CorruptionError(
                path, 0, f"a journal file begins with {FIRST_GROUP_POSITION} bytes, found {len(data)}"
            )
        magic, checksum, version, _, _, number, salt, size_bytes, first_lsn = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise CorruptionError(path, 0, f"expected magic {MAGIC!r}, found {magic!r}")
        found = crc32c(data[8 : _HEADER.size])
        if found != checksum:
            raise CorruptionError(path, 0, f"header checksum: expected {checksum:#010x}, found {found:#010x}")
        if version > VERSION:
            raise FormatVersionError(
                f"{path} has journal format {version}, this program knows up to {VERSION}; use a newer one"
            )
        return cls(number, salt, size_bytes, first_lsn)


@attrs.define(slots=True)
class UsedFile:
    """A journal file in use.

    Attributes:
        last_lsn: Highest lsn in it so far.
        keep: It holds damage that somebody may want to look at: it is set aside instead of being recycled.
    """

    path: str
    header: JournalFileHeader
    last_lsn: int = 0
    keep: bool = False


@attrs.frozen(slots=True)
class WrittenFile:
    """How far a journal file is written.

    Attributes:
        end: Position behind its last durable group; for a file that is not the newest, its size.
        last_lsn: Highest lsn in it.
    """

    path: str
    size_bytes: int
    end: int
    last_lsn: int


def journal_path(directory: str, number: int) -> str:
    """Name of the journal file of this number."""
    return f"{directory}/journal-{number:016}.jnl"


def list_journal_files(files: FileSystem, directory: str) -> list[tuple[int, str]]:
    """(number, path) of the files in use, in order."""
    found = [
        (int(match[1]), f"{directory}/{match[0]}")
        for name in files.listdir(directory)
        if (match := _USED.fullmatch(name))
    ]
    return sorted(found)


class JournalWriter:
    """Writes commit groups, each durable when `write_group` returns.

    An error from the file system is final: the writer's owner must stop acknowledging and open the journal anew,
    because after a failed fsync the kernel may hold pages that it will never write.

    Args:
        files: The file system.
        directory: The journal's directory, which exists.
        file_bytes: Size of each file.
        new_salt: Gives 64 random bits for each life of a file.

    Attributes:
        sync_s: How long the fdatasync of each group took.
    """

    def __init__(
        self, files: FileSystem, directory: str, file_bytes: int, new_salt: Callable[[], int], used: list[UsedFile]
    ) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._new_salt = new_salt
        self._used = used
        spares = [(int(match[1]), match[0]) for name in files.listdir(directory) if (match := _FREE.fullmatch(name))]
        numbers = [number for number, _ in spares]
        self._free = [path for _, name in spares if self._is_whole(path := f"{directory}/{name}")]
        # Spares are made in the background while the disk thread may need one: each gets a number of its own.
        self._free_numbers = itertools.count(max(numbers, default=0) + 1)
        self._next_number = used[-1].header.number + 1 if used else 1
        self._current: File | None = None
        self._position = 0
        self._failure: OSError | None = None
        self._end = 0
        self.sync_s = Histogram(DURATION_BOUNDS_S)

    def _is_whole(self, path: str) -> bool:
        """Whether a spare has the size that files have now; one that a crash left half made, or an old one, goes."""
        file = self._files.open(path)
        try:
            size = file.size()
        finally:
            file.close()
        if size != self._file_bytes:
            self._files.remove(path)
        return size == self._file_bytes

    @property
    def largest_group_bytes(self) -> int:
        """Entries of one group must fit into a file together with its header."""
        return self._file_bytes - FIRST_GROUP_POSITION - GROUP_HEADER_SIZE

    @property
    def spare_count(self) -> int:
        """Zeroed files that are ready to be used."""
        return len(self._free)

    @property
    def used_bytes(self) -> int:
        """Bytes of all files that hold entries since the last checkpoint."""
        return sum(file.header.size_bytes for file in self._used)

    @property
    def used_count(self) -> int:
        """Files in use."""
        return len(self._used)

    def written(self) -> list[WrittenFile]:
        """How far each file in use is written, oldest first. What lies before these ends does not change any more.

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

    def resume(self, position: int, *, torn: bool) -> None:
        """Go on writing at this position of the newest used file.

        Args:
            position: End of its last whole group.
            torn: A group that a crash cut off begins there. Its header is wiped out: if the next group goes to another
                file, what is left of this one must not be taken for damage inside the journal.
        """
        newest = self._used[-1]
        self._current = self._files.open(newest.path)
        self._position = position
        if torn:
            self._current.pwritev([bytes(GROUP_HEADER_SIZE)], position)
            self._current.fdatasync()
        # It may have been made under another configuration; what lies behind its own end would not be read back.
        self._end = newest.header.size_bytes

    def write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Make the entries durable.

        Must not return until they will survive power loss.

        Raises:
            OSError: The disk failed; nothing of the group may be acknowledged, now or later.
        """
        with self._final_failure():
            self._write_group(entries, size_bytes, first_lsn, next_lsn)

    @contextmanager
    def _final_failure(self) -> Iterator[None]:
        """Let nothing be written after a failure: the owner hears of it later than the next write is due."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

    def _write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        if self._current is None or self._position + GROUP_HEADER_SIZE + size_bytes > self._end:
            self._next_file(first_lsn)
        assert self._current is not None  # _next_file opened it
        used = self._used[-1]
        header = encode_group_header(used.header.salt & 0xFFFFFFFF, size_bytes, first_lsn, next_lsn)
        self._current.pwritev([header, *entries], self._position)
        began_s = perf_counter()
        self._current.fdatasync()
        self.sync_s.observe(perf_counter() - began_s)
        self._position += GROUP_HEADER_SIZE + size_bytes
        used.last_lsn = next_lsn - 1

    def _next_file(self, first_lsn: int) -> None:
        if not self._free:
            self.add_spare()
        spare = self._free.pop()
        header = JournalFileHeader(self._next_number, self._new_salt(), self._file_bytes, first_lsn)
        file = self._files.open(spare)
        try:
            file.pwritev([header.encode()], 0)
            file.fdatasync()
        except OSError:
            file.close()
            raise
        path = journal_path(self._directory, header.number)
        self._files.rename(spare, path)
        self._files.sync_directory(self._directory)
        if self._current is not None:
            self._current.close()
        self._current = file
        self._position = FIRST_GROUP_POSITION
        self._end = self._file_bytes
        self._next_number += 1
        self._used.append(UsedFile(path, header, first_lsn - 1))

    def add_spare(self) -> None:
        """Make one more zeroed file, so that going on to the next one does not wait for it."""
        path = f"{self._directory}/free-{next(self._free_numbers):016}.jnl"
        file = self._files.open(path, create=True)
        try:
            for position in range(0, self._file_bytes, len(_ZEROES)):
                size = min(len(_ZEROES), self._file_bytes - position)
                file.pwritev([memoryview(_ZEROES)[:size]], position)
            file.fsync()
        except OSError:
            # On a full disk half a spare would only take what is left.
            self._files.remove(path)
            raise
        finally:
            file.close()
        self._files.sync_directory(self._directory)
        self._free.append(path)

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
            if file.keep:
                self._files.rename(file.path, f"{self._directory}/damaged-{file.header.number:016}.jnl")
            elif len(self._free) + len(spares) < spare_count and file.header.size_bytes == self._file_bytes:
                path = f"{self._directory}/free-{next(self._free_numbers):016}.jnl"
                self._files.rename(file.path, path)
                spares.append(path)
            else:
                self._files.remove(file.path)
        self._files.sync_directory(self._directory)
        # Only now: entries must not go into a file whose old name may come back.
        self._free.extend(spares)

    def close(self) -> None:
        """Close the file; everything written is durable already."""
        if self._current is not None:
            self._current.close()
            self._current = None
