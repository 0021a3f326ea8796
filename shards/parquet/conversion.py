"""Conversion: a closed log segment is read once, checked, and written as one Parquet file.

It needs only a file system and a plan, and no shard, so it can run in a separate process.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import chain

from shards.parquet.log_batches import BUFFER_BYTES, ROW_GROUP_BYTES
from shards.parquet.log_rows import LogRows, log_row_groups
from shards.parquet.output import SealedOutput
from shards.parquet.schema import FORMAT_VERSION, SCHEMA, WRITER_OPTIONS, RowGroupEntry, SegmentMetadata
from shards.seams.file_system import File, FileSystem
from shards.segments.conversion_plan import ConversionPlan, SealedFile

__all__ = ["ConversionPlan", "SealedFile", "convert_log"]


def convert_log(
    files: FileSystem, plan: ConversionPlan, *, row_group_bytes: int = ROW_GROUP_BYTES, buffer_bytes: int = BUFFER_BYTES
) -> SealedFile:
    """Write the Parquet file of a log segment and return when it is durable, except for its directory entry.

    Memory use is bounded by the buffer and a few row groups, or by the largest batch if that is larger.

    Args:
        row_group_bytes: A row group ends with the batch that brings it to this many bytes of bodies before
            compression; a larger batch is a row group of its own.
        buffer_bytes: Number of bytes of the log that are read at once.

    Raises:
        CorruptionError: A batch of the log is damaged or cannot be decoded, or the batches do not match the plan.
        OSError: A file could not be read or written.
    """
    with closing(log_row_groups(files, plan, row_group_bytes, buffer_bytes)) as groups:
        # A log that cannot be read is found before there is a file.
        first = next(groups, None)
        out = files.open(plan.out_path, create=True)
        try:
            out.truncate(0)
            sealed = _write(out, plan, chain([first] if first is not None else [], groups))
            out.fsync()
        except BaseException:
            out.close()
            with suppress(FileNotFoundError):
                files.remove(plan.out_path)
            raise
        out.close()
        return sealed


def _write(out: File, plan: ConversionPlan, groups: Iterable[LogRows]) -> SealedFile:
    record_count = value_bytes = 0
    entries: list[RowGroupEntry] = []
    with SealedOutput(out, SCHEMA, WRITER_OPTIONS) as output:
        for group in groups:
            start, end, crc = output.add(group.rows)
            group_value_bytes = group.value_bytes
            entries.append(
                RowGroupEntry(
                    first_offset=group.first_offset,
                    next_offset=group.next_offset,
                    last_lsn=group.last_lsn,
                    newest_us=group.newest_us,
                    value_bytes=group_value_bytes,
                    start=start,
                    end=end,
                    crc=crc,
                )
            )
            record_count += group.rows.num_rows
            value_bytes += group_value_bytes
        metadata = SegmentMetadata(
            format=FORMAT_VERSION,
            shard=plan.name,
            shard_id=plan.shard_id,
            base_offset=plan.base_offset,
            next_offset=plan.next_offset,
            created_us=plan.created_us,
            value_bytes=value_bytes,
            data_bytes=output.position,
            data_sha256=output.digest.hex(),
            row_groups=tuple(entries),
        )
        output.finish(metadata.encode())
        return SealedFile(output.position, output.digest, record_count, value_bytes, len(entries))
