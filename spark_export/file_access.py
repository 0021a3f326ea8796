"""Files at a path or URL, through pyarrow's file systems: listed, and opened for the readers of `shards.parquet`.

Executors may run where only pyarrow can access the files; files that only Java can access are for
`spark_export.read_sealed`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyarrow import fs

from shards.seams.file_system import File, FileSystem
from shards.seams.os_file_system import OsFileSystem
from spark_export.errors import UnreadableError

_SPARK_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
# One request to an object store takes as long as reading some MiB from it.
_READ_AHEAD_BYTES: Final = 4 << 20


def is_local(where: str) -> bool:
    """Whether a path or URL is on this machine's own file system."""
    scheme, separator, _ = where.partition(":")
    return not separator or "/" in scheme or scheme == "file"


class FileTree:
    """Everything below a path or URL.

    Args:
        where: A local path, or a URL of a file system that pyarrow supports.

    Attributes:
        where: As given; a local path is made absolute.
        is_local: Whether it is on this machine's own file system.

    Raises:
        UnreadableError: pyarrow does not support such a file system, or cannot reach it.
    """

    def __init__(self, where: str) -> None:
        scheme, separator, rest = where.partition(":")
        self.is_local = is_local(where)
        if self.is_local:
            local = "/" + rest.lstrip("/") if separator and scheme == "file" else where
            self.where = self._root = posixpath.abspath(local)
            self._files: Any = fs.LocalFileSystem()
            return
        self.where = where.rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(f"{_SPARK_SCHEMES.get(scheme, scheme)}:{rest.rstrip('/')}")
        except (pa.ArrowException, OSError) as error:
            raise UnreadableError(
                f"cannot reach {where}: {error}. The data source supports the file systems of pyarrow (local paths, "
                f"s3://, gs://, abfss://, hdfs://); for other file systems of Spark use spark_export.read_sealed"
            ) from error

    def names(self, directory: str = "") -> list[str]:
        """The names in a directory below; empty if it does not exist.

        Raises:
            UnreadableError: It cannot be listed.
        """
        return [posixpath.basename(path) for path, _ in self._list(directory, recursive=False)]

    def files(self) -> list[tuple[str, int]]:
        """Path (below the root) and size of everything in the tree; directories have the size -1.

        Hidden files, such as the marker of a data directory, are left out, as other readers of Parquet do.

        Raises:
            UnreadableError: It does not exist, or cannot be listed.
        """
        found = ((path.removeprefix(f"{self._root}/"), size) for path, size in self._list("", recursive=True))
        return [(path, size) for path, size in found if not path.rpartition("/")[2].startswith(".")]

    def read(self, path: str) -> bytes:
        """The whole of a small file.

        Raises:
            OSError: It does not exist, or cannot be read.
        """
        with self._files.open_input_stream(self._below(path)) as stream:
            return bytes(stream.read())

    def shown(self, path: str) -> str:
        """The full path of a file below the root, for messages."""
        return f"{self.where}/{path}" if path else self.where

    @property
    def file_system(self) -> FileSystem:
        """A read-only file system for `shards.parquet`, with the files of this tree by their paths as in `shown`."""
        return OsFileSystem() if self.is_local else cast("FileSystem", _RemoteFiles(self))

    def open_remote(self, shown: str) -> File:
        """Open a file of a tree that is not local, by its path as in `shown`.

        Raises:
            OSError: It does not exist, or cannot be read.
        """
        path = self._below(shown.removeprefix(f"{self.where}/"))
        return cast("File", _RemoteFile(self._files.open_input_file(path)))

    def _below(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _list(self, directory: str, *, recursive: bool) -> Sequence[tuple[str, int]]:
        selector = fs.FileSelector(self._below(directory), recursive=recursive, allow_not_found=bool(directory))
        try:
            found = self._files.get_file_info(selector)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableError(
                f"cannot list {self.shown(directory)}: {error}; check the path and that it can be read"
            ) from error
        return [(info.path, info.size if info.is_file else -1) for info in found]


class _RemoteFiles:
    """The part of `FileSystem` that readers of sealed segments use."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        assert not create  # only sealed segments are read here
        assert not write
        return self._tree.open_remote(path)


class _RemoteFile:
    """The part of `File` that readers of sealed segments use, with few requests: they read sequentially."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._ahead = b""
        self._ahead_at = 0

    def size(self) -> int:
        size: int = self._file.size()
        return size

    def pread(self, size: int, position: int) -> bytes:
        at = position - self._ahead_at
        if at < 0 or at + size > len(self._ahead):
            wanted = max(size, min(_READ_AHEAD_BYTES, self.size() - position))
            self._file.seek(position)
            self._ahead, self._ahead_at, at = bytes(self._file.read(wanted)), position, 0
        return self._ahead[at : at + size]

    def close(self) -> None:
        self._file.close()
