"""An `OrderedStore` on a simulated file system: it loses in a crash exactly what was not flushed."""

from __future__ import annotations

import threading
import zlib

import msgspec

from shards.errors import CorruptionError
from shards.file_system import FileSystem, make_durable_directory
from shards.memory_store import MemoryStore
from shards.store import Family, Mutations


class SimulatedStore(MemoryStore):
    """Everything is in memory; `flush` writes all of it to one file, which the constructor loads.

    Args:
        file_system: Holds the file; made for `SimulatedFileSystem`, though any will do.
        path: The store's directory; it is made if it is not there.
    """

    def __init__(self, file_system: FileSystem, path: str) -> None:
        super().__init__()
        self._file_system = file_system
        self._path = path
        self._writing = threading.Lock()
        make_durable_directory(file_system, path)
        if file_system.exists(self._content_path):
            self._load()

    @property
    def _content_path(self) -> str:
        return f"{self._path}/content"

    def write(self, mutations: Mutations) -> None:
        with self._writing:
            super().write(mutations)

    def flush(self) -> None:
        """Write all content aside, sync it, and put it in the old one's place."""
        self._require_open()
        with self._writing:
            content = {family.value: list(items.items()) for family, items in self._families.items()}
        body = msgspec.msgpack.encode(content)
        file = self._file_system.open(f"{self._path}/content.new", create=True)
        try:
            file.truncate(0)
            file.pwritev([zlib.crc32(body).to_bytes(4, "little"), body], 0)
            file.fsync()
        finally:
            file.close()
        self._file_system.rename(f"{self._path}/content.new", self._content_path)
        self._file_system.sync_directory(self._path)

    def copy_to(self, path: str) -> None:
        copy = SimulatedStore(self._file_system, path)
        with self._writing:
            for family, items in self._families.items():
                copy._families[family].update(items)
        copy.flush()

    def _load(self) -> None:
        file = self._file_system.open(self._content_path, write=False)
        stored = file.pread(file.size(), 0)
        file.close()
        if zlib.crc32(stored[4:]) != int.from_bytes(stored[:4], "little"):
            raise CorruptionError(self._content_path, 0, "the checksum does not match the content")
        content = msgspec.msgpack.decode(stored[4:], type=dict[str, list[tuple[bytes, bytes]]])
        for family, items in content.items():
            self._families[Family(family)].update(items)
