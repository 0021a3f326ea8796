"""Files in Spark's own file systems, accessed through its Java, for paths that plain Python cannot access.

Paths are texts in Spark's form (``/data``, ``file:///data``, ``hdfs://host/data``, ``s3a://bucket/data``). This needs a
classic session, with its driver in a process of this machine, not Spark Connect.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from spark_export.errors import UnreadableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLOB_CHARACTERS: Final = re.compile(r"([\\\[\]{}*?,])")

_EMPTY_FILE: Final = re.compile(r"path=(.+); isDirectory=false; length=0;")

ATOMIC_RENAME_SCHEMES: Final = frozenset(
    {"file", "hdfs", "viewfs", "webhdfs", "swebhdfs", "ofs", "o3fs", "abfs", "abfss"}
)
"""File systems that rename a directory atomically. Object stores copy file by file instead."""


def glob_literal(path: str) -> str:
    """A pattern that matches only this path; Spark treats every path that it reads as a pattern."""
    return _GLOB_CHARACTERS.sub(r"\\\1", path)


class HadoopFiles:
    """The file system of a path.

    Args:
        spark: Session whose settings (credentials, end points) apply.
        path: Any path on it.

    Raises:
        UnreadableError: Spark has no file system for such a path, or cannot reach it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm = getattr(spark, "_jvm", None)
        if jvm is None:
            raise UnreadableError(
                f"cannot list {path}: this is a Spark Connect session, whose files cannot be accessed; "
                "use a session whose driver runs in this process"
            )
        self._jvm: Any = jvm
        self._settings: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system: Any = self._guarded("open", path, lambda: self._path(path).getFileSystem(self._settings))
        self.scheme: str = self._system.getUri().getScheme()

    @property
    def renames_atomically(self) -> bool:
        """Whether a renamed directory appears at once, with all its content."""
        return self.scheme in ATOMIC_RENAME_SCHEMES

    def exists(self, path: str) -> bool:
        """Whether the file or directory exists."""
        return bool(self._guarded("look for", path, lambda: self._system.exists(self._path(path))))

    def names(self, directory: str) -> list[str]:
        """The names in a directory; empty if it does not exist."""
        if not self.exists(directory):
            return []
        found = self._guarded("list", directory, lambda: self._system.listStatus(self._path(directory)))
        return [status.getPath().getName() for status in found]

    def glob(self, pattern: str) -> list[str]:
        """Paths that match a pattern; use `glob_literal` for a part that is not a pattern."""
        found = self._guarded("list", pattern, lambda: self._system.globStatus(self._path(pattern)))
        return [status.getPath().toString() for status in found or ()]

    def has(self, pattern: str) -> bool:
        """Whether a path matches a pattern; see `glob`."""
        return bool(self._guarded("list", pattern, lambda: self._system.globStatus(self._path(pattern))))

    def read_text(self, path: str) -> str:
        """The whole of a small file in UTF-8."""
        return str(self._guarded("read", path, lambda: self._read(path)))

    def _read(self, path: str) -> str:
        stream = self._system.open(self._path(path))
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def parquet_metadata(self, path: str, key: str) -> str | None:
        """A text from the metadata in a Parquet file's footer."""
        return self._guarded("read the footer of", path, lambda: self._footer(path).get(key))  # type: ignore[no-any-return]

    def _footer(self, path: str) -> Any:
        hadoop = self._jvm.org.apache.parquet.hadoop
        reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(self._path(path), self._settings))
        try:
            return reader.getFileMetaData().getKeyValueMetaData()
        finally:
            reader.close()

    def input_files(self, frame: Any) -> list[str]:
        """Paths of the files of a data frame over files.

        One call for all files: a call for each would take longer than the listing itself.
        """
        found = frame._jdf.inputFiles()  # noqa: SLF001
        return [
            unquote(url)
            for url in json.loads(self._jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(found))
        ]

    def empty_files(self, frame: Any) -> list[str]:
        """Paths of the files without bytes, which Spark skips without an error; only for a scan of files."""
        scanned = frame._jdf.queryExecution().analyzed().collectLeaves().head().relation()  # noqa: SLF001
        # One call again, and the only way to the sizes that Spark has listed: the text of each file's status.
        return _EMPTY_FILE.findall(scanned.location().allFiles().mkString("\n"))

    def write_text(self, path: str, text: str) -> None:
        """Write a small file that does not exist yet."""
        self._guarded("write", path, lambda: self._write(path, text))

    def _write(self, path: str, text: str) -> None:
        stream = self._system.create(self._path(path), False)
        try:
            self._jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        self._guarded("delete", path, lambda: self._system.delete(self._path(path), True))

    def publish(self, directory: str, target: str) -> bool:
        """Rename a directory atomically to its final name; return False if that name exists already.

        On a local disk its content is synced first: when the name is visible, all of it is there, even after a power
        failure.
        """
        if self.scheme == "file":
            return _publish_local(self._local(directory), self._local(target))
        return bool(self._guarded("publish", target, lambda: self._rename(directory, target)))

    def _rename(self, directory: str, target: str) -> bool:
        from py4j.protocol import Py4JJavaError

        fs = self._jvm.org.apache.hadoop.fs
        context = fs.FileContext.getFileContext(self._system.getUri(), self._settings)
        # Unlike FileSystem.rename, this neither moves into an existing directory nor replaces it.
        options = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
        )
        try:
            context.rename(self._path(directory), self._path(target), options)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == "org.apache.hadoop.fs.FileAlreadyExistsException":
                return False
            raise
        return True

    def _local(self, path: str) -> Path:
        return Path(self._path(path).toUri().getPath())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @staticmethod
    def _guarded(what: str, path: str, call: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return call()
        except Py4JJavaError as error:
            raise UnreadableError(f"cannot {what} {path}: {error.java_exception.toString()}") from error


def _publish_local(directory: Path, target: Path) -> bool:
    for entry in _tree(directory):
        _sync(entry)
    try:
        directory.rename(target)
    except OSError:
        # A directory that is not empty is never replaced.
        if target.exists():
            return False
        raise
    _sync(target.parent)
    return True


def _tree(directory: Path) -> Iterator[Path]:
    for parent, _, files in os.walk(directory, topdown=False):
        yield from (Path(parent, name) for name in files)
        yield Path(parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
