"""One backup as the data directory that it was: a read-only file system.

For checks of a directory through the `FileSystem` interface. RocksDB does not use that interface: `views_of` creates a
directory for it, with links to the objects.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from journal.backup.directory import BackupDirectory
from journal.backup.manifest import FileEntry
from journal.backup.tree import DIRECTORIES
from shards.seams.file_system import File, FileSystem, Identity, Lock, OpenDirectory


class BackupFiles:
    """The files of one backup, under a path that does not exist on the disk.

    Args:
        files: The file system with the objects.
        backup: The backup directory.
        number: Which backup.

    Attributes:
        root: The path of the data directory in this file system.

    Raises:
        CorruptionError: The manifest is damaged.
    """

    def __init__(self, files: FileSystem, backup: BackupDirectory, number: int) -> None:
        self._files = files
        self._backup = backup
        self.root = f"{backup.path}/@{number}"
        self._entries: dict[str, FileEntry] = {}
        self._names: dict[str, set[str]] = {self.root: set()}
        for name in DIRECTORIES:
            self._add_name(f"{self.root}/{name}")
            self._names.setdefault(f"{self.root}/{name}", set())
        for entry in backup.entries(number):
            path = f"{self.root}/{entry.path}"
            self._entries[path] = entry
            self._add_name(path)

    def _add_name(self, path: str) -> None:
        while path != self.root:
            path, _, name = path.rpartition("/")
            self._names.setdefault(path, set()).add(name)

    def entries_below(self, path: str) -> Iterator[tuple[str, str]]:
        """(name, path of the object) of the files in a directory."""
        for name in self.listdir(path):
            yield name, self._backup.object_path(self._entries[f"{path}/{name}"].sha256)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if create or write:
            _refuse(path)
        if path not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._files.open(self._backup.object_path(self._entries[path].sha256), write=False)

    def exists(self, path: str) -> bool:
        return path in self._entries or path in self._names

    def listdir(self, path: str) -> list[str]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted(self._names[path])

    def free_bytes(self, path: str) -> int:
        return 0

    def mkdir(self, path: str) -> None:
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        _refuse(target)

    def link(self, source: str, target: str) -> None:
        _refuse(target)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_directory(self, path: str) -> None:
        _refuse(path)

    def sync_directory(self, path: str) -> None:
        _refuse(path)

    def sync_all(self, path: str) -> None:
        _refuse(path)

    def open_directory(self, path: str) -> OpenDirectory:
        _refuse(path)

    def identity(self, path: str) -> Identity | None:
        return (0, hash(path)) if self.exists(path) else None

    def lock(self, directory: str) -> Lock:
        _refuse(directory)


@contextmanager
def views_of(backup_files: BackupFiles) -> Iterator[str]:
    """A directory that RocksDB can open as the views of the backup; writes there change no object."""
    directory = tempfile.mkdtemp(prefix="journal-check-")
    try:
        for name, stored in backup_files.entries_below(f"{backup_files.root}/state"):
            if name.endswith(".sst"):
                # Tables are large and never changed.
                os.symlink(os.path.abspath(stored), f"{directory}/{name}")
            else:
                shutil.copyfile(stored, f"{directory}/{name}")
        yield directory
    finally:
        shutil.rmtree(directory)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
