"""Compacting a data directory that is not in use: unneeded data is removed, Parquet segments are not rewritten.

A damaged directory is not changed: what looks like a leftover may be all that remains of some data.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterator

import attrs
import trio

from journal.check import check_directory
from journal.check.report import Progress
from journal.engine import Engine, open_engine
from journal.engine.directory.data_directory import segment_directories
from journal.settings.server import ServerConfig
from shards.delta.actions import TableRequest
from shards.delta.log_files import exists
from shards.errors import CorruptionError
from shards.seams.file_system import FileSystem
from shards.seams.os_file_system import OsFileSystem
from shards.seams.rocks_store import RocksStore
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.views.shared_files import FileKey

_SEGMENT_FILE = re.compile(r"[0-9a-f]{16}-\d{20}\.(log|index)|(\d{20}-\d{20}-)?[0-9a-f]{16}\.parquet")
_OPENED_AT_ONCE = 500


@attrs.frozen(slots=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        directory: The data directory.
        removed_files: Number of removed files: of trimmed, replaced or deleted segments, and of no segment.
        removed_bytes: Size of these.
        views_before_bytes: Size of the views' tables before.
        views_after_bytes: Their size after.
    """

    directory: str
    removed_files: int
    removed_bytes: int
    views_before_bytes: int
    views_after_bytes: int

    @property
    def gained_bytes(self) -> int:
        """Number of bytes by which the directory became smaller."""
        return self.removed_bytes + self.views_before_bytes - self.views_after_bytes


async def compact(directory: str, config: ServerConfig, progress: Progress | None = None) -> Compacted:
    """Recover a directory, remove files without a record, and rewrite the views without deleted entries.

    Args:
        directory: The data directory.
        config: The server's configuration; no segment is converted.
        progress: Called with the bytes checked so far.

    Raises:
        DataDirectoryError: A server uses the directory, or it is not a data directory.
        CorruptionError: The directory is damaged; nothing was changed.
        StorageFailedError: The disk failed.
        ConversionFailedError: The Delta table could not be told which files go; no file was removed.
    """
    files = OsFileSystem()
    report = await trio.to_thread.run_sync(check_directory, directory, progress)
    if report.damages:
        first = report.damages[0]
        raise CorruptionError(
            first.path,
            first.position,
            f"{first.problem}. {len(report.damages)} damages in all ('journal check' lists them): nothing was changed, "
            f"since what looks like a leftover may be all that remains of some data",
        )
    before = await trio.to_thread.run_sync(_segment_files, files, directory)
    views_before = await trio.to_thread.run_sync(_tables_bytes, files, f"{directory}/state")
    resting = attrs.evolve(config, conversion=attrs.evolve(config.conversion, enabled=False))
    async with open_engine(directory, resting) as engine:
        # After a checkpoint a recovery reads nothing that refers to the files that are removed now.
        await engine.checkpoint()
        known, shared = await _known(engine)
        request = TableRequest(f"{directory}/sealed", engine.committed_lsn, shared)
        if not await trio.to_thread.run_sync(_update_table, files, request):
            known.update(_named_as_shared(files, directory))
        await trio.to_thread.run_sync(_remove_unknown, files, directory, known)
    after = await trio.to_thread.run_sync(_segment_files, files, directory)
    removed = before.keys() - after.keys()
    await trio.to_thread.run_sync(_compact_views, f"{directory}/state")
    views_after = await trio.to_thread.run_sync(_tables_bytes, files, f"{directory}/state")
    return Compacted(directory, len(removed), sum(before[path] for path in removed), views_before, views_after)


async def _known(engine: Engine) -> tuple[set[str], tuple[FileKey, ...]]:
    """Paths of the files of all segments, and which shared files are among them."""
    known: set[str] = set()
    shared: set[FileKey] = set()
    for number, shard_id in enumerate(engine.shard_ids()):
        shard = engine.peek(shard_id)
        for segment in shard.segments if shard is not None else ():
            if isinstance(segment, LogSegment):
                known.update((segment.path, segment.index_path))
            elif isinstance(segment, ParquetSegment):
                known.add(segment.path)
                shared.add(segment.place.file)
        if number % _OPENED_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return known, tuple(sorted(shared))


def _update_table(files: FileSystem, request: TableRequest) -> bool:
    """Commit to the Delta table, if there is one, that it has these files alone: others are removed next.

    Returns:
        False if that could not be done, because the library is not installed.

    Raises:
        ConversionFailedError: The commit was not made.
        OSError: The disk failed.
    """
    if not exists(files, request.root):
        return True
    # The extra `delta` has the library. A server that has made the table has it; a copy elsewhere may not.
    try:
        from shards.delta.library import DeltaLibrary
        from shards.delta.table import update_table
    except ImportError:
        return False
    update_table(files, request, DeltaLibrary(), time.time_ns() // 1_000_000)
    return True


def _named_as_shared(files: FileSystem, directory: str) -> Iterator[str]:
    return (path for path in _named_as_segments(files, directory) if path.endswith(".parquet"))


def _segment_files(files: FileSystem, directory: str) -> dict[str, int]:
    """Sizes of the files with names of segments, by path; other files are ignored."""
    return {path: _size(files, path) for path in _named_as_segments(files, directory)}


def _named_as_segments(files: FileSystem, directory: str) -> Iterator[str]:
    for below in segment_directories(files, directory):
        for name in files.listdir(f"{directory}/{below}"):
            if _SEGMENT_FILE.fullmatch(name):
                yield f"{directory}/{below}/{name}"


def _remove_unknown(files: FileSystem, directory: str, known: set[str]) -> None:
    emptied = set()
    for path in list(_named_as_segments(files, directory)):
        if path not in known:
            files.remove(path)
            emptied.add(posixpath.dirname(path))
    for below in sorted(emptied):
        if files.listdir(below):
            files.sync_directory(below)
        else:
            files.remove_directory(below)
            files.sync_directory(posixpath.dirname(below))


def _compact_views(path: str) -> None:
    store = RocksStore(path)
    try:
        store.compact()
    finally:
        store.close()


def _tables_bytes(files: FileSystem, path: str) -> int:
    return sum(_size(files, f"{path}/{name}") for name in files.listdir(path) if name.endswith(".sst"))


def _size(files: FileSystem, path: str) -> int:
    file = files.open(path, write=False)
    try:
        return file.size()
    finally:
        file.close()
