"""Journal files on disk: zeroed once, written in place, recycled after a checkpoint.

Writing into allocated space makes an fsync several times cheaper than growing a file, so a file is zeroed when it is
created and never changes its size. Each use of a file has a new random salt, which seeds the checksums of the group
headers: so the content of an earlier use is never taken for an entry.

`journal.engine.wal.journal_writer` writes them.
"""

from __future__ import annotations

import re
import struct

import attrs
from crc32c import crc32c

from shards.errors import CorruptionError, FormatVersionError
from shards.seams.file_system import FileSystem

MAGIC = b"JRNL"
VERSION = 2
FIRST_GROUP_POSITION = 4096
"""The file header occupies the first block."""

_HEADER = struct.Struct("<4sIHHIQQQQ")

_USED = re.compile(r"journal-(\d{16})\.jnl")


@attrs.frozen(slots=True)
class JournalFileHeader:
    """magic, header_crc (over 8..48), version u16, 6 zero bytes, number, salt, file size, first lsn (u64 each).

    Attributes:
        number: Place in the sequence of journal files, from 1.
        salt: Random; seeds the checksums of the group headers of this use of the file (its low 32 bits).
        first_lsn: No entry in it has a lower lsn. From this lsn on it replaces the content of earlier files.
    """

    number: int
    salt: int
    size_bytes: int
    first_lsn: int

    def encode(self) -> bytes:
        """Encode the header as one block."""
        fields = _HEADER.pack(MAGIC, 0, VERSION, 0, 0, self.number, self.salt, self.size_bytes, self.first_lsn)
        return (fields[:4] + struct.pack("<I", crc32c(fields[8:])) + fields[8:]).ljust(FIRST_GROUP_POSITION, b"\0")

    @classmethod
    def decode(cls, path: str, data: bytes) -> JournalFileHeader:
        """Decode a file's first block.

        Raises:
            CorruptionError: It is not a journal file, or it is damaged.
            FormatVersionError: A newer program wrote it.
        """
        if len(data) < _HEADER.size:
            raise CorruptionError(
                path, 0, f"a journal file has a header of {FIRST_GROUP_POSITION} bytes, found {len(data)}"
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
        keep: It contains damage that an operator may want to inspect: it is renamed instead of being recycled.
        made_here: This process created it; a file of an earlier process is removed instead of being recycled.
    """

    path: str
    header: JournalFileHeader
    last_lsn: int = 0
    keep: bool = False
    made_here: bool = False


@attrs.frozen(slots=True)
class WrittenFile:
    """How far a journal file is written.

    Attributes:
        end: Position after its last durable group; for a file that is not the newest, its size.
        last_lsn: Highest lsn in it.
    """

    path: str
    size_bytes: int
    end: int
    last_lsn: int


def journal_path(directory: str, number: int) -> str:
    """Path of the journal file with this number."""
    return f"{directory}/journal-{number:016}.jnl"


def list_journal_files(files: FileSystem, directory: str) -> list[tuple[int, str]]:
    """(number, path) of the files in use, sorted by number."""
    found = [
        (int(match[1]), f"{directory}/{match[0]}")
        for name in files.listdir(directory)
        if (match := _USED.fullmatch(name))
    ]
    return sorted(found)
