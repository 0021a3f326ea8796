"""Gathering: closed log segments of many shards become shared files, by one decision that names all of them.

`journal.engine.parquet.scheduler` chooses the segments and handles failures. The files are valid as soon as a
`FilesConverted` entry is durable; before it a start can undo every step, as the note in ``sealing/`` names the files.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeAlias

from journal.engine.parquet.converter import ParquetConverter
from journal.engine.segments.lifecycle import SegmentFiles, UnsyncedDirectoryError
from journal.engine.state.shard_table import ShardTable
from journal.engine.wal.entry_payloads import ConvertedFile, ConvertedPart, FilesConverted
from journal.engine.write.commands import Commands
from shards.errors import StorageError
from shards.segments.conversion_plan import GatheredFiles, PartSource, SharedPlan, SourceKind
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment_paths import shared_path
from shards.segments.shard import Shard

MOST_PARTS = 4096
"""So many segments are gathered at once: their decision is applied in one step of the event loop."""
MOST_BYTES = 256 << 20

Chosen: TypeAlias = tuple[Shard, LogSegment | ParquetSegment]


class Gatherer:
    """Gathers segments of one engine.

    Args:
        converter: Writes the files.
        files: Moves the files into place.
        table: The shards.
        commands: Records which segments are in which files.
    """

    def __init__(self, converter: ParquetConverter, files: SegmentFiles, table: ShardTable, commands: Commands) -> None:
        self._converter = converter
        self._files = files
        self._table = table
        self._commands = commands

    def new_file(self) -> tuple[int, str]:
        """A new file id, and where files with it are written."""
        file_id = int(secrets.token_hex(8), 16)
        return file_id, self._files.new_prefix(file_id)

    async def write(self, chosen: Sequence[Chosen], file_id: int, prefix: str) -> GatheredFiles:
        """Have the files written, in ``sealing/``. Cancelling may leave a part of them.

        Raises:
            CorruptionError: A log segment is damaged; its path tells which.
            ConversionFailedError: The disk refused, or the worker process has ended.
        """
        return await self._converter.gather(SharedPlan(prefix, file_id, tuple(_source(each) for _, each in chosen)))

    async def put_in_place(self, chosen: Sequence[Chosen], file_id: int, prefix: str, written: GatheredFiles) -> int:
        """Move written files into place and decide that they are valid; must not be cancelled.

        Returns:
            The number of segments that are in them now: others were trimmed or deleted meanwhile.

        Raises:
            UnsyncedDirectoryError: It is not known which files are in place; the note stays for the next start.
            NotWithdrawnError: Files that are not valid stay until the next start.
            StorageFailedError: Only after a restart it is known whether the files are valid.
            StorageError: The disk refused.
            OSError: The disk refused.
        """
        root = self._table.sealed_root
        places = [shared_path(root, file.day, file_id) for file in written.files]
        try:
            moves = [(file.path, place) for file, place in zip(written.files, places, strict=True)]
            await self._files.place_shared(prefix, moves)
        except UnsyncedDirectoryError as unsynced:
            try:
                await self._files.withdraw_shared(places)
            except OSError as error:
                raise unsynced from error
            raise
        except (StorageError, OSError):
            await self._files.withdraw_shared(places)
            raise
        wanted = sum(is_wanted(*each) for each in chosen)
        decision = self._decision(chosen, file_id, written)
        if not decision.parts:
            await self._files.withdraw_shared(places)
            return 0
        await self._commands.record_files_converted(decision)
        return wanted

    def _decision(self, chosen: Sequence[Chosen], file_id: int, written: GatheredFiles) -> FilesConverted:
        parts = []
        for part in written.parts:
            shard, segment = chosen[part.source]
            if is_wanted(shard, segment):
                parts.append(
                    ConvertedPart(
                        shard_id=shard.shard_id,
                        base_offset=part.base_offset,
                        next_offset=part.next_offset,
                        file=part.file,
                        first_row=part.first_row,
                        size_bytes=part.size_bytes,
                        created_us=segment.created_us,
                        newest_append_us=part.newest_append_us,
                        last_lsn=part.last_lsn,
                        newest_us=part.newest_us,
                    )
                )
        files = [
            ConvertedFile(file.day, file_id, file.size_bytes, file.record_count, file.digest) for file in written.files
        ]
        return FilesConverted(tuple(files), tuple(joined(sorted(parts))))


def joined(parts: Sequence[ConvertedPart]) -> list[ConvertedPart]:
    """Join parts of one shard that are adjacent in one file: the shard has one segment instead of several."""
    found: list[ConvertedPart] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            last is not None
            and (part.shard_id, part.file, part.base_offset) == (last.shard_id, last.file, last.next_offset)
            and part.first_row == last.first_row + last.next_offset - last.base_offset
        ):
            found[-1] = last._replace(
                next_offset=part.next_offset,
                size_bytes=last.size_bytes + part.size_bytes,
                newest_append_us=part.newest_append_us,
                last_lsn=part.last_lsn,
                newest_us=max(last.newest_us, part.newest_us),
            )
        else:
            found.append(part)
    return found


def in_order(chosen: Sequence[Chosen]) -> list[Chosen]:
    """The segments in the order of a plan."""
    return sorted(chosen, key=lambda each: (each[0].name.encode(), each[0].shard_id, each[1].base_offset))


def _source(segment: LogSegment | ParquetSegment) -> PartSource:
    if isinstance(segment, ParquetSegment):
        return PartSource(
            log_path=segment.path,
            name=segment.name,
            shard_id=segment.shard_id,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            kind=SourceKind.PARQUET if segment.place is None else SourceKind.SHARED,
            first_row=segment.place.first_row if segment.place is not None else 0,
        )
    return PartSource(
        log_path=segment.path,
        name=segment.name,
        shard_id=segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        start_position=segment.start_position,
        end_position=segment.end,
    )


def is_wanted(shard: Shard, segment: LogSegment | ParquetSegment) -> bool:
    """Whether the shard still has the segment."""
    return not shard.deleted and segment in shard.segments
