"""Check of the Parquet segments: each recorded file, files without a record, marks, and leftovers.

The expected files are those that the views record, and those that the journal records after them.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable

import attrs

from journal.check.journal_files import CheckedJournal
from journal.check.report import Progress, Report, place_in
from journal.check.shared_files import SharedPass, is_date_directory
from journal.check.views import CheckedViews
from journal.engine.directory.data_directory import MARKER
from journal.engine.wal.entry_payloads import Converted
from shards.delta.log_files import ASIDE, LOG
from shards.errors import InvalidNameError
from shards.seams.file_system import FileSystem
from shards.segments.parquet_segment import ParquetSegment
from shards.topics.names import shard_name

_FILE = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{16})\.parquet")
_MARK = re.compile(r"_start-([0-9a-f]{16})")


class SealedPass:
    """The check of ``sealed/`` and ``sealing/``.

    Args:
        files: The file system.
        path: The data directory.
        views: The result of the check of the views.
        journal: The result of the check of the journal, whose decisions the views may not contain yet.
        report: Gets the findings.
        progress: Called with the bytes read so far.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        views: CheckedViews,
        journal: CheckedJournal,
        report: Report,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._root = f"{path}/sealed"
        self._sealing = f"{path}/sealing"
        self._views = views
        self._journal = journal
        self._report = report
        self._progress = progress
        self._segments = {segment.path: segment for segment in views.sealed if segment.place is None}
        for (shard_id, _), sealed in journal.sealed.items():
            name = self._name_of(shard_id)
            if name:
                segment = _segment_of(sealed, self._root, name, shard_id)
                self._segments[segment.path] = segment
        self._shard_ids = {segment.shard_id for segment in self._segments.values()}
        self._placed = self._read_places()
        self._shared = SharedPass(files, self._root, views, journal, self._placed, self._name_of, report, progress)

    def check(self) -> None:
        """Check everything."""
        for segment in self._segments.values():
            try:
                self._check_file(segment)
            except OSError as error:
                self._report.damage(segment.path, 0, f"the file cannot be read: {error}")
        self._shared.check_recorded()
        for directory in self._listed(self._root):
            if is_date_directory(posixpath.basename(directory)):
                self._shared.check_directory(directory)
            elif _is_shard_directory(posixpath.basename(directory)):
                self._check_directory(directory)
            elif posixpath.basename(directory) not in (MARKER, LOG, ASIDE):
                self._report.note(directory, 0, "a directory of Parquet segments has no such name")
        for segment in self._firsts():
            self._check_marked(segment)
        for path in self._listed(self._sealing):
            self._report.note(path, 0, "left over from a conversion that was not finished; the next start removes it")

    def _listed(self, directory: str) -> Iterable[str]:
        names = self._files.listdir(directory) if self._files.exists(directory) else []
        return [f"{directory}/{name}" for name in names]

    # Recorded files

    def _check_file(self, segment: ParquetSegment) -> None:
        report, path = self._report, segment.path
        is_there = self._files.exists(path)
        if not is_there and (
            segment.next_offset <= self._start_of(segment.shard_id)
            or self._journal.drops(segment.shard_id, segment.next_offset)
            or self._journal.gathers(segment.shard_id, segment.base_offset)
        ):
            return
        report.counts.segments += 1
        report.counts.sealed_segments += 1
        if not is_there:
            report.damage(
                path,
                0,
                f"the file is missing; offsets {segment.base_offset} to {segment.next_offset - 1} of shard "
                f"{segment.name!r} are recorded to be in it",
            )
            return
        try:
            from shards.parquet.verification import verify
        except ImportError as error:
            report.note(path, 0, f"the file was not checked: {error.name} is not installed")
            return
        problems = verify(self._files, path, size_bytes=segment.size_bytes, digest=segment.digest)
        for problem in problems:
            position, told = place_in(path, problem)
            report.damage(path, position, told)
        if not problems:
            report.counts.records += segment.next_offset - segment.base_offset
        report.counts.bytes_read += segment.size_bytes
        if self._progress is not None:
            self._progress(report.counts.bytes_read)

    # Content of the directories

    def _check_directory(self, directory: str) -> None:
        for path in self._listed(directory):
            name = posixpath.basename(path)
            if path in self._segments:
                continue
            if match := _FILE.fullmatch(name):
                self._report.note(path, 0, self._why_unknown(path, int(match[3], 16), int(match[2])))
            elif match := _MARK.fullmatch(name):
                self._check_mark(path, int(match[1], 16))
            else:
                self._report.note(path, 0, "Parquet segments have no such names")

    def _why_unknown(self, path: str, shard_id: int, next_offset: int) -> str:
        """Explain how a file without a record may have been created, and whether that matters."""
        if path in self._placed:
            return "it was placed here but never recorded; its records are in the log, and the next start removes it"
        if shard_id in self._journal.deleted:
            return "it belongs to a shard that the journal deletes; the next start removes it"
        if next_offset <= self._start_of(shard_id):
            return "its records are trimmed; if the next start does not remove it, it can be removed by hand"
        return (
            "no record refers to this file and the server does not read it, but programs that read the directory "
            "directly find its records; move it away"
        )

    def _read_places(self) -> set[str]:
        """Files that were moved into place shortly before the end, as their notes in ``sealing/`` name them."""
        placed = set()
        for path in self._listed(self._sealing):
            if path.endswith(".place"):
                content = self._read_json(path)
                if isinstance(content, dict) and isinstance(content.get("path"), str):
                    placed.add(f"{self._root}/{content['path']}")
                elif isinstance(content, dict) and isinstance(content.get("files"), list):
                    placed.update(f"{self._root}/{place}" for place in content["files"])
        return placed

    def _read_json(self, path: str) -> object:
        file = self._files.open(path, write=False)
        try:
            return json.loads(file.pread(file.size(), 0))
        except ValueError:
            return None
        finally:
            file.close()

    # Marks

    def _name_of(self, shard_id: int) -> str:
        record = self._views.shards.get(shard_id)
        return record.name if record is not None else self._journal.created.get(shard_id, "")

    def _start_of(self, shard_id: int) -> int:
        return max(self._views.starts.get(shard_id, 0), self._journal.trimmed.get(shard_id, 0))

    def _firsts(self) -> Iterable[ParquetSegment]:
        """The segments inside which their shard starts."""
        for segment in self._segments.values():
            gone = segment.shard_id in self._journal.deleted
            if not gone and segment.base_offset < self._start_of(segment.shard_id) < segment.next_offset:
                yield segment

    def _mark_of(self, segment: ParquetSegment) -> str:
        return f"{posixpath.dirname(segment.path)}/_start-{segment.shard_id:016x}"

    def _check_marked(self, segment: ParquetSegment) -> None:
        path, start = self._mark_of(segment), self._start_of(segment.shard_id)
        marked = self._marked(path) if self._files.exists(path) else 0
        if marked is not None and marked < start:
            found = f"says that the shard starts at {marked}" if marked else "is missing"
            self._report.note(
                path,
                0,
                f"the mark {found}, but offsets below {start} are trimmed: programs that read the directory directly "
                f"find them until the next start writes it again",
            )

    def _check_mark(self, path: str, shard_id: int) -> None:
        marked = self._marked(path)
        start = self._start_of(shard_id)
        if marked is None:
            self._report.damage(path, 0, 'expected JSON like {"start_offset": 5}')
        elif shard_id not in self._shard_ids:
            self._report.note(path, 0, f"left over: no sealed segment of shard {shard_id} is recorded")
        elif marked > start:
            self._report.damage(
                path,
                0,
                f"the mark says that the shard starts at {marked}, but it starts at {start}: programs that read the "
                f"directory directly miss the records in between. Remove the mark: the next trim writes it again",
            )

    def _marked(self, path: str) -> int | None:
        content = self._read_json(path)
        start = content.get("start_offset") if isinstance(content, dict) else None
        return start if isinstance(start, int) and start >= 0 else None


def _segment_of(sealed: Converted, root: str, name: str, shard_id: int) -> ParquetSegment:
    return ParquetSegment(root, name, shard_id, **attrs.asdict(sealed))


def _is_shard_directory(name: str) -> bool:
    try:
        shard_name(name)
    except InvalidNameError:
        return False
    return name.startswith("shard=")
