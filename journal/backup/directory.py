"""A backup directory: objects named by the digest of what they hold, and a manifest for each backup.

::

    BACKUP                  JSON: version of the layout, id of the node
    LOCK                    held by the process that writes or reads the directory
    manifests/00000001      which files the backup consists of, see `journal.backup.manifest`
    objects/ab/abcd...      the content whose SHA-256 is abcd...
    incoming                an object or manifest that is being written

What two backups have in common is stored once. An object never changes; a manifest gets its name when all its objects
are durable. So whatever a crash interrupts, the backups before it stay as they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import attrs

from journal.backup.manifest import FileEntry, Header, ManifestDecoder, ManifestEncoder, Seal, lines_of
from journal.json_files import read_marker, write_marker
from shards.errno_advice import way_out
from shards.errors import CorruptionError, DataDirectoryError
from shards.file_system import File, FileSystem, make_durable_directory

LAYOUT_VERSION = 1
CHUNK_BYTES = 1 << 20

_MARKER = "BACKUP"
_MANIFEST = re.compile(r"\d{8}")
_ZEROES = bytes(CHUNK_BYTES)
_OWN = frozenset((_MARKER, f"{_MARKER}.new", "LOCK", "manifests", "objects", "incoming", "lost+found"))


@attrs.frozen(slots=True)
class Manifest:
    """A manifest that was read to its end and is whole."""

    path: str
    header: Header
    seal: Seal


class BackupDirectory:
    """A backup directory that this process holds; made by `opened_for_writing` or `opened_for_reading`.

    Attributes:
        path: The directory.
        node_id: Whose backups it holds.
    """

    def __init__(self, files: FileSystem, path: str, node_id: str) -> None:
        self._files = files
        self.path = path
        self.node_id = node_id

    # Objects

    def object_path(self, sha256: str) -> str:
        """Where the content with this digest lies, or would."""
        return f"{self.path}/objects/{sha256[:2]}/{sha256}"

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Whether the content is there, as far as its size tells."""
        path = self.object_path(sha256)
        return self._files.exists(path) and _size(self._files, path) == size_bytes

    def put(self, source: File, size_bytes: int, told: Callable[[int], None]) -> str:
        """Store the first bytes of a file, and give their digest. It is durable after `sync`.

        Raises:
            OSError: The disk refused.
        """
        incoming = f"{self.path}/incoming"
        digest = hashlib.sha256()
        file = self._files.open(incoming, create=True)
        try:
            file.truncate(0)
            position = 0
            for chunk in chunks_of(source, size_bytes):
                digest.update(chunk)
                # Journal files end with long runs of zeros: they become holes.
                if chunk != _ZEROES[: len(chunk)]:
                    file.pwritev([chunk], position)
                position += len(chunk)
                told(len(chunk))
            file.truncate(position)
        finally:
            file.close()
        sha256 = digest.hexdigest()
        self._files.mkdir(f"{self.path}/objects/{sha256[:2]}")
        self._files.rename(incoming, self.object_path(sha256))
        return sha256

    # Manifests

    def numbers(self) -> list[int]:
        """Numbers of the backups, oldest first."""
        names = self._files.listdir(f"{self.path}/manifests")
        return sorted(int(name) for name in names if _MANIFEST.fullmatch(name))

    def manifest_path(self, number: int) -> str:
        """Where the manifest of a backup lies."""
        return f"{self.path}/manifests/{number:08}"

    def entries(self, number: int) -> Iterator[FileEntry]:
        """The files of a backup, in order. They may be relied on when the iteration has come to its end.

        Raises:
            CorruptionError: The manifest is not whole.
        """
        yield from self._decoder(number).entries()

    def read(self, number: int) -> Manifest:
        """Read a manifest to its end.

        Raises:
            CorruptionError: It is not whole, or of another node or number.
            DataDirectoryError: There is no such backup.
        """
        path = self.manifest_path(number)
        if not self._files.exists(path):
            there = ", ".join(map(str, self.numbers())) or "none"
            raise DataDirectoryError(f"{self.path} has no backup {number}; there are: {there}")
        decoder = self._decoder(number)
        for _ in decoder.entries():
            pass
        header = decoder.header
        if (header.number, header.node_id) != (number, self.node_id):
            raise CorruptionError(
                path, 0, f"expected backup {number} of node {self.node_id}, found {header.number} of {header.node_id}"
            )
        assert decoder.seal is not None  # the entries came to their end
        return Manifest(path, header, decoder.seal)

    def _decoder(self, number: int) -> ManifestDecoder:
        path = self.manifest_path(number)

        def chunks() -> Iterator[bytes]:
            file = self._files.open(path, write=False)
            try:
                yield from chunks_of(file, file.size())
            finally:
                file.close()

        return ManifestDecoder(path, lines_of(chunks(), path))

    def write(self, header: Header, entries: Iterable[FileEntry]) -> Manifest:
        """Store all objects' manifest, durably, when the entries have come to their end; see `put`.

        Raises:
            OSError: The disk refused.
        """
        aside = f"{self.path}/manifests/{header.number:08}.new"
        encoder = ManifestEncoder()
        file = self._files.open(aside, create=True)
        try:
            file.truncate(0)
            line = encoder.header(header)
            file.pwritev([line], 0)
            position = len(line)
            for entry in entries:
                line = encoder.entry(entry)
                file.pwritev([line], position)
                position += len(line)
            last = encoder.seal()
            file.pwritev([last], position)
            file.fsync()
        finally:
            file.close()
        # Objects may be of any age: a backup that was killed has synced none of its own.
        try:
            self._files.sync_all(self.path)
        except OSError:
            # What they hold may not be on the disk, and the next sync would not tell of it again.
            with suppress(OSError, CorruptionError):
                self._remove_objects_but(self._digests(self.numbers()))
            raise
        self._files.rename(aside, self.manifest_path(header.number))
        self._files.sync_directory(f"{self.path}/manifests")
        return self.read(header.number)

    # Leaving

    def prune(self, keep: int) -> int:
        """Remove all but the newest backups, and what no backup refers to; gives the bytes that this frees.

        Raises:
            CorruptionError: A manifest that stays cannot be read; then nothing is removed.
        """
        numbers = self.numbers()
        kept, dropped = numbers[-keep:], numbers[:-keep]
        wanted = self._digests(kept)
        for number in dropped:
            self._files.remove(self.manifest_path(number))
        if dropped:
            self._files.sync_directory(f"{self.path}/manifests")
        for name in self._files.listdir(f"{self.path}/manifests"):
            if name.endswith(".new"):
                self._files.remove(f"{self.path}/manifests/{name}")
        return self._remove_objects_but(wanted)

    def _digests(self, numbers: Iterable[int]) -> set[bytes]:
        """What backups refer to."""
        return {bytes.fromhex(entry.sha256) for number in numbers for entry in self.entries(number)}

    def _remove_objects_but(self, wanted: set[bytes]) -> int:
        """Remove all other objects; gives the bytes that this frees."""
        freed = 0
        for fan in self._files.listdir(f"{self.path}/objects"):
            for name in self._files.listdir(f"{self.path}/objects/{fan}"):
                path = f"{self.path}/objects/{fan}/{name}"
                if len(name) == 64 and bytes.fromhex(name) not in wanted:
                    freed += _size(self._files, path)
                    self._files.remove(path)
        return freed


def is_backup(files: FileSystem, path: str) -> bool:
    """Whether a directory holds backups."""
    return files.exists(f"{path}/{_MARKER}")


@contextmanager
def opened_for_writing(files: FileSystem, path: str, node_id: str) -> Iterator[BackupDirectory]:
    """Hold a backup directory for the backups of one node; make it one if it is empty or not there.

    Raises:
        DataDirectoryError: It is in use, cannot be written, holds something else, or the backups of another node.
        FormatVersionError: A newer program made it.
    """
    try:
        make_durable_directory(files, path)
    except OSError as error:
        raise DataDirectoryError(
            f"backup directory {path} cannot be made: {error.strerror or error}; {way_out(error)}, or choose another"
        ) from error
    lock = files.lock(path)
    try:
        if not is_backup(files, path):
            others = [name for name in files.listdir(path) if name not in _OWN]
            if others:
                raise DataDirectoryError(
                    f"{path} holds {', '.join(others[:3])} and no backups; choose an empty directory for them"
                )
            for name in ("manifests", "objects"):
                make_durable_directory(files, f"{path}/{name}")
            write_marker(files, f"{path}/{_MARKER}", version=LAYOUT_VERSION, node_id=node_id)
            files.sync_directory(path)
        stored = _read_marker(files, path)
        if stored != node_id:
            raise DataDirectoryError(
                f"{path} holds the backups of node {stored}, not those of {node_id}; choose another directory"
            )
        yield BackupDirectory(files, path, node_id)
    finally:
        lock.release()


@contextmanager
def opened_for_reading(files: FileSystem, path: str) -> Iterator[BackupDirectory]:
    """Hold a backup directory to read from it; also one that nobody can write to.

    Raises:
        DataDirectoryError: It is in use, or it holds no backups.
        FormatVersionError: A newer program made it.
    """
    if not is_backup(files, path):
        raise DataDirectoryError(f"{path} holds no backups: it has no file {_MARKER}; name the directory that does")
    try:
        lock = files.lock(path)
    except DataDirectoryError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise
        # Read-only: nobody will take objects away meanwhile.
        lock = None
    try:
        yield BackupDirectory(files, path, _read_marker(files, path))
    finally:
        if lock is not None:
            lock.release()


def _read_marker(files: FileSystem, path: str) -> str:
    name = f"{path}/{_MARKER}"
    return read_marker(files, name, kind="backup layout", version=LAYOUT_VERSION, way_out="use a newer one")


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


def _size(files: FileSystem, path: str) -> int:
    file = files.open(path, write=False)
    try:
        return file.size()
    finally:
        file.close()
