"""A backup directory: objects named by the digest of their content, and a manifest for each backup.

::

    BACKUP                  JSON: version of the layout, id of the node
    LOCK                    held by the process that writes or reads the directory
    manifests/00000001      which files the backup consists of, see `journal.backup.manifest`
    manifests/00000002.part the same for the first files of a backup that is being made, or was interrupted
    objects/ab/abcd...      the content whose SHA-256 is abcd...
    incoming                an object that is being written

Contents that two backups share are stored once. An object never changes; a manifest gets its name when all its objects
are durable. So existing backups are unchanged, whatever a crash interrupts. An object that no manifest names is not
trusted: see `journal.backup.objects`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs

from journal.backup.manifest import FileEntry, Header, LastLine, ManifestDecoder, ManifestEncoder, lines_of
from journal.backup.objects import Objects, chunks_of, object_path, size_of
from journal.engine.directory.json_files import read_marker, write_marker
from shards.errors import CorruptionError, DataDirectoryError, FormatVersionError, way_out
from shards.seams.file_system import File, FileSystem, make_durable_directory

LAYOUT_VERSION = 1
PART_BYTES = 4 << 30

_MARKER = "BACKUP"
_MANIFEST = re.compile(r"\d{8}")
_PART = ".part"
_NEW = ".new"
_OWN = frozenset((_MARKER, f"{_MARKER}.new", "LOCK", "manifests", "objects", "incoming", "lost+found"))


@attrs.frozen(slots=True)
class Manifest:
    """A manifest that was read completely and is intact."""

    path: str
    header: Header
    last_line: LastLine


class BackupDirectory:
    """A backup directory that this process has locked; created by `opened_for_writing` or `opened_for_reading`.

    Attributes:
        path: The directory.
        node_id: The node that the backups belong to.
    """

    def __init__(self, files: FileSystem, path: str, node_id: str) -> None:
        self._files = files
        self.path = path
        self.node_id = node_id

    # Objects

    def object_path(self, sha256: str) -> str:
        """The path of the object with this digest."""
        return object_path(self.path, sha256)

    # Manifests

    def numbers(self) -> list[int]:
        """Numbers of the backups, oldest first."""
        names = self._files.listdir(f"{self.path}/manifests")
        return sorted(int(name) for name in names if _MANIFEST.fullmatch(name))

    def manifest_path(self, number: int) -> str:
        """The path of the manifest of a backup."""
        return f"{self.path}/manifests/{number:08}"

    def entries(self, number: int) -> Iterator[FileEntry]:
        """The files of a backup, in order. They are valid only after the iteration has ended without an error.

        Raises:
            CorruptionError: The manifest is damaged.
        """
        yield from self._decoder(number).entries()

    def read(self, number: int) -> Manifest:
        """Read a manifest completely.

        Raises:
            CorruptionError: It is damaged, or of another node or number.
            DataDirectoryError: The backup does not exist.
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
        assert decoder.last_line is not None  # all entries were read
        return Manifest(path, header, decoder.last_line)

    def _decoder(self, number: int) -> ManifestDecoder:
        return self._decoder_of(self.manifest_path(number))

    def _decoder_of(self, path: str) -> ManifestDecoder:
        def chunks() -> Iterator[bytes]:
            file = self._files.open(path, write=False)
            try:
                yield from chunks_of(file, file.size())
            finally:
                file.close()

        return ManifestDecoder(path, lines_of(chunks(), path))

    @contextmanager
    def objects(self) -> Iterator[Objects]:
        """Store the objects of a new backup, for the length of the block."""
        objects = Objects(self._files, self.path, self._durable_digests())
        try:
            yield objects
        finally:
            objects.close()

    def _durable_digests(self) -> set[bytes]:
        """Digests in intact manifests, also of interrupted backups: all of them were synced before the renaming."""
        durable: set[bytes] = set()
        for name in self._files.listdir(f"{self.path}/manifests"):
            if not _MANIFEST.fullmatch(name.removesuffix(_PART)):
                continue
            try:
                decoder = self._decoder_of(f"{self.path}/manifests/{name}")
                durable |= {bytes.fromhex(entry.sha256) for entry in decoder.entries()}
            except (CorruptionError, FormatVersionError):
                # Ignored: contents that only it names are stored again. `prune` reports a damaged manifest.
                continue
        return durable

    def write(
        self, header: Header, entries: Iterable[FileEntry], objects: Objects, part_bytes: int = PART_BYTES
    ) -> Manifest:
        """Store a manifest, durably, after all entries were written and their objects are durable.

        Args:
            header: Its first line.
            entries: The files; their objects are stored when they are returned.
            objects: Stores the objects.
            part_bytes: After this many bytes the objects are synced and recorded in a partial manifest, so that an
                interrupted backup need not store them again.

        Raises:
            OSError: The disk refused.
        """
        aside = f"{self.manifest_path(header.number)}{_NEW}"
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
                if objects.unsynced_bytes >= part_bytes:
                    objects.sync()
                    self._write_part(header.number, file, position, encoder.last_line())
            last = encoder.last_line()
            file.pwritev([last], position)
            file.fsync()
        finally:
            file.close()
        objects.sync()
        self._files.rename(aside, self.manifest_path(header.number))
        self._files.sync_directory(f"{self.path}/manifests")
        return self.read(header.number)

    def _write_part(self, number: int, lines: File, size_bytes: int, last_line: bytes) -> None:
        """Store the written part of a manifest as a valid one of its own. REQUIRES: its objects are durable."""
        path = f"{self.manifest_path(number)}{_PART}"
        part = self._files.open(f"{path}{_NEW}", create=True)
        try:
            part.truncate(0)
            position = 0
            for chunk in chunks_of(lines, size_bytes):
                part.pwritev([chunk], position)
                position += len(chunk)
            part.pwritev([last_line], position)
            part.fsync()
        finally:
            part.close()
        self._files.rename(f"{path}{_NEW}", path)

    # Removing

    def prune(self, keep: int) -> int:
        """Remove all but the newest backups, and objects that no backup refers to; returns the number of freed bytes.

        Raises:
            CorruptionError: A manifest that is to be kept cannot be read; then nothing is removed.
        """
        numbers = self.numbers()
        kept, dropped = numbers[-keep:], numbers[:-keep]
        wanted = self._digests(kept)
        for number in dropped:
            self._files.remove(self.manifest_path(number))
        for name in self._files.listdir(f"{self.path}/manifests"):
            if name.endswith((_PART, _NEW)):
                self._files.remove(f"{self.path}/manifests/{name}")
        # Durable before any object is removed: contents that a manifest names count as stored.
        self._files.sync_directory(f"{self.path}/manifests")
        return self._remove_objects_but(wanted)

    def _digests(self, numbers: Iterable[int]) -> set[bytes]:
        """The digests that backups refer to."""
        return {bytes.fromhex(entry.sha256) for number in numbers for entry in self.entries(number)}

    def _remove_objects_but(self, wanted: set[bytes]) -> int:
        """Remove all other objects; returns the number of freed bytes."""
        freed = 0
        for fan in self._files.listdir(f"{self.path}/objects"):
            for name in self._files.listdir(f"{self.path}/objects/{fan}"):
                path = f"{self.path}/objects/{fan}/{name}"
                if len(name) == 64 and bytes.fromhex(name) not in wanted:
                    freed += size_of(self._files, path)
                    self._files.remove(path)
        return freed


def is_backup(files: FileSystem, path: str) -> bool:
    """Whether a directory holds backups."""
    return files.exists(f"{path}/{_MARKER}")


@contextmanager
def opened_for_writing(files: FileSystem, path: str, node_id: str) -> Iterator[BackupDirectory]:
    """Lock a backup directory for the backups of one node; it is created if it is empty or does not exist.

    Raises:
        DataDirectoryError: It is in use, cannot be written, contains something else, or the backups of another node.
        FormatVersionError: A newer program made it.
    """
    try:
        make_durable_directory(files, path)
    except OSError as error:
        raise DataDirectoryError(
            f"backup directory {path} cannot be created: {error.strerror or error}; {way_out(error)}, or choose another"
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
    """Lock a backup directory for reading; a read-only one needs no lock.

    Raises:
        DataDirectoryError: It is in use, or it contains no backups.
        FormatVersionError: A newer program made it.
    """
    if not is_backup(files, path):
        raise DataDirectoryError(f"{path} holds no backups: it has no file {_MARKER}; name the backup directory")
    try:
        lock = files.lock(path)
    except DataDirectoryError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise
        # Read-only: no process can remove objects in the meantime.
        lock = None
    try:
        yield BackupDirectory(files, path, _read_marker(files, path))
    finally:
        if lock is not None:
            lock.release()


def _read_marker(files: FileSystem, path: str) -> str:
    name = f"{path}/{_MARKER}"
    return read_marker(files, name, kind="backup layout", version=LAYOUT_VERSION, way_out="use a newer one")
