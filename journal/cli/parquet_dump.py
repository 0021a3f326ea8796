"""The part of `journal dump` that shows shared Parquet files by row groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from command_line.boundary import CommandError
from command_line.output import write_json, write_lines, write_text
from shards.quantities import counted

if TYPE_CHECKING:
    from shards.parquet.shared_reading import RowsOfShard, SharedReader


@attrs.frozen(slots=True)
class Wanted:
    """What to show.

    Attributes:
        records: The records too.
        as_json: As JSON, an object a line.
        shard: Of a shared file only the rows of this shard, if it is not empty.
    """

    records: bool
    as_json: bool
    shard: str = ""


def dump_parquet(path: str, content: memoryview, wanted: Wanted) -> None:
    """Print a shared Parquet file.

    Raises:
        CommandError: A library is missing, or the file does not have the wanted shard.
        CorruptionError: The file is damaged.
        FormatVersionError: Another version of the program wrote it.
    """
    from shards.extras import install_command
    from shards.seams.os_file_system import OsFileSystem

    try:
        from shards.parquet.shared_reading import SharedReader
    except ImportError as error:
        raise CommandError(
            f"{path} is a Parquet file, and to read it {error.name} has to be installed: {install_command('parquet')}"
        ) from error
    with SharedReader(OsFileSystem(), path) as shared:
        _dump_shared(shared, len(content), wanted)


def _dump_shared(shared: SharedReader, size_bytes: int, wanted: Wanted) -> None:
    from shards.segments.segment_paths import date_of_day

    metadata = shared.metadata
    if wanted.as_json:
        write_json({"kind": "shared", "size_bytes": size_bytes, "metadata": metadata})
    else:
        write_text(
            f"shared file {metadata.file_id:016x} of {date_of_day(metadata.day)}, "
            f"{counted(metadata.record_count, 'record')}, {metadata.value_bytes:,} bytes of values in "
            f"{size_bytes:,} bytes"
        )
    first_row = 0
    found = not wanted.shard
    for index, entry in enumerate(metadata.row_groups):
        rows = [each for each in shared.rows_of_shards(index) if wanted.shard in ("", each.shard)]
        if rows or not wanted.shard:
            found = True
            place = {"row_group": index, "position": entry.start, "size_bytes": entry.end - entry.start}
            if wanted.as_json:
                write_json(place | {"first_row": first_row, "row_count": entry.row_count, "last_lsn": entry.last_lsn})
            else:
                write_text(
                    f"byte {entry.start}: row group {index}, rows {first_row} to {first_row + entry.row_count - 1}, "
                    f"last lsn {entry.last_lsn}, {entry.end - entry.start} bytes, {entry.value_bytes} of values"
                )
            _print_rows(shared, index, first_row, rows, wanted)
        first_row += entry.row_count
    if not found:
        raise CommandError(f"{shared.path} has no records of shard {wanted.shard!r}; without --shard all are shown")


def _print_rows(shared: SharedReader, index: int, group_row: int, rows: list[RowsOfShard], wanted: Wanted) -> None:
    from journal.cli.shown_records import json_lines
    from shards.format.batch import read_records

    # Decoded even if the records are not shown: everything that is shown was checked.
    group = shared.rows_for_batches(index)
    for each in rows:
        batches = shared.batches(each.part(group_row), each.group(index), group).data
        if wanted.as_json:
            write_json(
                {
                    "shard": each.shard,
                    "shard_id": each.shard_id,
                    "row": group_row + each.first_row,
                    "first_offset": each.first_offset,
                    "next_offset": each.next_offset,
                }
            )
        else:
            write_text(
                f"  row {group_row + each.first_row}: shard {each.shard!r} (number {each.shard_id}), offsets "
                f"{each.first_offset} to {each.next_offset - 1} "
                f"({counted(each.next_offset - each.first_offset, 'record')})"
            )
        if wanted.records:
            write_lines(json_lines(each.shard, read_records(batches)))
