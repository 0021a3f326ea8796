"""Writing shared files: closed log segments of many shards become one Parquet file for each day of their appends.

It needs only a file system and a plan, and no shard, so it can run in a separate process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress

import attrs

from shards.parquet.arrow_buffers import data_size
from shards.parquet.collected_rows import ROW_GROUP_BYTES
from shards.parquet.log_batches import BUFFER_BYTES
from shards.parquet.metadata import FileMetadata, GroupEntry
from shards.parquet.output import FileOutput
from shards.parquet.schema import FORMAT_VERSION, WRITER_OPTIONS, WRITTEN_SCHEMA
from shards.parquet.shared_rows import Run, SharedRows, shared_row_groups
from shards.seams.file_system import File, FileSystem
from shards.segments.conversion_plan import GatheredFiles, PartSource, SharedFile, SharedPart, SharedPlan, SourceKind
from shards.segments.segment_paths import date_of_day


def write_shared_files(
    files: FileSystem, plan: SharedPlan, *, row_group_bytes: int = ROW_GROUP_BYTES, buffer_bytes: int = BUFFER_BYTES
) -> GatheredFiles:
    """Write the files of a plan and return when they are durable, except for their directory entries.

    Memory use is bounded by the buffer and a few row groups for each day. On an error no file is left.

    Args:
        row_group_bytes: A row group ends with the batch that brings it to this many bytes of bodies before
            compression, and where a shard ends if it has half of that; a larger batch is a row group of its own.
        buffer_bytes: Number of bytes of the logs that are read at once.

    Raises:
        ValueError: The sources of the plan are not in order.
        CorruptionError: A batch of a log is damaged or cannot be decoded, or the batches do not match the plan.
        OSError: A file could not be read or written.
    """
    outputs: dict[int, _DayFile] = {}
    sources = tuple(plan.sources)
    with ExitStack() as undo:
        with ExitStack() as opened:
            groups = shared_row_groups(files, sources, row_group_bytes, buffer_bytes)
            for group in opened.enter_context(closing(groups)):
                output = outputs.get(group.day)
                if output is None:
                    path = f"{plan.out_prefix}-{date_of_day(group.day)}.parquet"
                    undo.callback(_remove, files, path)
                    output = outputs[group.day] = _DayFile(files, path, group.day, opened)
                output.add(group)
            days = sorted(outputs)
            written = tuple(outputs[day].finish(plan) for day in days)
        undo.pop_all()
    parts = [part for number, day in enumerate(days) for part in outputs[day].parts(number)]
    return GatheredFiles(written, sorted(parts, key=lambda part: (part.source, part.file)))


def _remove(files: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        files.remove(path)


def _rewritten_from(sources: Sequence[PartSource]) -> tuple[str, ...]:
    """Paths of the shared files of the sources, relative to their root; none if a source is of another kind."""
    if not all(source.kind is SourceKind.SHARED for source in sources):
        return ()
    return tuple(sorted({"/".join(source.log_path.rsplit("/", 2)[-2:]) for source in sources}))


@attrs.define
class _Part:
    """A part while its file is written."""

    base_offset: int
    first_row: int
    next_offset: int = 0
    size_bytes: int = 0
    newest_append_us: int = 0
    last_lsn: int = 0
    newest_us: int = 0


class _DayFile:
    """The file of one day while it is written.

    Args:
        opened: Closes it.
    """

    def __init__(self, files: FileSystem, path: str, day: int, opened: ExitStack) -> None:
        self._day = day
        self._path = path
        self._file: File = files.open(path, create=True)
        opened.callback(self._file.close)
        self._file.truncate(0)
        self._output = opened.enter_context(FileOutput(self._file, WRITTEN_SCHEMA, WRITER_OPTIONS))
        self._entries: list[GroupEntry] = []
        self._record_count = 0
        self._value_bytes = 0
        self._parts: dict[int, _Part] = {}

    def add(self, group: SharedRows) -> None:
        start, end, crc = self._output.add(group.rows)
        group_value_bytes = sum(data_size(values) for values in group.rows.column("value").chunks)
        self._entries.append(
            GroupEntry(
                row_count=group.rows.num_rows,
                last_lsn=max(run.last_lsn for run in group.runs),
                newest_us=max(run.newest_us for run in group.runs),
                value_bytes=group_value_bytes,
                start=start,
                end=end,
                crc=crc,
            )
        )
        self._value_bytes += group_value_bytes
        # Shares by the bytes that the bodies had: what one shard's rows have in the pages cannot be told apart.
        bodies = sum(run.body_bytes for run in group.runs)
        given = done = 0
        for run in group.runs:
            done += run.body_bytes
            share = (end - start) * done // bodies - given
            given += share
            self._add_run(run, share)

    def _add_run(self, run: Run, size_bytes: int) -> None:
        part = self._parts.get(run.source)
        if part is None:
            part = self._parts[run.source] = _Part(run.base_offset, self._record_count)
        part.next_offset = run.next_offset
        part.size_bytes += size_bytes
        part.newest_append_us = run.newest_append_us
        part.last_lsn = run.last_lsn
        part.newest_us = max(part.newest_us, run.newest_us)
        self._record_count += run.record_count

    def parts(self, file: int) -> Iterator[SharedPart]:
        """The parts in this file, which has this number."""
        for source, part in self._parts.items():
            yield SharedPart(
                source,
                file,
                part.base_offset,
                part.next_offset,
                part.first_row,
                part.size_bytes,
                part.newest_append_us,
                part.last_lsn,
                part.newest_us,
            )

    def finish(self, plan: SharedPlan) -> SharedFile:
        output = self._output
        metadata = FileMetadata(
            format=FORMAT_VERSION,
            file_id=plan.file_id,
            day=self._day,
            record_count=self._record_count,
            value_bytes=self._value_bytes,
            data_bytes=output.position,
            data_sha256=output.digest.hex(),
            row_groups=tuple(self._entries),
            rewritten_from=_rewritten_from([plan.sources[source] for source in self._parts]),
        )
        output.finish(metadata.encode())
        self._file.fsync()
        return SharedFile(
            day=self._day,
            path=self._path,
            size_bytes=output.position,
            digest=output.digest,
            record_count=self._record_count,
            value_bytes=self._value_bytes,
            row_groups=len(self._entries),
        )
