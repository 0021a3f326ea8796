"""A `FileSystem` in memory: for engines without a disk. Nothing survives the object; nothing is ever waited for.

Every method is quick, so it may be called on the event loop. One thread uses it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import sys
import time
from collections.abc import Sequence

from shards.errors import DataDirectoryError
from shards.seams.file_system import Buffer, Identity


class MemoryFileSystem:
    """Files and directories in memory.

    Args:
        unread: Files whose names end so are written and never read, such as those of a write-ahead log that no start
            will recover. They have a size and keep no bytes.
    """

    def __init__(self, *, unread: tuple[str, ...] = ()) -> None:
        self._unread = unread
        self._root = _Directory()
        self._locked: set[str] = set()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        directory, name = self._parent(path)
        content = directory.get(name)
        if content is None:
            if not create:
                raise _error(errno.ENOENT, path)
            content = directory[name] = _Unread() if name.endswith(self._unread) else _Content()
        if isinstance(content, _Directory):
            raise _error(errno.EISDIR, path)
        return MemoryFile(content, path, write)

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except OSError:
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path))

    def mkdir(self, path: str) -> None:
        directory = self._root
        for name in _names(path):
            node = directory.get(name)
            if node is None:
                node = directory[name] = _Directory()
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            directory = node

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        old_directory, old_name = self._parent(source)
        new_directory, new_name = self._parent(target)
        if isinstance(new_directory.get(new_name), _Directory):
            raise _error(errno.EISDIR, target)
        del old_directory[old_name]
        new_directory[new_name] = node

    def link(self, source: str, target: str) -> None:
        node = self._node(source)
        directory, name = self._parent(target)
        if isinstance(node, _Directory):
            raise _error(errno.EPERM, source)
        if name in directory:
            raise _error(errno.EEXIST, target)
        directory[name] = node

    def remove(self, path: str) -> None:
        if isinstance(self._node(path), _Directory):
            raise _error(errno.EISDIR, path)
        directory, name = self._parent(path)
        del directory[name]

    def remove_directory(self, path: str) -> None:
        if self._directory(path):
            raise _error(errno.ENOTEMPTY, path)
        directory, name = self._parent(path)
        del directory[name]

    def sync_directory(self, path: str) -> None:
        self._directory(path)

    def sync_all(self, path: str) -> None:
        self._node(path)

    def open_directory(self, path: str) -> MemoryDirectory:
        self._directory(path)
        return MemoryDirectory(path)

    def identity(self, path: str) -> Identity | None:
        return (0, id(self._node(path))) if self.exists(path) else None

    def free_bytes(self, path: str) -> int:
        """Return the largest number there is: what the machine's memory bounds is the process as a whole."""
        self._node(path)
        return sys.maxsize

    def lock(self, directory: str) -> MemoryLock:
        directory = posixpath.normpath(directory)
        try:
            self._directory(directory)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {directory} cannot be used: {error.strerror}; create the directory or choose another"
            ) from error
        if directory in self._locked:
            raise DataDirectoryError(
                f"data directory {directory} is in use by the process with pid {os.getpid()}; "
                f"stop that process or choose another data directory"
            )
        self._locked.add(directory)
        return MemoryLock(self._locked, directory)

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for name in _names(path):
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            found = node.get(name)
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, name = posixpath.split(posixpath.normpath(path))
        return self._directory(head), name


class MemoryFile:
    """An open file of a `MemoryFileSystem`."""

    def __init__(self, content: _Content | _Unread, path: str, is_writable: bool) -> None:
        self._content: _Content | _Unread | None = content
        self._path = path
        self._is_writable = is_writable

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._to_write().write(buffers, position)

    def pread(self, size: int, position: int) -> bytes:
        return self._to_read().read(size, position)

    def readinto(self, buffer: memoryview, position: int) -> int:
        data = self._to_read().read(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def fdatasync(self) -> None:
        self._opened()

    def drop_pages(self, position: int, size: int) -> None:
        pass

    def fsync(self) -> None:
        self._opened()

    def truncate(self, size: int) -> None:
        self._to_write().truncate(size)

    def size(self) -> int:
        return self._opened().size

    def modified_ns(self) -> int:
        return self._opened().modified_ns

    def identity(self) -> Identity:
        return 0, id(self._opened())

    def fileno(self) -> int:
        """Refuse: no descriptor is behind a file in memory."""
        raise _error(errno.ENOTSUP, self._path)

    def direct_fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self._content = None

    def _opened(self) -> _Content | _Unread:
        if self._content is None:
            raise _error(errno.EBADF, self._path)
        return self._content

    def _to_write(self) -> _Content | _Unread:
        content = self._opened()
        if not self._is_writable:
            raise _error(errno.EBADF, self._path)
        return content

    def _to_read(self) -> _Content:
        content = self._opened()
        if isinstance(content, _Unread):
            raise _error(errno.ENODATA, self._path)
        return content


class MemoryDirectory:
    """An open directory of a `MemoryFileSystem`, which only its owner can change: it is always in its place."""

    reports_errors = True
    found_instead = ""

    def __init__(self, path: str) -> None:
        self.lasting_path = path

    def sync_all(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryLock:
    """A held directory of a `MemoryFileSystem`."""

    def __init__(self, locked: set[str], directory: str) -> None:
        self._locked = locked
        self._directory: str | None = directory

    def release(self) -> None:
        if self._directory is not None:
            self._locked.discard(self._directory)
            self._directory = None


class _Content:
    """The bytes of a file."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.modified_ns = time.time_ns()

    @property
    def size(self) -> int:
        return len(self._data)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        data = self._data
        for buffer in buffers:
            if not len(buffer):
                continue
            if position > len(data):
                data.extend(bytes(position - len(data)))
            data[position : position + len(buffer)] = buffer
            position += len(buffer)
        self.modified_ns = time.time_ns()

    def read(self, size: int, position: int) -> bytes:
        return bytes(memoryview(self._data)[position : position + size])

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self._data.extend(bytes(size - len(self._data)))
        self.modified_ns = time.time_ns()


class _Unread:
    """The size of a file whose bytes nothing reads."""

    def __init__(self) -> None:
        self.size = 0
        self.modified_ns = time.time_ns()

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        size = sum(map(len, buffers))
        if size:
            self.size = max(self.size, position + size)

    def truncate(self, size: int) -> None:
        self.size = size


class _Directory(dict[str, "_Node"]):
    """What has a name in a directory."""


_Node = _Directory | _Content | _Unread


def _names(path: str) -> list[str]:
    return [name for name in posixpath.normpath(path).split("/") if name not in ("", ".")]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
