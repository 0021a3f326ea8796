"""Check of the shared files: each recorded one with the segments in it, and files without a record.

The expected files are those that the views record, and those that the journal records after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate

import attrs

from journal.check.journal_files import CheckedJournal
from journal.check.report import Progress, Report, place_in
from journal.check.views import CheckedViews
from journal.engine.wal.entry_payloads import ConvertedFile
from shards.errors import CorruptionError, FormatVersionError
from shards.quantities import counted
from shards.seams.file_system import FileSystem
from shards.segments.segment_paths import day_of_date, shared_path

_FILE = re.compile(r"[0-9a-f]{16}\.parquet")
_DIRECTORY = "date="


@attrs.define
class _Part:
    """A segment in a shared file."""

    shard_id: int
    base_offset: int
    next_offset: int
    first_row: int


@attrs.define
class _Expected:
    """A shared file that is recorded."""

    path: str
    size_bytes: int
    digest: bytes
    parts: list[_Part] = attrs.Factory(list)


@attrs.define
class _Rows:
    """A row group: its bytes in the file, and its rows."""

    start: int
    end: int
    first_row: int
    next_row: int


def _parts_at(parts: list[_Part], groups: list[_Rows], position: int) -> list[_Part]:
    """The segments with rows in the row group at a position."""
    return [
        part
        for group in groups
        if group.start <= position < group.end
        for part in parts
        if part.first_row < group.next_row and group.first_row < part.first_row + part.next_offset - part.base_offset
    ]


def is_date_directory(name: str) -> bool:
    """Whether a directory below ``sealed/`` has shared files, by its name."""
    try:
        return name.startswith(_DIRECTORY) and bool(day_of_date(name.removeprefix(_DIRECTORY)) + 1)
    except ValueError:
        return False


class SharedPass:
    """The check of the directories ``sealed/date=...``.

    Args:
        files: The file system.
        root: The directory ``sealed``.
        views: The result of the check of the views.
        journal: The result of the check of the journal, whose decisions the views may not contain yet.
        placed: Places of files that were moved there shortly before the end, as their notes name them.
        name_of: Returns the name of the shard with an id, empty if it is not known.
        report: Gets the findings.
        progress: Called with the bytes read so far.
    """

    def __init__(
        self,
        files: FileSystem,
        root: str,
        views: CheckedViews,
        journal: CheckedJournal,
        placed: set[str],
        name_of: Callable[[int], str],
        report: Report,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._root = root
        self._journal = journal
        self._placed = placed
        self._name_of = name_of
        self._report = report
        self._progress = progress
        self._expected: dict[str, _Expected] = {}
        for record in views.files:
            path = record.path(root)
            self._expected[path] = _Expected(path, record.size_bytes, record.digest)
        for segment in views.sealed:
            if (found := self._expected.get(segment.path)) is not None:
                found.parts.append(
                    _Part(segment.shard_id, segment.base_offset, segment.next_offset, segment.place.first_row)
                )
        for lsn, decision in journal.shared:
            if lsn <= views.node.checkpoint:
                # The views have all of it, and files that are not needed any more may be removed.
                continue
            paths = [self._expect(file) for file in decision.files]
            for part in decision.parts:
                parts = self._expected[paths[part.file]].parts
                described = _Part(part.shard_id, part.base_offset, part.next_offset, part.first_row)
                if described not in parts:
                    parts.append(described)

    def _expect(self, file: ConvertedFile) -> str:
        path = shared_path(self._root, file.day, file.file_id)
        self._expected.setdefault(path, _Expected(path, file.size_bytes, file.digest))
        return path

    def check_recorded(self) -> None:
        """Check each recorded file."""
        for expected in self._expected.values():
            try:
                self._check_file(expected)
            except OSError as error:
                self._report.damage(expected.path, 0, f"the file cannot be read: {error}")

    def _check_file(self, expected: _Expected) -> None:
        report, path = self._report, expected.path
        parts = [part for part in expected.parts if not self._journal.drops(part.shard_id, part.next_offset)]
        if not self._files.exists(path):
            # It may be removed already when nothing in it is needed; its record goes afterwards.
            if parts:
                report.damage(
                    path,
                    0,
                    f"the file is missing; {self._described(parts)} are recorded to be in it. Put it back, or restore "
                    f"the newest backup",
                )
            return
        report.counts.segments += len(parts)
        report.counts.sealed_segments += len(parts)
        try:
            from shards.parquet.shared_reading import PartOfFile
            from shards.parquet.shared_verification import verify_shared
        except ImportError as error:
            report.note(path, 0, f"the file was not checked: {error.name} is not installed")
            return
        wanted = [PartOfFile(part.shard_id, part.base_offset, part.next_offset, part.first_row) for part in parts]
        problems = verify_shared(self._files, path, wanted, size_bytes=expected.size_bytes, digest=expected.digest)
        groups = self._row_groups(path) if problems else None
        for problem in problems:
            position, told = place_in(path, problem)
            concerned = parts if groups is None else _parts_at(parts, groups, position)
            affected = f"; affected are {self._described(concerned)}" if concerned else ""
            report.damage(path, position, f"{told}{affected}")
        if not problems:
            report.counts.records += sum(part.next_offset - part.base_offset for part in parts)
        report.counts.bytes_read += expected.size_bytes
        if self._progress is not None:
            self._progress(report.counts.bytes_read)

    def _row_groups(self, path: str) -> list[_Rows] | None:
        """Where which rows of a damaged file are; None if it cannot be told."""
        from shards.parquet.shared_reading import SharedReader

        try:
            with SharedReader(self._files, path) as reader:
                entries = reader.metadata.row_groups
        except (CorruptionError, FormatVersionError):
            return None
        ends = list(accumulate(entry.row_count for entry in entries))
        return [
            _Rows(entry.start, entry.end, end - entry.row_count, end) for entry, end in zip(entries, ends, strict=True)
        ]

    def _described(self, parts: list[_Part]) -> str:
        """The first of some segments, and how many others there are."""
        first = min(parts, key=lambda part: part.first_row)
        shard = repr(self._name_of(first.shard_id)) if self._name_of(first.shard_id) else str(first.shard_id)
        others = f" and {counted(len(parts) - 1, 'other segment')}" if len(parts) > 1 else ""
        return f"offsets {first.base_offset} to {first.next_offset - 1} of shard {shard}{others}"

    def check_directory(self, directory: str) -> None:
        """Find files without a record in a directory of one day."""
        for name in self._files.listdir(directory):
            path = f"{directory}/{name}"
            if path in self._expected:
                continue
            if not _FILE.fullmatch(name):
                self._report.note(path, 0, "shared files have no such names")
            elif path in self._placed:
                problem = (
                    "it was placed here but never recorded; its records are in logs, and the next start removes it"
                )
                self._report.note(path, 0, problem)
            else:
                self._report.note(
                    path,
                    0,
                    "no record refers to this file and the server does not read it, but programs that read the "
                    "directory directly find its records; move it away",
                )
