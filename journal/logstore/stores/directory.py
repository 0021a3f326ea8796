"""A log store in a directory, for several processes on one machine.

A create writes a file without a name, syncs it, links it to its name (a link replaces nothing), and syncs the
directory. So a process that is killed leaves either a whole object or nothing. Whoever reads an object syncs the
directory first: its creator may have died between the link and the sync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnfitStoreError,
    UnknownOutcomeError,
)
from journal.logstore.keys import check_key, folder_of
from journal.logstore.store import Created
from shards.errors import way_out

_ERRORS: Final[dict[int, type[LogStoreError]]] = {
    errno.ENOENT: StoreUnreachableError,
    errno.EACCES: StoreCredentialsError,
    errno.EPERM: StoreCredentialsError,
    errno.EROFS: StoreCredentialsError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EMFILE: StoreUnreachableError,
    errno.ENFILE: StoreUnreachableError,
    errno.EOPNOTSUPP: UnfitStoreError,
    errno.EISDIR: UnfitStoreError,
}


class DirectoryLogStore:
    """Objects are files below a directory.

    Args:
        path: The directory, which must exist. Its file system needs files without names (``O_TMPFILE``): ext4, XFS,
            Btrfs and
            tmpfs have them, NFS has not.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        # Folders whose own names, up to the directory of the store, are known to be durable.
        self._durable_folders: set[Path] = {self._path}
        if not self._path.is_dir():
            raise StoreUnreachableError(f"{self._path} is no directory: create it, or mount its file system")

    def create(self, key: str, data: bytes) -> Created:
        check_key(key)
        with _errors("create", key), self._directory(key) as directory:
            name = key[key.rfind("/") + 1 :]
            descriptor = os.open(f"/proc/self/fd/{directory}", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
                created = _link(descriptor, directory, name)
            finally:
                os.close(descriptor)
            # Also if the object existed already. Its creator may not have synced the name yet, and the caller may rely
            # on the object from now on: it must still be there after a power loss.
            _sync_name(directory, key)
            return created

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with _errors("get", key):
            try:
                data = (self._path / key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return None
            _sync_folder(self._path / folder_of(key))
            return data

    def list_after(self, key: str) -> list[str]:
        folder = folder_of(key)
        with _errors("list", key):
            try:
                with os.scandir(self._path / folder) as entries:
                    keys = [folder + entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return []
            _sync_folder(self._path / folder)
            return [found for found in keys if found > key]

    def delete(self, key: str) -> None:
        check_key(key)
        with _errors("delete", key):
            try:
                (self._path / key).unlink()
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return
            _sync_folder(self._path / folder_of(key))

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _require_root(self) -> None:
        """What is missing because its file system is not mounted does not count as deleted."""
        os.stat(self._path)

    @contextmanager
    def _directory(self, key: str) -> Iterator[int]:
        """The directory of a key, open; it is created durably if it is missing."""
        folder = self._path / folder_of(key)
        if folder not in self._durable_folders:
            self._make(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make(self, folder: Path) -> None:
        if folder in self._durable_folders:
            return
        self._make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Also if another process has made it, which may have died before it synced it.
        _sync_folder(folder.parent)
        self._durable_folders.add(folder)


def _link(descriptor: int, directory: int, name: str) -> Created:
    try:
        # With a descriptor of a directory, Python calls linkat with AT_SYMLINK_FOLLOW, so the file itself is linked.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        return Created.EXISTS
    return Created.OURS


def _sync_name(directory: int, key: str) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        # The name exists, but may not survive: neither yes nor no.
        raise UnknownOutcomeError(f"create of {key}: sync of its directory: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _errors(what: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = _ERRORS.get(error.errno or 0, UnknownOutcomeError)
        raise kind(f"{what} of {key}: {error.strerror or error}; {way_out(error)}") from error
