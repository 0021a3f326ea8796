"""A file system of a few files that are in memory and are only read: much quicker to make than a simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from shards.seams.file_system import FileSystem


class _ReadFile:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def pread(self, size: int, position: int) -> bytes:
        if size < 0 or position < 0:
            raise OSError(22, "Invalid argument")
        # As the real one does it: memory for what is asked, not for what is there.
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(memoryview(buffer), position)])

    def readinto(self, buffer: memoryview, position: int) -> int:
        piece = self._content[position : position + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        """Nothing to do."""


class _MemoryFiles:
    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents

    def open(self, path: str, *, create: bool = False, write: bool = True) -> _ReadFile:
        if path not in self._contents:
            raise FileNotFoundError(2, "No such file or directory", path)
        return _ReadFile(self._contents[path])

    def exists(self, path: str) -> bool:
        return path in self._contents

    def listdir(self, path: str) -> list[str]:
        split = (each.rpartition("/") for each in self._contents)
        return sorted(name for directory, _, name in split if directory == path)


def memory_files(contents: Mapping[str, bytes]) -> FileSystem:
    """A file system that has these files, by path."""
    return cast("FileSystem", _MemoryFiles(contents))
