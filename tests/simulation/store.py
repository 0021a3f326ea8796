"""An `OrderedStore` on a simulated file system that behaves as RocksDB does without its write-ahead log.

What was flushed survives. Of what was written after that any prefix may survive as well, since RocksDB writes its
memory tables to disk by itself now and then; the rest goes with the process. A flush that failed installs nothing.
"""

from __future__ import annotations

import errno
import threading
import zlib

import msgspec

from shards.errors import CorruptionError, DiskFullError, StorageFailedError
from shards.seams.file_system import FileSystem, make_durable_directory
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from tests.simulation.disk import Choose, Disk, everything_lost

_Content = dict[str, list[tuple[bytes, bytes]]]


class SimulatedStore(MemoryStore):
    """Everything is in memory; `flush` writes all of it to one file, which the constructor loads.

    Args:
        file_system: Holds the file; made for `SimulatedFileSystem`, though any will do.
        path: The store's directory; it is made if it is not there.
        disk: Where the store keeps some of what it was not asked to flush, when the process or the machine ends; none
            of it if this is not given.
        at_close: Chooses how much of that is kept when the store is closed, as RocksDB may do then.
    """

    def __init__(
        self, file_system: FileSystem, path: str, *, disk: Disk | None = None, at_close: Choose = everything_lost
    ) -> None:
        super().__init__()
        self._file_system = file_system
        self._path = path
        self._disk = disk
        self._at_close = at_close
        self._writing = threading.Lock()
        self._failure: str | None = None
        self._flushed: _Content = {}
        self._unflushed: list[Mutations] = []
        make_durable_directory(file_system, path)
        if file_system.exists(self._content_path):
            self._load()
        else:
            # As RocksDB does: an empty store can be told from one that is missing.
            self.flush()
        if disk is not None:
            disk.on_loss.append(self._keep_some)

    @property
    def _content_path(self) -> str:
        return f"{self._path}/content"

    def write(self, mutations: Mutations) -> None:
        self._require_sound()
        with self._writing:
            super().write(mutations)
            # A copy: the caller may clear them and go on with the same object.
            kept = Mutations()
            kept.update(mutations)
            self._unflushed.append(kept)

    def flush(self) -> None:
        """Write all content aside, sync it, and put it in the old one's place."""
        self._require_open()
        self._require_sound()
        with self._writing:
            content = self._content()
            taken = len(self._unflushed)
        body = msgspec.msgpack.encode(content)
        try:
            self._write_content(_framed(body))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # Everything is in memory still, and all of it is written again next time.
                raise DiskFullError(f"{self._path}: {error.strerror}; free some space") from error
            self._failure = f"the store in {self._path} failed: {error}; open it again to write again"
            raise StorageFailedError(self._failure) from error
        with self._writing:
            self._flushed = content
            del self._unflushed[:taken]

    def _write_content(self, stored: bytes) -> None:
        file = self._file_system.open(f"{self._path}/content.new", create=True)
        try:
            file.truncate(0)
            file.pwritev([stored], 0)
            file.fsync()
        finally:
            file.close()
        self._file_system.rename(f"{self._path}/content.new", self._content_path)
        self._file_system.sync_directory(self._path)

    def close(self) -> None:
        if not self._closed and self._disk is not None and self._keep_some in self._disk.on_loss:
            self._disk.on_loss.remove(self._keep_some)
            self._keep_some(self._at_close)
        super().close()

    def copy_to(self, path: str) -> None:
        copy = SimulatedStore(self._file_system, path)
        with self._writing:
            for family, items in self._families.items():
                copy._families[family].update(items)
        copy.flush()

    def _content(self) -> _Content:
        return {family.value: list(items.items()) for family, items in self._families.items()}

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise StorageFailedError(self._failure)

    def _keep_some(self, choose: Choose) -> None:
        """Keep a prefix of what was written since the last flush, permanently."""
        fate = choose(3)  # none of it, all of it, a part
        count = (0, len(self._unflushed), choose(len(self._unflushed) + 1) if fate == 2 else 0)[fate]
        if not count or self._disk is None:
            return
        kept = MemoryStore()
        _fill(kept, self._flushed)
        for mutations in self._unflushed[:count]:
            kept.write(mutations)
        content = {family.value: list(kept.scan(family)) for family in Family}
        self._disk.put_durably(self._content_path, _framed(msgspec.msgpack.encode(content)))

    def _load(self) -> None:
        file = self._file_system.open(self._content_path, write=False)
        stored = file.pread(file.size(), 0)
        file.close()
        if zlib.crc32(stored[4:]) != int.from_bytes(stored[:4], "little"):
            raise CorruptionError(self._content_path, 0, "the checksum does not match the content")
        self._flushed = msgspec.msgpack.decode(stored[4:], type=_Content)
        _fill(self, self._flushed)


def _fill(store: MemoryStore, content: _Content) -> None:
    for family, items in content.items():
        store._families[Family(family)].update(items)


def _framed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little") + body
