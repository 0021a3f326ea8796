"""Check of the log segments: file header, every batch, and the index file.

The expected content of a segment is its record in the views. Bytes after that are not damage: they are written again
from the journal.
"""

from __future__ import annotations

import attrs

from journal.check.report import Progress, Report
from journal.check.window import Window
from shards.errors import BatchError, CorruptionError, FormatVersionError
from shards.format.batch import verify
from shards.format.batch_header import HEADER_SIZE, MAGIC, BatchHeader
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import LogHeader, LogSegment
from shards.segments.sparse_index import STORED_SIZE, SparseIndex

_LARGEST_LOG_HEADER = 2048
_ALIGNMENT = 8


@attrs.define
class _IndexWalk:
    """The saved index entries of a segment, compared one after the other while its batches are read."""

    path: str
    entries: list[tuple[int, int, int, int, int]]
    """(place in the index file, offset, position, lsn, newest record before it)"""
    at: int = 0


def check_segment(
    files: FileSystem,
    segment: LogSegment,
    report: Report,
    progress: Progress | None,
    *,
    may_be_missing: bool = False,
    is_copy: bool = False,
) -> None:
    """Check one recorded log segment with its index file.

    Args:
        files: The file system.
        segment: The segment as the views record it.
        report: Gets the findings.
        progress: Called with the bytes read so far.
        may_be_missing: The journal drops the segment, so its files may be missing.
        is_copy: The directory is a copy of a shared log. A file without content may be in the place of the log file,
            until the log says that it is dropped.
    """
    report.counts.segments += 1
    if segment.flushed_offset == segment.base_offset:
        # Nothing of it is recorded as flushed: after a crash it may contain anything, and it is written again
        # completely.
        if files.exists(segment.path):
            report.note(segment.path, 0, "the whole file is after the recorded end")
        return
    if not files.exists(segment.path):
        if not may_be_missing:
            problem = f"the file is missing; the views record {segment.flushed} bytes of it"
            report.damage(segment.path, 0, f"{problem} (shard {segment.header.name!r})")
        return
    index = _read_index(files, segment, report, may_be_missing=may_be_missing)
    file = files.open(segment.path, write=False)
    try:
        if is_copy and not any(file.pread(_LARGEST_LOG_HEADER, 0)):
            problem = "it has no content: the server began with a checkpoint, and the log drops it later"
            report.note(segment.path, 0, f"{problem} (shard {segment.header.name!r})")
            return
        window = Window(file, report.counts, progress)
        _SegmentPass(segment, window, report, index).check()
    finally:
        file.close()


class _SegmentPass:
    """The check of one log file."""

    def __init__(self, segment: LogSegment, window: Window, report: Report, index: _IndexWalk) -> None:
        self._segment = segment
        self._window = window
        self._report = report
        self._index = index
        self._newest_us = 0
        self._whole = True

    def check(self) -> None:
        segment, window = self._segment, self._window
        try:
            header, size = LogHeader.decode(segment.path, bytes(window.view(0, _LARGEST_LOG_HEADER)))
        except (CorruptionError, FormatVersionError) as error:
            self._damage(0, error.problem if isinstance(error, CorruptionError) else str(error))
        else:
            if header != segment.header or size != segment.start_position:
                self._damage(0, f"the file says it is {header}, the views say {segment.header}")
        if window.size < segment.flushed:
            self._damage(window.size, f"the file ends here, but the views record {segment.flushed} bytes of it")
        elif window.size > segment.flushed:
            behind = window.size - segment.flushed
            self._report.note(segment.path, segment.flushed, f"{behind} bytes are after the recorded end")
        self._check_batches(min(segment.flushed, window.size))
        index = self._index
        for place, _, position, _, _ in index.entries[index.at :]:
            self._report.damage(index.path, place, f"points to byte {position} of the log, where no batch begins")

    def _check_batches(self, end: int) -> None:
        segment = self._segment
        position = segment.start_position
        next_offset = segment.base_offset
        last_lsn = append_time_us = 0
        while position < end:
            batch = self._verify(position, end)
            if batch is None:
                self._whole = False
                position = self._next_batch(position + _ALIGNMENT, end, next_offset, last_lsn)
                continue
            if batch.base_offset != next_offset and self._whole:
                self._damage(position, f"batch with base offset {batch.base_offset}, expected {next_offset}")
            if batch.lsn <= last_lsn:
                self._damage(position, f"batch with lsn {batch.lsn} after one with lsn {last_lsn}")
            if batch.append_time_us < append_time_us:
                self._damage(
                    position, f"append time {batch.append_time_us} is before {append_time_us} of an earlier batch"
                )
            self._meet_index(position, batch)
            self._report.counts.batches += 1
            self._report.counts.records += batch.record_count
            self._newest_us = max(self._newest_us, batch.max_timestamp_us)
            next_offset, last_lsn, append_time_us = batch.next_offset, batch.lsn, batch.append_time_us
            position += batch.size_bytes
        if self._whole and position == end and end == segment.flushed:
            self._check_record(next_offset, last_lsn)

    def _check_record(self, next_offset: int, last_lsn: int) -> None:
        segment = self._segment
        if next_offset != segment.flushed_offset:
            self._damage(
                segment.flushed,
                f"the file has offsets up to {next_offset}, the views record {segment.flushed_offset}",
            )
        # The record of an open segment includes batches that are only in memory.
        if segment.closed and segment.size_bytes and last_lsn != segment.last_lsn:
            self._damage(segment.flushed, f"the last batch has lsn {last_lsn}, the views record {segment.last_lsn}")

    def _verify(self, position: int, end: int) -> BatchHeader | None:
        """The batch at a position; reports damage and returns None if it is not intact."""
        head = self._window.view(position, min(HEADER_SIZE, end - position))
        try:
            size = BatchHeader.unpack(head).size_bytes
            batch = verify(self._window.view(position, min(size, end - position)))
        except BatchError as error:
            self._damage(position, str(error).removeprefix("record batch at byte 0").removeprefix(": ").strip())
            return None
        if batch.is_gap:
            self._damage(position, "a gap batch, which a log never contains")
        return batch

    def _next_batch(self, start: int, end: int, least_offset: int, last_lsn: int) -> int:
        """Position of a later batch of this segment, found by its magic and checksums; the end if there is none."""
        at = self._window.find(MAGIC, start, end)
        while at >= 0:
            if (at - self._segment.start_position) % _ALIGNMENT == 0 and self._is_later(
                at, end, least_offset, last_lsn
            ):
                return at
            at = self._window.find(MAGIC, at + 1, end)
        return end

    def _is_later(self, at: int, end: int, least_offset: int, last_lsn: int) -> bool:
        try:
            size = BatchHeader.unpack(self._window.view(at, min(HEADER_SIZE, end - at))).size_bytes
            batch = verify(self._window.view(at, min(size, end - at)))
        except BatchError:
            return False
        return batch.lsn > last_lsn and least_offset < batch.base_offset < self._segment.flushed_offset

    def _meet_index(self, position: int, batch: BatchHeader) -> None:
        index = self._index
        while index.at < len(index.entries):
            place, offset, indexed, lsn, newest_us = index.entries[index.at]
            if indexed > position:
                return
            index.at += 1
            found = (position, batch.base_offset, batch.lsn)
            if (indexed, offset, lsn) != found:
                problem = f"points to byte {indexed}, offset {offset}, lsn {lsn}; the batch there or next is at {found}"
                self._report.damage(index.path, place, problem)
            elif self._whole and not self._newest_us <= newest_us <= max(self._segment.newest_us, self._newest_us):
                # An entry that a recovery wrote may include later records, since the views contained them already.
                problem = f"says the newest record before is of {newest_us}, it is of {self._newest_us}"
                self._report.damage(index.path, place, problem)

    def _damage(self, position: int, problem: str) -> None:
        self._report.damage(self._segment.path, position, f"{problem} (shard {self._segment.header.name!r})")


def _read_index(files: FileSystem, segment: LogSegment, report: Report, *, may_be_missing: bool) -> _IndexWalk:
    path = segment.index_path
    walk = _IndexWalk(path, [])
    if not segment.saved_entries:
        if files.exists(path):
            report.note(path, 0, "the views record no index of this segment")
        return walk
    if not files.exists(path):
        if may_be_missing:
            return walk
        report.damage(
            path, 0, f"the index file is missing; the server creates its {segment.saved_entries} entries again"
        )
        return walk
    file = files.open(path, write=False)
    try:
        stored = file.pread(segment.saved_entries * STORED_SIZE, 0)
        size = file.size()
    finally:
        file.close()
    report.counts.bytes_read += len(stored)
    for place in range(0, segment.saved_entries * STORED_SIZE, STORED_SIZE):
        if place + STORED_SIZE > len(stored):
            report.damage(
                path, len(stored), f"the file ends here, but the views record {segment.saved_entries} entries"
            )
            break
        entry = SparseIndex.decode(stored[place : place + STORED_SIZE], 1)
        if entry is None:
            report.damage(path, place, "index entry checksum does not match")
        else:
            walk.entries.append((place, entry.offsets[0], entry.positions[0], entry.lsns[0], entry.times[0]))
            report.counts.index_entries += 1
    if size > segment.saved_entries * STORED_SIZE:
        behind = size - segment.saved_entries * STORED_SIZE
        report.note(path, segment.saved_entries * STORED_SIZE, f"{behind} bytes are after the recorded entries")
    return walk
