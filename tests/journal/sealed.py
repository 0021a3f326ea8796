"""Shards whose log segments are sealed for real, and a file system that meddles while a reader waits for it."""

from __future__ import annotations

from collections.abc import Callable

from shards.parquet.shared_file import write_shared_files
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.segment_paths import shared_path
from tests.shards.shard_workload import SEALED, ShardWorkload, parquet_segment


def convert(workload: ShardWorkload, segment: LogSegment) -> ParquetSegment:
    """Write a shared file with a log segment alone; the log stays."""
    return convert_segment(workload.files, segment, SEALED)


def convert_segment(files: FileSystem, segment: LogSegment, sealed_root: str) -> ParquetSegment:
    """The same for a segment in any directory. All of it was appended on one day."""
    file_id = (segment.shard_id << 32) + segment.base_offset
    source = PartSource(
        log_path=segment.path,
        name=segment.name,
        shard_id=segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        start_position=segment.start_position,
        end_position=segment.end,
    )
    files.mkdir(sealed_root)
    made = write_shared_files(files, SharedPlan(f"{sealed_root}/{file_id:016x}", file_id, (source,)))
    (file,), (part,) = made.files, made.parts
    path = shared_path(sealed_root, file.day, file_id)
    files.mkdir(path.rpartition("/")[0])
    files.rename(file.path, path)
    return parquet_segment(segment, part.size_bytes, SharedPlace(file.day, file_id, part.first_row), sealed_root)


def swap(workload: ShardWorkload, sealed: list[ParquetSegment]) -> None:
    """Put the sealed segments in place of their logs, and remove those."""
    for segment in sealed:
        for old in workload.shard.put_parts([segment]):
            old.chunks.release()
            for path in (old.path, old.index_path) if isinstance(old, LogSegment) else ():
                if workload.files.exists(path):
                    workload.files.remove(path)


class HookedFiles:
    """A file system that calls ``hook`` with the path before and after each operation of a reader, in its thread."""

    def __init__(self, files: object, hook: Callable[[str], None]) -> None:
        self._files = files
        self._hook = hook

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def exists(self, path: str) -> bool:
        self._hook(path)
        return self._files.exists(path)

    def open(self, path: str, **options: bool) -> object:
        self._hook(path)
        return _HookedFile(self._files.open(path, **options), lambda: self._hook(path))


class _HookedFile:
    def __init__(self, file: object, hook: Callable[[], None]) -> None:
        self._file = file
        self._hook = hook

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, size: int, position: int) -> bytes:
        self._hook()
        data = self._file.pread(size, position)
        self._hook()
        return data
