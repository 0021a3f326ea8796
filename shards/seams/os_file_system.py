"""The files of the operating system, behind the interface `shards.seams.file_system.FileSystem`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Sequence
from typing import Self

from shards.errors import DataDirectoryError, way_out
from shards.seams.file_system import LOCK_FILE_NAME, Buffer, Identity
from shards.seams.held_directory import HeldDirectory

_OWNER_ALONE = stat.S_IRUSR | stat.S_IWUSR

_MAX_BUFFERS = 1024  # IOV_MAX of Linux: a longer list is refused with EINVAL.


class OsFile:
    """A file of the operating system. Several threads may use one file at the same time."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        try:
            self._pwritev(buffers, position)
        except OSError as error:
            raise _named(error, f"write at byte {position}", self._where()) from error

    def _pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) <= _MAX_BUFFERS:
            # The usual case: one system call writes everything.
            written = os.pwritev(self._descriptor, buffers, position)
            if written == sum(map(len, buffers)):
                return
            buffers = _without_first(buffers, written)
            position += written
        while buffers:
            written = os.pwritev(self._descriptor, buffers[:_MAX_BUFFERS], position)
            if written == 0 and any(map(len, buffers[:_MAX_BUFFERS])):
                raise OSError(errno.EIO, f"pwritev wrote nothing at byte {position}")
            buffers = _without_first(buffers, written)
            position += written

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        # Fewer bytes: the end of the file, a signal, or more than the 2 GiB that Linux reads in one call.
        pieces = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._descriptor, missing, position + size - missing)):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def readinto(self, buffer: memoryview, position: int) -> int:
        total = os.preadv(self._descriptor, [buffer], position)
        wanted = len(buffer)
        while 0 < total < wanted:
            count = os.preadv(self._descriptor, [buffer[total:]], position + total)
            if count == 0:
                break
            total += count
        return total

    def fdatasync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _named(error, "fdatasync", self._where()) from error

    def _where(self) -> str:
        """Its present path, which may differ from the one that it was opened by."""
        try:
            return os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            return self._path

    def drop_pages(self, position: int, size: int) -> None:
        os.posix_fadvise(self._descriptor, position, size, os.POSIX_FADV_DONTNEED)

    def fsync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _named(error, "fsync", self._where()) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _named(error, "truncate", self._where()) from error

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def modified_ns(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns

    def identity(self) -> Identity:
        return _identity(os.fstat(self._descriptor))

    def fileno(self) -> int:
        return self._descriptor

    def direct_fileno(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsDirectory(HeldDirectory):
    """An open directory of the operating system."""

    @property
    def reports_errors(self) -> bool:
        return _SYNCFS_REPORTS_ERRORS

    def sync_all(self) -> None:
        _syncfs(self._descriptor, self.path)


class DirectoryLock:
    """A locked ``LOCK`` file. Its content, the holder's pid, is for people; the `flock` on it is the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # The file stays: after a removal two processes could lock two files of the same name.
            os.ftruncate(descriptor, 0)
            os.close(descriptor)


class OsFileSystem:
    """The operating system's files (Linux). What it creates is readable for the owner alone, whatever the umask."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return OsFile(os.open(path, flags, _OWNER_ALONE), path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        _make_directory(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise _named(error, "fsync", path) from error
        finally:
            os.close(descriptor)

    def sync_all(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _syncfs(descriptor, path)
        finally:
            os.close(descriptor)

    def open_directory(self, path: str) -> OsDirectory:
        return OsDirectory(path)

    def identity(self, path: str) -> Identity | None:
        try:
            return _identity(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def free_bytes(self, path: str) -> int:
        statistics = os.statvfs(path)
        return statistics.f_bavail * statistics.f_frsize

    def lock(self, directory: str) -> DirectoryLock:
        path = os.path.join(directory, LOCK_FILE_NAME)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ALONE)
        except OSError as error:
            raise DataDirectoryError(_why_not_writable(directory, path, error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DataDirectoryError(
                f"data directory {directory} is in use by the process with pid {holder}, which holds {path}; "
                f"stop that process or choose another data directory"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise DataDirectoryError(_why_not_writable(directory, path, error)) from error
        return DirectoryLock(descriptor)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _without_first(buffers: Sequence[Buffer], size: int) -> list[Buffer]:
    """Return the rest of the buffers after their first `size` bytes, without empty buffers."""
    remaining: list[Buffer] = []
    for buffer in buffers:
        if size >= len(buffer):
            size -= len(buffer)
        else:
            remaining.append(memoryview(buffer)[size:] if size else buffer)
            size = 0
    return remaining


def _named(error: OSError, act: str, path: str) -> OSError:
    """Add the operation and the path to the error of a call on a descriptor."""
    if error.errno is None:
        return error
    return OSError(error.errno, f"{act}: {error.strerror}", path)


def _why_not_writable(directory: str, path: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"data directory {directory} cannot be used: {reason}; create the directory or choose another"
    return (
        f"data directory {directory} cannot be used: {path} cannot be written: {reason}; {way_out(error)}, "
        f"or choose another data directory"
    )


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


_SYNCFS_REPORTS_ERRORS = _kernel_version() >= (5, 8)

_libc_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def _syncfs(descriptor: int, path: str) -> None:
    if _libc_syncfs is None:
        os.sync()
    elif _libc_syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}", path)


def _make_directory(path: str) -> None:
    parent = os.path.dirname(os.path.normpath(path))
    if parent and not os.path.isdir(parent):
        # `os.makedirs` would leave the modes of parents to the umask.
        _make_directory(parent)
    try:
        os.mkdir(path, _OWNER_ALONE | stat.S_IXUSR)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
