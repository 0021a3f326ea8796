"""What an engine runs on: its file system, clock, disk, store and threads. RocksDB has the same under the same name.

The defaults are those of a server. `memory_environment` is that of an engine without a disk; tests simulate disks.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable

import attrs

from journal.engine.wal.disk import Disk, DiskThread, MemoryDisk, OffLoop, at_once, in_thread
from shards.errors import CorruptionError
from shards.seams.clock import Clock, SystemClock
from shards.seams.file_system import FileSystem
from shards.seams.memory_file_system import MemoryFileSystem
from shards.seams.memory_store import MemoryStore
from shards.seams.os_file_system import OsFileSystem
from shards.seams.store import DirectoryStore


def open_rocks_store(path: str) -> DirectoryStore:
    """Open the RocksDB store of a server's views.

    Raises:
        CorruptionError: It is missing although the journal next to it was in use: acknowledged data would be lost.
    """
    from shards.seams.rocks_store import RocksStore  # a broker that imports only the adapter has no RocksDB

    journal = f"{posixpath.dirname(path)}/journal"
    if not os.path.exists(f"{path}/CURRENT") and any(name.endswith(".jnl") for name in os.listdir(journal)):
        raise CorruptionError(
            path,
            0,
            f"the store of the views is missing, but {journal} was in use. Is its file system mounted? If it is lost, "
            f"restore journal and views from the same backup",
        )
    return RocksStore(path)


def _disk_thread() -> Disk:
    return DiskThread("journal-disk")


@attrs.frozen(slots=True, kw_only=True)
class Environment:
    """See the module.

    Attributes:
        files: The file system of the data directory.
        clock: The system's clock.
        make_disk: Starts what writes the journal.
        open_store: Opens the store of the views in a directory.
        off_loop: Runs the blocking calls of files and the store.
        lasts: Whether the next start finds what is written. If not, no acknowledgement says `durable`, and closing
            saves nothing.
    """

    files: FileSystem = attrs.field(factory=OsFileSystem)
    clock: Clock = attrs.field(factory=SystemClock)
    make_disk: Callable[[], Disk] = _disk_thread
    open_store: Callable[[str], DirectoryStore] = open_rocks_store
    off_loop: OffLoop = in_thread
    lasts: bool = True


def memory_environment(clock: Clock | None = None) -> Environment:
    """An environment without a disk: files and store are in memory, and nothing runs in a thread."""
    files = MemoryFileSystem(unread=(".jnl",))

    def open_store(path: str) -> DirectoryStore:
        files.mkdir(path)
        return MemoryStore()

    return Environment(
        files=files,
        clock=clock or SystemClock(),
        make_disk=MemoryDisk,
        open_store=open_store,
        off_loop=at_once,
        lasts=False,
    )
