"""The interface to files: the protocols `FileSystem`, `File`, `OpenDirectory` and `Lock`.

Their docstrings define the durability promises; every implementation passes
`tests/shards/test_file_system_contract.py`. No file formats here. Modules of the storage packages open, sync and rename
files only through these (RocksDB, which owns its directory, is the only exception).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""Flat bytes. A memoryview must be contiguous and of format ``B``."""

Identity = tuple[int, int]
"""Which file or directory it is: file system and inode. Another one may have the same after this one was removed."""

LOCK_FILE_NAME = "LOCK"


class File(Protocol):
    """An open file. Positions are bytes from its start; there is no file pointer.

    Written bytes are visible to every reader at once and are durable only after `fdatasync`, `fsync` or
    `FileSystem.sync_all` has returned. Every method raises `OSError`. A failed sync is final: the lost pages count as
    clean afterwards, so a later sync that succeeds proves nothing.
    """

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one after the other from `position` on. After an error any part of them may be written."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes from `position` on; fewer only at the end of the file."""
        ...

    def readinto(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position` on and return the number of bytes read; fewer only at the end of the file."""
        ...

    def fdatasync(self) -> None:
        """Return when the content, and the size if it changed, is durable."""
        ...

    def drop_pages(self, position: int, size: int) -> None:
        """Tell the operating system that the cached pages of these bytes are not needed soon; only a hint.

        Unsynced pages stay in the cache.
        """
        ...

    def fsync(self) -> None:
        """Return when content and metadata are durable. The file's directory entry is not: see `sync_directory`."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros, to `size` bytes."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def modified_ns(self) -> int:
        """Return the modification time in nanoseconds of the file system's clock, whose resolution may be low."""
        ...

    def identity(self) -> Identity:
        """Which file it is, whatever its path means by now."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that `sendfile` and `mmap` can use."""
        ...

    def direct_fileno(self) -> int | None:
        """A descriptor by which bytes may be written and synced past this object; None if all has to go through it."""
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing. It makes nothing durable."""
        ...


class OpenDirectory(Protocol):
    """A directory that is kept open, so that every failure to write a file below it is noticed, and its replacement.

    The kernel writes dirty pages back in the background. If that fails, the error is reported to descriptors that were
    open at that moment; one that is opened later may find a clean file and no error.

    Attributes:
        reports_errors: Whether `sync_all` reports every failure since the directory was opened, including those of
            files that were closed since. True on Linux since 5.8; where it is False, each file has to be synced by a
            descriptor that was open when it was written.
        lasting_path: A path that means this directory until it is closed, also after its own path means another one or
            none; equal to its own path where there is no such path.
        found_instead: What is under its own path in its place, in words; empty if it is where it was opened.
    """

    @property
    def reports_errors(self) -> bool: ...

    @property
    def lasting_path(self) -> str: ...

    @property
    def found_instead(self) -> str: ...

    def sync_all(self) -> None:
        """Return when everything that was written on the directory's file system is durable.

        Raises:
            OSError: Something written there since the directory was opened, or since the last call, was lost.
        """
        ...

    def close(self) -> None:
        """Close it; a second call does nothing."""
        ...


class Lock(Protocol):
    """A directory that is locked against other processes."""

    def release(self) -> None:
        """Release the lock; a second call does nothing. The end of the process releases it, too."""
        ...


class FileSystem(Protocol):
    """Files and directories by path.

    Directory entries (which `open(create=True)`, `mkdir`, `rename`, `link` and `remove` change) are durable only after
    `sync_directory` on their directory has returned.
    """

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a file, for reading only without `write`; with `create` a missing file is created, empty.

        Raises:
            FileNotFoundError: It does not exist and `create` is not set.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def mkdir(self, path: str) -> None:
        """Create a directory and its missing parents; an existing one is not an error."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, or a directory with its content, atomically; an existing target file is replaced."""
        ...

    def link(self, source: str, target: str) -> None:
        """Create a hard link on the same file system. Both paths are the same file; removing one keeps the other.

        Raises:
            FileExistsError: The target exists already.
            FileNotFoundError: The source does not exist.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: It does not exist.
        """
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the entries of this directory are durable."""
        ...

    def sync_all(self, path: str) -> None:
        """Return when everything that was written on the file system of `path` is durable: one call for many files.

        Failures to write pages before this call are not reported; `open_directory` returns an object that reports them.
        """
        ...

    def open_directory(self, path: str) -> OpenDirectory:
        """Open a directory, before its files are written and until they are synced."""
        ...

    def identity(self, path: str) -> Identity | None:
        """Return which file or directory is at a path; None if there is none."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the number of bytes that an ordinary user can still write on the file system of `path`."""
        ...

    def lock(self, directory: str) -> Lock:
        """Lock a directory against other processes, by a file named ``LOCK`` in it.

        Raises:
            DataDirectoryError: Another process (named by its pid) holds it, or the file cannot be created or written.
        """
        ...


def make_durable_directory(file_system: FileSystem, path: str) -> None:
    """Create a directory and its missing parents, and return when their entries are durable.

    It works from the top and syncs each step, so that a repetition after a kill leaves nothing unsynced.
    """
    path = os.path.normpath(path)
    parent = os.path.dirname(path) or "."
    if not file_system.exists(path):
        make_durable_directory(file_system, parent)
        file_system.mkdir(path)
    file_system.sync_directory(parent)
