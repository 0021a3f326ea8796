"""Gathering: closed log segments of many shards become shared files, by one decision that names all of them.

`journal.engine.parquet.scheduler` chooses the segments and handles failures. The files are valid as soon as a
`FilesConverted` entry is durable; before it a start can undo every step, as the note in ``sealing/`` names the files.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeGuard, overload

import attrs

from journal.engine.parquet.converter import ParquetConverter
from journal.engine.segments.lifecycle import SegmentFiles, UnsyncedDirectoryError
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice, collect, in_order_of, release
from journal.engine.wal.entry_payloads import ConvertedFile, ConvertedPart, FilesConverted
from journal.engine.write.commands import Commands
from shards.errors import ConversionFailedError, CorruptionError, StorageError
from shards.model import Retention
from shards.segments.conversion_plan import GatheredFiles, PartSource, SharedPlan, SourceKind
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment, file_of
from shards.segments.retention import may_be_one
from shards.segments.segment_paths import shared_path
from shards.segments.shard import Shard
from shards.views.shared_files import FileKey

MOST_PARTS = 1 << 17
"""So many parts are in one decision at most."""
MOST_SOURCES = 1 << 20
"""So many segments are gathered at once at most: those of one shard become one part."""
MOST_BYTES = 256 << 20
_WRITTEN_AT_ONCE = 1 << 20
# Of an encoded part: a tag, and ten numbers with a tag each.
_PART_BYTES = 91
_UNBOUNDED = Retention()

Chosen: TypeAlias = tuple[Shard, LogSegment | ParquetSegment]


class BeingFlushedError(ConversionFailedError):
    """A flush has begun since the segment was chosen: a part of it is in its file, and the rest is in memory alone."""


class Gatherer:
    """Gathers segments of one engine.

    Args:
        converter: Writes the files.
        files: Moves the files into place.
        table: The shards.
        commands: Records which segments are in which files.
        put_parts: Puts the parts that decisions name into their shards.
        most_parts: How many parts a decision may have.
        valid: Returns the shared files that are valid now.
    """

    def __init__(
        self,
        converter: ParquetConverter,
        files: SegmentFiles,
        table: ShardTable,
        commands: Commands,
        put_parts: Callable[[], Awaitable[None]],
        most_parts: int,
        valid: Callable[[], Sequence[FileKey]],
    ) -> None:
        self._converter = converter
        self._valid = valid
        self._put_parts = put_parts
        self._most_parts = most_parts
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
            BeingFlushedError: A segment can be read neither from its file nor from memory alone; nothing is wrong.
            ConversionFailedError: The disk refused, or the worker process has ended.
        """
        path = self._files.tails_path(prefix)
        tails = await self._write_tails(chosen, path)
        try:
            return await self._converter.gather(SharedPlan(prefix, file_id, Sources(chosen, path, tails)))
        except CorruptionError as error:
            if error.path != path:
                raise
            # No segment is damaged on the disk.
            raise ConversionFailedError(str(error)) from error

    async def _write_tails(self, chosen: Sequence[Chosen], path: str) -> dict[int, int]:
        """Write the logs that are only in memory one after the other into one file; returns where each begins."""
        places: dict[int, int] = {}
        pieces = bytearray()
        written = 0
        step = TimeSlice()
        for number, (shard, segment) in enumerate(chosen):
            if step.is_over:
                await step.rest()
            if isinstance(segment, LogSegment) and is_in_part(segment):
                raise BeingFlushedError(f"{segment.path} is being written")
            if _is_in_memory(segment) and is_wanted(shard, segment):
                places[number] = written + len(pieces)
                # A copy, since a flush or a trim frees the memory.
                for buffer in segment.plan_flush(segment.end, segment.next_offset).buffers:
                    pieces += buffer
            if len(pieces) >= _WRITTEN_AT_ONCE or (pieces and number == len(chosen) - 1):
                await self._files.write_aside(path, bytes(pieces), written)
                written += len(pieces)
                pieces.clear()
        return places

    async def put_in_place(self, chosen: Sequence[Chosen], file_id: int, prefix: str, written: GatheredFiles) -> int:
        """Move written files into place and decide that they are valid; must not be cancelled.

        The parts of the written files are removed from their list, since to free all of them is work for many steps.

        Returns:
            The number of segments that are in them now: others were trimmed or deleted meanwhile.

        Raises:
            ConversionFailedError: The directory of a day was moved or replaced.
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
            await self._files.place_shared(prefix, moves, [shared_path(root, *key) for key in self._valid()])
        except UnsyncedDirectoryError as unsynced:
            try:
                await self._files.withdraw_shared(places)
            except OSError as error:
                raise unsynced from error
            raise
        except (StorageError, OSError):
            await self._files.withdraw_shared(places)
            raise
        decision, wanted = await self._decision(chosen, file_id, written)
        if not decision.parts:
            await self._files.withdraw_shared(places)
            return 0
        await self._commands.record_files_converted(decision)
        # A later choice must not find the segments that were replaced.
        await self._put_parts()
        return wanted

    async def _decision(
        self, chosen: Sequence[Chosen], file_id: int, written: GatheredFiles
    ) -> tuple[FilesConverted, int]:
        """The decision, and the number of segments that are in the files with it; frees the parts of the files."""
        parts: list[ConvertedPart] = []
        bounds: dict[int, Retention] = {}
        wanted: set[int] = set()
        step = TimeSlice()
        for part in written.parts:
            if step.is_over:
                await step.rest()
            shard, segment = chosen[part.source]
            if is_wanted(shard, segment):
                wanted.add(part.source)
                if shard.config.retention != Retention():
                    bounds[shard.shard_id] = shard.config.retention
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
        ordered = await in_order_of(parts, _shard_and_offset)
        found = await collect(joined(ordered, bounds))
        parts.clear()
        await release(ordered)
        await release(written.parts)
        if len(found) > self._most_parts:
            # Records of many days, for which there is no room in the journal: the segments of these shards stay.
            end = self._most_parts
            while end and found[end - 1].shard_id == found[end].shard_id:
                end -= 1
            left_out = {part.shard_id for part in found[end:]}
            del found[end:]
            wanted = {source for source in wanted if chosen[source][0].shard_id not in left_out}
        return FilesConverted(tuple(files), tuple(found)), len(wanted)


def most_parts(decision_bytes: int) -> int:
    """How many parts one decision may have, which has at most so many bytes with its files."""
    return max(1, min(MOST_PARTS, decision_bytes // 2 // _PART_BYTES))


def joined(parts: Iterable[ConvertedPart], bounds: Mapping[int, Retention]) -> Iterator[ConvertedPart]:
    """Join parts of one shard that are adjacent in one file: the shard has one segment instead of several.

    Args:
        parts: In the order of shards and offsets.
        bounds: The retention of shards that have one. Their parts stay small enough to be dropped one by one.
    """
    last: ConvertedPart | None = None
    for part in parts:
        if (
            last is not None
            and (part.shard_id, part.file, part.base_offset) == (last.shard_id, last.file, last.next_offset)
            and part.first_row == last.first_row + last.next_offset - last.base_offset
            and may_be_one(
                bounds.get(part.shard_id, _UNBOUNDED),
                record_count=part.next_offset - last.base_offset,
                size_bytes=last.size_bytes + part.size_bytes,
                span_us=part.newest_append_us - last.created_us,
            )
        ):
            last = last._replace(
                next_offset=part.next_offset,
                size_bytes=last.size_bytes + part.size_bytes,
                newest_append_us=part.newest_append_us,
                last_lsn=part.last_lsn,
                newest_us=max(last.newest_us, part.newest_us),
            )
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


async def in_order(chosen: Sequence[Chosen]) -> list[Chosen]:
    """The segments in the order of a plan."""
    return await in_order_of(chosen, _name_and_offset)


def _name_and_offset(each: Chosen) -> tuple[bytes, int, int]:
    return each[0].name.encode(), each[0].shard_id, each[1].base_offset


def _shard_and_offset(part: ConvertedPart) -> tuple[int, int]:
    return part.shard_id, part.base_offset


def is_in_part(segment: LogSegment) -> bool:
    """Whether a part of the segment is in its log file, and the rest only in memory."""
    return segment.start_position < segment.flushed < segment.end


def _is_in_memory(segment: LogSegment | ParquetSegment) -> TypeGuard[LogSegment]:
    return isinstance(segment, LogSegment) and segment.flushed == segment.start_position < segment.end


class Sources(Sequence[PartSource]):
    """The sources of a plan, each made when it is asked for: there may be a hundred thousand."""

    def __init__(self, chosen: Sequence[Chosen], tails_path: str, tails: Mapping[int, int]) -> None:
        self._chosen = chosen
        self._tails_path = tails_path
        self._tails = tails

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, at: int) -> PartSource: ...

    @overload
    def __getitem__(self, at: slice) -> list[PartSource]: ...

    def __getitem__(self, at: int | slice) -> PartSource | list[PartSource]:
        if isinstance(at, slice):
            return [self._source(number) for number in range(*at.indices(len(self)))]
        return self._source(range(len(self))[at])

    def _source(self, number: int) -> PartSource:
        segment = self._chosen[number][1]
        place = self._tails.get(number)
        return _source(segment, segment.path, 0) if place is None else _source(segment, self._tails_path, place)


def _source(segment: LogSegment | ParquetSegment, path: str, file_position: int) -> PartSource:
    if isinstance(segment, ParquetSegment):
        return PartSource(
            log_path=path,
            name=segment.name,
            shard_id=segment.shard_id,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            kind=SourceKind.SHARED,
            first_row=segment.place.first_row,
        )
    return PartSource(
        log_path=path,
        name=segment.name,
        shard_id=segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        start_position=segment.start_position,
        end_position=segment.end,
        file_position=file_position,
    )


def is_wanted(shard: Shard, segment: LogSegment | ParquetSegment) -> bool:
    """Whether the shard still has the segment, or what a trim has left of it."""
    if shard.deleted:
        return False
    if segment in shard.segments:
        return True
    first = shard.segments[0] if shard.segments else None
    return (
        isinstance(segment, ParquetSegment)
        and isinstance(first, ParquetSegment)
        and first.next_offset == segment.next_offset
        and first.is_in_file_of(segment)
    )


@attrs.frozen(slots=True)
class Left:
    """What is left of segments after they were gathered.

    Attributes:
        wanted: A shard that still has one of them; None if there is none.
        replaced: Shared files in which they were, and in which no shard has one of them any more.
    """

    wanted: Shard | None
    replaced: set[FileKey]


async def look_again(chosen: Sequence[Chosen]) -> Left:
    """Find what is left of segments, in short steps."""
    wanted: Shard | None = None
    files: set[FileKey] = set()
    kept: set[FileKey] = set()
    step = TimeSlice()
    for shard, segment in chosen:
        if step.is_over:
            await step.rest()
        key = file_of(segment)
        if key is not None:
            files.add(key)
        if is_wanted(shard, segment):
            if wanted is None:
                wanted = shard
            if key is not None:
                kept.add(key)
    return Left(wanted, files - kept)


async def is_one_dropped(chosen: Sequence[Chosen]) -> bool:
    """Whether a shard no longer has one of the segments; looks in short steps."""
    step = TimeSlice()
    for shard, segment in chosen:
        if not is_wanted(shard, segment):
            return True
        if step.is_over:
            await step.rest()
    return False


def closed_logs(shard: Shard) -> Iterator[LogSegment]:
    """Log segments with records that are completely published and will not grow."""
    if shard.published_segment is None:
        return
    for segment in shard.segments:
        if segment is shard.published_segment and not (
            segment.closed and not shard.pending_groups and segment.next_offset <= shard.published_offset
        ):
            return
        if isinstance(segment, LogSegment) and segment.next_offset > max(segment.base_offset, shard.start_offset):
            yield segment
        if segment is shard.published_segment:
            return
