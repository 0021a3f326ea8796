"""Where the log of a store goes on after what the journal of this server has, in a small file beside the journal.

It saves a later start the slots between its last checkpoint and the end of its journal. It is not synced: after a power
loss it may be missing, old, or further than the journal. It is used only if the journal has everything before it.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from crc32c import crc32c

from journal.engine.directory.data_directory import LOG_POSITION
from journal.engine.shared_log.writer import ResumePoint
from journal.logstore.keys import Position
from shards.seams.file_system import FileSystem

EVERY_SLOTS: Final = 16
"""It is written after so many slots; those after it are read again at the next start."""

_MAGIC: Final = b"JPOS"
_VERSION: Final = 1
_CONTENT: Final = struct.Struct("<4sIQQQ")
_CHECKSUM: Final = struct.Struct("<I")

_log = logging.getLogger("journal.engine")


def encode_position(point: ResumePoint) -> bytes:
    """The content of the file: 36 bytes."""
    content = _CONTENT.pack(_MAGIC, _VERSION, point.position.epoch, point.position.slot, point.next_lsn)
    return content + _CHECKSUM.pack(crc32c(content))


def decode_position(data: bytes) -> ResumePoint | None:
    """The position in a file; None if it has none that this program can read."""
    if len(data) != _CONTENT.size + _CHECKSUM.size:
        return None
    content = data[: _CONTENT.size]
    magic, version, epoch, slot, next_lsn = _CONTENT.unpack(content)
    if (magic, version, crc32c(content)) != (_MAGIC, _VERSION, *_CHECKSUM.unpack_from(data, _CONTENT.size)):
        return None
    return ResumePoint(Position(epoch, slot), next_lsn)


def read_position(files: FileSystem, directory: str) -> ResumePoint | None:
    """The position that was written last; None if there is none, or if it is damaged or cannot be read.

    Args:
        files: The file system.
        directory: The directory of the journal.
    """
    path = f"{directory}/{LOG_POSITION}"
    try:
        if not files.exists(path):
            return None
        file = files.open(path, write=False)
        try:
            return decode_position(file.pread(_CONTENT.size + _CHECKSUM.size + 1, 0))
        finally:
            file.close()
    except OSError as error:
        _log.warning("%s cannot be read: %s; this start reads more of the log store", path, error)
        return None


class StoredPosition:
    """Writes the file. All methods run in the disk thread.

    Args:
        files: The file system.
        directory: The directory of the journal, which exists.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{LOG_POSITION}"
        self._written: Position | None = None
        self._can_write = True

    def note(self, point: ResumePoint) -> None:
        """Write a position, unless one that is a few slots before it was written last.

        An error of the disk is logged, and then no more is written: nothing depends on it.

        REQUIRES: the journal has everything before it.
        """
        position, written = point.position, self._written
        is_near = written is not None and written.epoch == position.epoch and position.slot - written.slot < EVERY_SLOTS
        if is_near or not self._can_write:
            return
        try:
            self._write(encode_position(point))
        except OSError as error:
            self._can_write = False
            _log.warning("%s cannot be written: %s; the next start reads more of the log store", self._path, error)
        self._written = position

    def _write(self, data: bytes) -> None:
        file = self._files.open(self._path, create=True)
        try:
            file.pwritev([data], 0)
        finally:
            file.close()
