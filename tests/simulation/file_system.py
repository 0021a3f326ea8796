"""A `FileSystem` in memory whose process can be killed and whose machine can lose power.

It keeps apart what is durable and what is not yet. `SimulatedFileSystem.crash` makes the file system that the next
start finds after a power loss: of every write that was not synced, all, nothing or some 512-byte sectors are there;
every directory change that was not synced happened or did not, each by itself. That is more than most file systems do
to a program, and no less than what POSIX allows. `SimulatedFileSystem.kill` makes the one that the next process finds
on the same machine: everything that was written is there, and what was not synced is still not synced.

Operations that change something or sync are counted. A test runs a workload once to learn their number and then again
with a crash, or a failing call, at each of them. Files hold their bytes in memory: keep them small.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import threading
from collections.abc import Callable, Sequence

from shards.errors import DataDirectoryError
from shards.seams.file_system import LOCK_FILE_NAME, Buffer, Identity
from tests.simulation.disk import (
    SECTOR_BYTES,
    Choose,
    Content,
    Directory,
    Disk,
    EntryChange,
    Node,
    Vanished,
    everything_lost,
    everything_survived,
    not_found,
)
from tests.simulation.faults import Fault, OperationKind, Trigger, full_disk

__all__ = [
    "SECTOR_BYTES",
    "Choose",
    "CrashNow",
    "Fault",
    "SimulatedFile",
    "SimulatedFileSystem",
    "SimulatedLock",
    "Trigger",
    "Vanished",
    "everything_lost",
    "everything_survived",
    "full_disk",
]


class CrashNow(BaseException):
    """The power went off, or the process was killed. Every later operation raises it too: no clean-up reaches the disk.

    Not an `Exception`, so that no handler of errors takes it for one.
    """


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    def __init__(self, file_system: SimulatedFileSystem, content: Content, path: str, write: bool) -> None:
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

    def identity(self) -> Identity:
        return 0, id(self._content)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a simulated file has no descriptor")

    def direct_fileno(self) -> int | None:
        return None

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
        self._directory = file_system.disk.directory(path)
        self.lasting_path = file_system.disk.hold(path)

    @property
    def found_instead(self) -> str:
        found = self._file_system.identity(self._path)
        if found is None:
            return "nothing is there"
        return "" if found == (0, id(self._directory)) else "another directory is there"

    def sync_all(self) -> None:
        self._file_system.sync_all(self._path)

    def close(self) -> None:
        """It holds nothing."""


class SimulatedLock:
    """A held directory of a `SimulatedFileSystem`; the end of the process releases it."""

    def __init__(self, holders: set[str], directory: str) -> None:
        self._holders = holders
        self._directory = directory
        self._released = False

    def release(self) -> None:
        if not self._released:
            self._holders.discard(self._directory)
            self._released = True


class SimulatedFileSystem:
    """What one process sees of a `Disk` in memory. Threads may share it.

    Args:
        capacity_bytes: Size of the disk; a write that needs more fails with ENOSPC.
        disk: The disk that an earlier process of this machine used; a new one if it is not given.

    Attributes:
        operations: Names of the counted operations so far; operation number n is ``operations[n - 1]``.
        failed: An injected failure has happened.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 30, disk: Disk | None = None) -> None:
        self.operations: list[str] = []
        self.failed = False
        self._disk = disk or Disk(capacity_bytes)
        self._holders: set[str] = set()
        self._stop: Trigger | None = None
        self._written_at_stop = 1.0
        self._crashed = False
        self._faults: list[Fault] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._mutex = threading.RLock()

    # What a test does to it.

    def crash_at(self, operation: int, *, pattern: str = "", written: float = 1.0) -> None:
        """Raise `CrashNow` at that operation (from 1): a change is issued but not synced, a sync has done nothing.

        Args:
            operation: Its number, among those that match.
            pattern: Count only operations whose name has this regular expression in it.
            written: How much of the operation was done if it is a write: a kill may leave a part.
        """
        self._stop = self._trigger(operation, pattern)
        self._written_at_stop = written

    def stop(self) -> None:
        """End the process now: every later operation raises `CrashNow`."""
        self._crashed = True

    def do_at(self, operation: int, action: Callable[[], None]) -> None:
        """Do something behind the process's back, just before that operation (from 1)."""
        self._actions[operation] = action

    def fail_at(self, operation: int, number: int, *, reached_disk: bool = False) -> None:
        """Let that operation (from 1) fail with `OSError(number)`, such as errno.EIO or errno.ENOSPC.

        A failing write leaves its first half. A failing sync leaves its pages clean, as Linux does: a later sync will
        not write them. Whether they got to the disk all the same, `reached_disk` says.
        """
        self.inject(Fault(self._trigger(operation), number, reached_disk, keep_entries=False))

    def inject(self, fault: Fault) -> None:
        """Let operations fail; its trigger counts from now on."""
        self._faults.append(fault)

    def _trigger(self, operation: int, pattern: str = "") -> Trigger:
        # Without a pattern a number is that of `operations`, whenever it is given.
        return Trigger(operation, pattern, seen=0 if pattern else len(self.operations))

    def crash(self, choose: Choose) -> SimulatedFileSystem:
        """Return the file system that is there after a power loss at this moment; this one is off from now on."""
        with self._mutex:
            self._crashed = True
            return SimulatedFileSystem(disk=self._disk.lose_power(choose))

    def kill(self, choose: Choose) -> SimulatedFileSystem:
        """Return the file system that the next process finds on this machine; this one is off from now on.

        Written pages and changed entries are there as they were left, synced or not. Open files and locks are gone.
        ``choose`` decides what a store had written by itself until then.
        """
        with self._mutex:
            self._crashed = True
            self._disk.lose_process(choose)
            return SimulatedFileSystem(disk=self._disk)

    @property
    def crashed(self) -> bool:
        """Whether the power is off or the process was killed."""
        return self._crashed

    @property
    def disk(self) -> Disk:
        """What is below: the state of the machine."""
        return self._disk

    # FileSystem.

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimulatedFile:
        with self._mutex:
            self._require_power()
            directory, name = self._disk.parent(path)
            node = directory.volatile.get(name)
            if node is None:
                if not create:
                    raise not_found(path)
                node = Content()
                self._change_entries(f"create {self._disk.shown(path)}", [(directory, name, node)])
                self._disk.contents.append(node)
            if isinstance(node, Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            return SimulatedFile(self, node, self._disk.shown(path), write)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._require_power()
            return self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            self._require_power()
            return sorted(self._disk.directory(path).volatile)

    def mkdir(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            directory, names = self._disk.start(path)
            for name in names:
                node = directory.volatile.get(name)
                if node is None:
                    node = Directory()
                    self._change_entries(f"mkdir {name} for {self._disk.shown(path)}", [(directory, name, node)])
                if isinstance(node, Content):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = node

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._require_power()
            node = self._disk.node(source)
            old_directory, old_name = self._disk.parent(source)
            new_directory, new_name = self._disk.parent(target)
            if isinstance(new_directory.volatile.get(new_name), Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if (old_directory, old_name) != (new_directory, new_name):
                entries = [(old_directory, old_name, None), (new_directory, new_name, node)]
                self._change_entries(f"rename {self._disk.shown(source)} to {self._disk.shown(target)}", entries)

    def link(self, source: str, target: str) -> None:
        with self._mutex:
            self._require_power()
            node = self._disk.node(source)
            directory, name = self._disk.parent(target)
            if isinstance(node, Directory):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)
            if name in directory.volatile:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._change_entries(
                f"link {self._disk.shown(source)} to {self._disk.shown(target)}", [(directory, name, node)]
            )

    def remove(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            if isinstance(self._disk.node(path), Directory):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._change_entries(f"remove {self._disk.shown(path)}", [(*self._disk.parent(path), None)], grows=False)

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            self._require_power()
            if self._disk.directory(path).volatile:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._change_entries(
                f"remove directory {self._disk.shown(path)}", [(*self._disk.parent(path), None)], grows=False
            )

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            directory = self._disk.directory(path)
            self._sync(f"sync directory {self._disk.shown(path)}", [], self._disk.changes_of(directory))

    def sync_all(self, path: str) -> None:
        with self._mutex:
            self._disk.node(path)
            self._sync("sync all", self._disk.contents, list(self._disk.entry_changes))

    def open_directory(self, path: str) -> SimulatedDirectory:
        with self._mutex:
            self._require_power()
            self._disk.directory(path)
            return SimulatedDirectory(self, path)

    def identity(self, path: str) -> Identity | None:
        with self._mutex:
            self._require_power()
            return (0, id(self._disk.node(path))) if self._disk.exists(path) else None

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            self._require_power()
            if any(fault.shows_full and fault.trigger.is_on for fault in self._faults):
                return 0
            return self._disk.capacity_bytes - self._disk.used_bytes

    def lock(self, directory: str) -> SimulatedLock:
        with self._mutex:
            directory = posixpath.normpath(directory)
            try:
                self._disk.directory(directory)
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

    def _write(self, content: Content, position: int, data: bytes, path: str) -> None:
        with self._mutex:
            growth = position + len(data) - len(content.volatile)
            what = f"write {len(data)} bytes at {position} of {path}"
            failure = self._begin(what, "write", grows=growth > 0)
            stops = self._stops()
            if failure is None and data and growth > 0 and growth > self.free_bytes(path):
                failure = Fault(Trigger(0), errno.ENOSPC)
            if stops:
                data = data[: round(len(data) * self._written_at_stop)]
            elif failure is not None:
                data = data[: len(data) // 2]
            if data:
                content.change(position, data)
            self._end(failure, path)

    def _truncate(self, content: Content, size: int, path: str) -> None:
        with self._mutex:
            failure = self._begin(f"truncate {path} to {size}", "write", grows=size > len(content.volatile))
            if failure is None:
                content.change(size, None)
            self._end(failure, path)

    def _sync(self, what: str, contents: Sequence[Content], changes: Sequence[EntryChange] = ()) -> None:
        with self._mutex:
            failure = self._begin(what, "sync", grows=any(content.needs_space for content in contents))
            if not self._stops():
                if failure is None or failure.reached_disk:
                    self._disk.sync(contents, changes)
                else:
                    self._disk.fail_sync(contents, changes, keep_entries=failure.keep_entries)
            self._end(failure, what)

    def _change_entries(
        self, what: str, entries: Sequence[tuple[Directory, str, Node | None]], *, grows: bool = True
    ) -> None:
        failure = self._begin(what, "entry", grows=grows)
        if failure is None:
            self._disk.change_entries(entries)
        self._end(failure, what)

    # Counting, failing, crashing.

    def _begin(self, what: str, kind: OperationKind, *, grows: bool) -> Fault | None:
        self._require_power()
        self.operations.append(what)
        if action := self._actions.pop(len(self.operations), None):
            action()
        if self._stop is not None:
            self._stop.notice(what)
        hits = [fault for fault in self._faults if fault.hits(what, kind, grows=grows)]
        self.failed = self.failed or bool(hits)
        return hits[0] if hits else None

    def _stops(self) -> bool:
        return self._stop is not None and self._stop.is_on

    def _end(self, failure: Fault | None, what: str) -> None:
        if self._stops():
            self._crashed = True
            raise CrashNow(f"at operation {len(self.operations)}: {self.operations[-1]}")
        if failure is not None:
            raise OSError(failure.number, os.strerror(failure.number), what)

    def _require_power(self) -> None:
        if self._crashed:
            raise CrashNow("the power is off, or the process was killed")
