"""A `FileSystem` in memory that can lose power.

It keeps apart what is durable and what is not yet. `SimulatedFileSystem.crash` makes the file system that the next
start finds: of every write that was not synced, all, nothing or some 512-byte sectors are there; every directory change
that was not synced happened or did not, each by itself. That is more than most file systems do to a program, and no
less than what POSIX allows.

Operations that change something or sync are counted. A test runs a workload once to learn their number and then again
with a crash, or a failing call, at each of them. Files hold their bytes in memory: keep them small.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import posixpath
import threading
from collections.abc import Callable, Sequence

import attrs

from shards.errors import DataDirectoryError
from shards.file_system import LOCK_FILE_NAME, Buffer

SECTOR_BYTES = 512
"""A disk writes a sector whole or not at all."""

Choose = Callable[[int], int]
"""Chooses one of n fates, 0 to n - 1: `random.Random(seed).randrange`, a draw of Hypothesis, or one of those below."""


def everything_lost(fates: int) -> int:
    """Choose that nothing unsynced is there after the crash."""
    return 0


def everything_survived(fates: int) -> int:
    """Choose that everything unsynced is there after the crash."""
    return 1


class CrashNow(BaseException):
    """The power went off. Every later operation raises it too, so no clean-up reaches the disk.

    Not an `Exception`, so that no handler of errors takes it for one.
    """


@attrs.define(eq=False)
class _Content:
    """The bytes of one file."""

    volatile: bytearray = attrs.Factory(bytearray)
    durable: bytearray = attrs.Factory(bytearray)
    unsynced: list[tuple[int, bytes | None]] = attrs.Factory(list)
    """Writes (position, data) and truncations (size, None) since the last sync, in order."""

    changes: int = 0

    def change(self, position: int, data: bytes | None) -> None:
        self.changes += 1
        _apply(self.volatile, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    def after_crash(self, choose: Choose) -> _Content:
        found = bytearray(self.durable)
        for position, data in self.unsynced:
            if data is None:
                if choose(2):
                    _apply(found, position, None)
                continue
            fate = choose(3)  # lost, survived, torn
            if fate == 1:
                _apply(found, position, data)
            elif fate == 2:
                for start, end in _sectors(position, position + len(data)):
                    if choose(2):
                        _apply(found, start, data[start - position : end - position])
        return _Content(volatile=found, durable=bytearray(found))


@attrs.define(eq=False)
class _Directory:
    volatile: dict[str, _Node] = attrs.Factory(dict)
    durable: dict[str, _Node] = attrs.Factory(dict)


_Node = _Content | _Directory


@attrs.frozen
class _EntryChange:
    """A create, rename or remove: entries that change together or not at all."""

    entries: tuple[tuple[_Directory, str, _Node | None], ...]

    def apply_durably(self) -> None:
        for directory, name, node in self.entries:
            _set_entry(directory.durable, name, node)

    def touches(self, directories: set[int]) -> bool:
        return any(id(directory) in directories for directory, _, _ in self.entries)


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    def __init__(self, file_system: SimulatedFileSystem, content: _Content, path: str, write: bool) -> None:
        self._file_system = file_system
        self._content = content
        self._path = path
        self._write = write
        self._closed = False

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._require(writable=True)
        self._file_system._write(self._content, position, b"".join(buffers), self._path)

    def pread(self, size: int, position: int) -> bytes:
        self._require(writable=False)
        return bytes(self._content.volatile[position : position + size])

    def readinto(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def fdatasync(self) -> None:
        self._require(writable=False)
        self._file_system._sync(f"fdatasync {self._path}", [self._content])

    def drop_pages(self, position: int, size: int) -> None:
        self._require(writable=False)

    def fsync(self) -> None:
        self._require(writable=False)
        self._file_system._sync(f"fsync {self._path}", [self._content])

    def truncate(self, size: int) -> None:
        self._require(writable=True)
        self._file_system._truncate(self._content, size, self._path)

    def size(self) -> int:
        self._require(writable=False)
        return len(self._content.volatile)

    def modified_ns(self) -> int:
        self._require(writable=False)
        return self._content.changes

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a simulated file has no descriptor")

    def close(self) -> None:
        self._closed = True

    def _require(self, *, writable: bool) -> None:
        if self._closed or (writable and not self._write):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)


class SimulatedDirectory:
    """An open directory of a `SimulatedFileSystem`."""

    reports_errors = True

    def __init__(self, file_system: SimulatedFileSystem, path: str) -> None:
        self._file_system = file_system
        self._path = path

    def sync_all(self) -> None:
        self._file_system.sync_all(self._path)

    def close(self) -> None:
        """It holds nothing."""


class SimulatedLock:
    """A held directory of a `SimulatedFileSystem`; a crash releases it."""

    def __init__(self, holders: set[str], directory: str) -> None:
        self._holders = holders
        self._directory = directory
        self._released = False

    def release(self) -> None:
        if not self._released:
            self._holders.discard(self._directory)
            self._released = True


class SimulatedFileSystem:
    """Files in memory with a power switch. Threads may share it.

    Args:
        capacity_bytes: Size of the disk; a write that needs more fails with ENOSPC.

    Attributes:
        operations: Names of the counted operations so far; operation number n is ``operations[n - 1]``.
        failed: An injected failure has happened.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 30) -> None:
        self.operations: list[str] = []
        self._capacity_bytes = capacity_bytes
        self._root = _Directory()
        self._contents: list[_Content] = []
        self._entry_changes: list[_EntryChange] = []
        self._holders: set[str] = set()
        self._crash_at = 0
        self._crashed = False
        self.failed = False
        self._failures: dict[int, tuple[int, bool]] = {}
        self._mutex = threading.RLock()

    # What a test does to it.

    def crash_at(self, operation: int) -> None:
        """Raise `CrashNow` at that operation (from 1): a change is issued but not synced, a sync has done nothing."""
        self._crash_at = operation

    def fail_at(self, operation: int, number: int, *, reached_disk: bool = False) -> None:
        """Let that operation (from 1) fail with `OSError(number)`, such as errno.EIO or errno.ENOSPC.

        A failing write leaves its first half. A failing sync leaves its pages clean, as Linux does: a later sync will
        not write them. Whether they got to the disk all the same, `reached_disk` says.
        """
        self._failures[operation] = (number, reached_disk)

    def crash(self, choose: Choose) -> SimulatedFileSystem:
        """Return the file system that is there after a power loss at this moment; this one is off from now on."""
        with self._mutex:
            self._crashed = True
            for change in self._entry_changes:
                if choose(2):
                    change.apply_durably()
            self._entry_changes.clear()
            found = SimulatedFileSystem(capacity_bytes=self._capacity_bytes)
            known: dict[int, _Content] = {}
            found._root = _after_crash(self._root, choose, known)
            found._contents = list(known.values())
            return found

    @property
    def crashed(self) -> bool:
        """Whether the power is off."""
        return self._crashed

    # FileSystem.

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimulatedFile:
        with self._mutex:
            self._require_power()
            directory, name = self._parent(path)
            node = directory.volatile.get(name)
            if node is None:
                if not create:
                    raise _not_found(path)
                node = _Content()
                self._contents.append(node)
                self._change_entries(f"create {path}", [(directory, name, node)])
            if isinstance(node, _Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            return SimulatedFile(self, node, path, write)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._require_power()
            try:
                self._node(path)
            except OSError:
                return False
            return True

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            self._require_power()
            return sorted(self._directory(path).volatile)

    def mkdir(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            directory = self._root
            for name in _names(path):
                node = directory.volatile.get(name)
                if node is None:
                    node = _Directory()
                    self._change_entries(f"mkdir {name} for {path}", [(directory, name, node)])
                if isinstance(node, _Content):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = node

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._require_power()
            node = self._node(source)
            old_directory, old_name = self._parent(source)
            new_directory, new_name = self._parent(target)
            if isinstance(new_directory.volatile.get(new_name), _Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if (old_directory, old_name) != (new_directory, new_name):
                entries = [(old_directory, old_name, None), (new_directory, new_name, node)]
                self._change_entries(f"rename {source} to {target}", entries)

    def link(self, source: str, target: str) -> None:
        with self._mutex:
            self._require_power()
            node = self._node(source)
            directory, name = self._parent(target)
            if isinstance(node, _Directory):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)
            if name in directory.volatile:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._change_entries(f"link {source} to {target}", [(directory, name, node)])

    def remove(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            if isinstance(self._node(path), _Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._change_entries(f"remove {path}", [(*self._parent(path), None)])

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            if self._directory(path).volatile:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._change_entries(f"remove directory {path}", [(*self._parent(path), None)])

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            directory = self._directory(path)
            self._sync(f"sync directory {path}", [], self._changes_of(directory))

    def sync_all(self, path: str) -> None:
        with self._mutex:
            self._node(path)
            self._sync("sync all", self._contents, list(self._entry_changes))

    def open_directory(self, path: str) -> SimulatedDirectory:
        with self._mutex:
            self._require_power()
            self._directory(path)
            return SimulatedDirectory(self, path)

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            self._require_power()
            return self._capacity_bytes - sum(len(content.volatile) for content in self._contents)

    def lock(self, directory: str) -> SimulatedLock:
        with self._mutex:
            directory = posixpath.normpath(directory)
            try:
                self._directory(directory)
            except OSError as error:
                raise DataDirectoryError(
                    f"data directory {directory} cannot be used: {error.strerror}; "
                    f"create the directory or choose another"
                ) from error
            if directory in self._holders:
                raise DataDirectoryError(
                    f"data directory {directory} is in use by the process with pid {os.getpid()}; "
                    f"stop that process or choose another data directory"
                )
            self.open(posixpath.join(directory, LOCK_FILE_NAME), create=True).close()
            self._holders.add(directory)
            return SimulatedLock(self._holders, directory)

    # What files ask for.

    def _write(self, content: _Content, position: int, data: bytes, path: str) -> None:
        with self._mutex:
            failure = self._begin(f"write {len(data)} bytes at {position} of {path}")
            growth = position + len(data) - len(content.volatile)
            if failure is None and data and growth > 0 and growth > self.free_bytes(path):
                failure = errno.ENOSPC, False
            if failure is not None:
                data = data[: len(data) // 2]
            if data:
                content.change(position, data)
            self._end(failure, path)

    def _truncate(self, content: _Content, size: int, path: str) -> None:
        with self._mutex:
            failure = self._begin(f"truncate {path} to {size}")
            if failure is None:
                content.change(size, None)
            self._end(failure, path)

    def _sync(self, what: str, contents: Sequence[_Content], changes: Sequence[_EntryChange] = ()) -> None:
        with self._mutex:
            failure = self._begin(what)
            self._crash_if_due()
            reached_disk = failure is None or failure[1]
            for content in contents:
                if reached_disk:
                    content.sync()
                content.unsynced.clear()
            for change in changes:
                if reached_disk:
                    change.apply_durably()
                self._entry_changes.remove(change)
            self._end(failure, what)

    def _change_entries(self, what: str, entries: Sequence[tuple[_Directory, str, _Node | None]]) -> None:
        failure = self._begin(what)
        if failure is None:
            for directory, name, node in entries:
                _set_entry(directory.volatile, name, node)
            self._entry_changes.append(_EntryChange(tuple(entries)))
        self._end(failure, what)

    # Counting, failing, crashing.

    def _begin(self, what: str) -> tuple[int, bool] | None:
        self._require_power()
        self.operations.append(what)
        failure = self._failures.get(len(self.operations))
        self.failed = self.failed or failure is not None
        return failure

    def _end(self, failure: tuple[int, bool] | None, what: str) -> None:
        self._crash_if_due()
        if failure is not None:
            raise OSError(failure[0], os.strerror(failure[0]), what)

    def _crash_if_due(self) -> None:
        if len(self.operations) == self._crash_at:
            self._crashed = True
            raise CrashNow(f"at operation {len(self.operations)}: {self.operations[-1]}")

    def _require_power(self) -> None:
        if self._crashed:
            raise CrashNow("the power is off")

    # Paths.

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for name in _names(path):
            if isinstance(node, _Content):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.volatile:
                raise _not_found(path)
            node = node.volatile[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, _Content):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, name = posixpath.split(posixpath.normpath(path))
        return self._directory(head), name

    def _changes_of(self, directory: _Directory) -> list[_EntryChange]:
        """Return the unsynced changes of a directory, and of others the earlier ones that these may build on."""
        directories = {id(directory)}
        changes = []
        for change in reversed(self._entry_changes):
            if change.touches(directories):
                changes.append(change)
                directories.update(id(touched) for touched, _, _ in change.entries)
        return changes[::-1]


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Carry out one write, or a truncation if `data` is None."""
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _sectors(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range of bytes at the borders of sectors."""
    borders = [start, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES), end]
    return list(itertools.pairwise(borders))


def _set_entry(entries: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _after_crash(directory: _Directory, choose: Choose, known: dict[int, _Content]) -> _Directory:
    found = _Directory()
    for name, node in sorted(directory.durable.items()):
        if isinstance(node, _Directory):
            found.volatile[name] = _after_crash(node, choose, known)
        else:
            # A rename that was lost and one that was not can leave one file under two names.
            if id(node) not in known:
                known[id(node)] = node.after_crash(choose)
            found.volatile[name] = known[id(node)]
    found.durable.update(found.volatile)
    return found


def _names(path: str) -> list[str]:
    return [name for name in posixpath.normpath(path).split("/") if name not in ("", ".")]


def _not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
