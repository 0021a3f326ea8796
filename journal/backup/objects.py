"""The objects of a backup in progress: which contents are stored durably already, and storing new ones.

A content counts as stored if an intact manifest names it, since a manifest gets its name after a sync that covered its
contents. Any other file below ``objects/`` is left over from an interrupted or failed backup. Its pages may be lost
although reading it works: when the kernel cannot write pages back, it reports that once, perhaps to another process,
and then marks the pages clean. Such a content is written again, into a new file that replaces the old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from shards.seams.file_system import File, FileSystem

CHUNK_BYTES = 1 << 20

_ZEROES = bytes(CHUNK_BYTES)


class Objects:
    """Stores the contents of one backup.

    Args:
        files: The file system.
        path: The backup directory.
        durable: Digests of the contents that intact manifests name.

    Attributes:
        unsynced_bytes: Size of the contents that were stored since the last sync.
    """

    def __init__(self, files: FileSystem, path: str, durable: set[bytes]) -> None:
        self._files = files
        self._path = path
        self._durable = durable
        self._stored: set[bytes] = set()
        # Opened before the first write, so that its sync reports every failure to write one of the files back.
        self._root = files.open_directory(path)
        self.unsynced_bytes = 0

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Whether the content is stored durably, or was stored by this process; the size is compared, too."""
        digest = bytes.fromhex(sha256)
        if digest not in self._durable and digest not in self._stored:
            return False
        path = object_path(self._path, sha256)
        return self._files.exists(path) and size_of(self._files, path) == size_bytes

    def put(self, source: File, size_bytes: int, told: Callable[[int], None]) -> str:
        """Store the first bytes of a file, replacing an object with the same name; durable after `sync`.

        Returns:
            Their digest.

        Raises:
            OSError: The disk refused.
        """
        incoming = f"{self._path}/incoming"
        if self._files.exists(incoming):
            self._files.remove(incoming)
        digest = hashlib.sha256()
        file = self._files.open(incoming, create=True)
        try:
            position = 0
            for chunk in chunks_of(source, size_bytes):
                digest.update(chunk)
                # Journal files end with long runs of zeros, which become holes.
                if chunk != _ZEROES[: len(chunk)]:
                    file.pwritev([chunk], position)
                position += len(chunk)
                told(len(chunk))
            file.truncate(position)
            if digest.digest() in self._durable or not self._root.reports_errors:
                # A manifest names this content although it was missing: the next backup would count it as durable at
                # once.
                file.fsync()
        finally:
            file.close()
        sha256 = digest.hexdigest()
        target = object_path(self._path, sha256)
        self._files.mkdir(target.rpartition("/")[0])
        self._files.rename(incoming, target)
        self._stored.add(digest.digest())
        self.unsynced_bytes += position
        return sha256

    def sync(self) -> None:
        """Return only when everything stored so far is durable.

        Raises:
            OSError: Something was lost. This backup must fail; the next one stores everything again.
        """
        self._root.sync_all()
        self.unsynced_bytes = 0

    def close(self) -> None:
        """Close the directory."""
        self._root.close()


def object_path(directory: str, sha256: str) -> str:
    """The path of the object with this digest in a backup directory."""
    return f"{directory}/objects/{sha256[:2]}/{sha256}"


def chunks_of(file: File, size_bytes: int) -> Iterator[bytes]:
    """The first bytes of a file, up to 1 MiB at a time; fewer in all only if the file is shorter."""
    position = 0
    while position < size_bytes and (chunk := file.pread(min(CHUNK_BYTES, size_bytes - position), position)):
        yield chunk
        position += len(chunk)


def digest_of(file: File, size_bytes: int, told: Callable[[int], None]) -> str:
    """SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    for chunk in chunks_of(file, size_bytes):
        digest.update(chunk)
        told(len(chunk))
    return digest.hexdigest()


def size_of(files: FileSystem, path: str) -> int:
    """Size of the file at a path."""
    file = files.open(path, write=False)
    try:
        return file.size()
    finally:
        file.close()
