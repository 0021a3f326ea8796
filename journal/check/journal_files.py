"""Check of the journal: file headers, groups, entries, payloads, and that lsns are contiguous.

Which damage counts as a torn last write is decided by the table that recovery uses,
`journal.engine.wal.recovery.judge`.
"""

from __future__ import annotations

import posixpath
import re

import attrs

from journal.check.report import Finding, Progress, Report
from journal.check.window import Window
from journal.engine.directory.data_directory import LOG_POSITION, MARKER
from journal.engine.wal.entry import (
    ENTRY_HEADER_SIZE,
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    BadEntryHeader,
    Entry,
    GroupHeader,
    Kind,
    decode_entries,
    decode_entry_size,
    decode_group_header,
)
from journal.engine.wal.entry_payloads import (
    Decision,
    FilesConverted,
    ShardCreated,
    ShardDeleted,
    Trimmed,
    decode_payload,
    runs_of_parts,
)
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader, journal_path, list_journal_files
from journal.engine.wal.recovery import Verdict, check_payload, judge
from shards.errors import CorruptionError, FormatVersionError
from shards.seams.file_system import FileSystem

_SPARE = re.compile(r"free-\d{16}\.jnl")
_SET_ASIDE = re.compile(r"damaged-\d{16}\.jnl")
_KINDS = frozenset(Kind)


@attrs.frozen
class LsnGap:
    """A file that begins after the end of the file before it: a file between them is missing, or was recycled.

    Attributes:
        path: The file after the gap.
        first_lsn: Its first lsn.
        expected_lsn: lsn after the last group before it.
    """

    path: str
    first_lsn: int
    expected_lsn: int


@attrs.frozen
class LostEnd:
    """A mark in the last file that says that the journal continues in another one.

    Attributes:
        missing: Path of that file.
        path: The last file.
        position: Byte position of the mark in it.
    """

    missing: str
    path: str
    position: int


@attrs.define
class CheckedJournal:
    """The results that other parts of the check need.

    Attributes:
        first_lsn: First lsn of the oldest file; None if it is not known.
        next_lsn: lsn after the last group; None if it is not known because of damage.
        numbers: Numbers of the files.
        has_groups: Something was written to it.
        deleted: Shards that it deletes.
        trimmed: New first offset of each shard that it trims.
        created: Names of the shards that it creates.
        shared: Its decisions about shared files, with their lsns.
        gathered: By shard: ranges of offsets that these put into shared files.
        gaps: Where files are missing between others.
        lost_end: Where files are missing behind the others; None if the journal does not tell.
    """

    first_lsn: int | None = None
    next_lsn: int | None = None
    numbers: list[int] = attrs.Factory(list)
    has_groups: bool = False
    deleted: set[int] = attrs.Factory(set)
    trimmed: dict[int, int] = attrs.Factory(dict)
    created: dict[int, str] = attrs.Factory(dict)
    shared: list[tuple[int, FilesConverted]] = attrs.Factory(list)
    gathered: dict[int, list[tuple[int, int]]] = attrs.Factory(dict)
    gaps: list[LsnGap] = attrs.Factory(list)
    lost_end: LostEnd | None = None

    def report_missing_files(self, directory: str, report: Report, checkpoint: int, *, is_copy: bool) -> bool:
        """Report the missing files without which a start cannot read the journal.

        Files that are not needed after a checkpoint are recycled together. A power loss may undo that for some of them
        only, and the views contain everything that the missing ones had.

        Args:
            directory: The journal's directory.
            report: Gets damages, or notes if it is a copy: a start of a server on the log store reads everything again.
            checkpoint: The views contain everything up to this lsn.
            is_copy: The journal is a copy of a shared log.

        Returns:
            Whether there are such files.
        """
        missing = [
            Finding(
                gap.path,
                0,
                f"begins with lsn {gap.first_lsn}, but the file before it ends before {gap.expected_lsn}, and the "
                f"views end with {checkpoint}: a file is missing",
            )
            for gap in self.gaps
            if gap.first_lsn > checkpoint + 1
        ]
        if self.first_lsn is not None and self.first_lsn > checkpoint + 1:
            problem = f"begins with lsn {self.first_lsn}, but the views end with {checkpoint}"
            missing.append(Finding(directory, 0, f"{problem}: a file is missing before it"))
        if (end := self.lost_end) is not None:
            problem = f"the file is missing: {end.path} says at byte {end.position} that the journal continues in it"
            missing.append(Finding(end.missing, 0, problem))
        for finding in missing:
            report_missing(report, finding, is_copy=is_copy)
        return bool(missing)

    def drops(self, shard_id: int, next_offset: int) -> bool:
        """Whether a segment with this end may be missing, even if the views, which may be older, have it."""
        return shard_id in self.deleted or next_offset <= self.trimmed.get(shard_id, 0)

    def converts(self, shard_id: int, base_offset: int) -> bool:
        """Whether the log file that begins there may be missing because a shared file has its records."""
        return any(first <= base_offset < end for first, end in self.gathered.get(shard_id, ()))

    def note(self, shard_id: int, decision: Decision, lsn: int = 0) -> None:
        """Note the effect of a decision on the files of segments."""
        if isinstance(decision, ShardDeleted):
            self.deleted.add(shard_id)
        elif isinstance(decision, Trimmed):
            self.trimmed[shard_id] = max(decision.start_offset, self.trimmed.get(shard_id, 0))
        elif isinstance(decision, ShardCreated):
            self.created[shard_id] = decision.name
        elif isinstance(decision, FilesConverted):
            self.shared.append((lsn, decision))
            for of_shard, parts in runs_of_parts(decision.parts):
                self.gathered.setdefault(of_shard, []).append((parts[0].base_offset, parts[-1].next_offset))


def report_missing(report: Report, finding: Finding, *, is_copy: bool) -> None:
    """Report that a part of the journal is missing: damage, unless it is a copy of the log of a store."""
    if is_copy:
        problem = f"{finding.problem}. The next start with --store reads what is missing from the log store again"
        report.note(finding.path, finding.position, problem)
    else:
        report.damage(finding.path, finding.position, finding.problem)


def check_journal(files: FileSystem, directory: str, report: Report, progress: Progress | None) -> CheckedJournal:
    """Check all journal files. `CheckedJournal.report_missing_files` tells by the views what is missing."""
    checked = CheckedJournal()
    used = list_journal_files(files, directory)
    names = {path for _, path in used}
    for name in files.listdir(directory):
        path = f"{directory}/{name}"
        if _SET_ASIDE.fullmatch(name):
            report.note(
                path, 0, "a recovery set this damaged journal file aside; remove it when it is not needed any more"
            )
        elif path not in names and name not in (MARKER, LOG_POSITION) and not _SPARE.fullmatch(name):
            report.note(path, 0, "a journal contains no file of this name")
    checked.numbers = [number for number, _ in used]
    headers = [_header_of(files, path) for _, path in used]
    following = [None if header is None else header.first_lsn for header in headers[1:]]
    expected: int | None = None
    for place, (number, path) in enumerate(used):
        is_last = place == len(used) - 1
        file = files.open(path, write=False)
        try:
            window = Window(file, report.counts, progress)
            replaced_from = None if is_last else following[place]
            pass_ = _FilePass(path, window, report, checked, expected, is_last=is_last, replaced_from=replaced_from)
            pass_.check(number)
        except OSError as error:
            report.damage(path, 0, f"the file cannot be read: {error}")
            expected = None
            continue
        finally:
            file.close()
        if place == 0 and pass_.header is not None:
            checked.first_lsn = pass_.header.first_lsn
        expected = pass_.expected_lsn
    checked.next_lsn = expected
    return checked


def _header_of(files: FileSystem, path: str) -> JournalFileHeader | None:
    """A file's header; None if it is damaged, which the check of the file reports."""
    file = files.open(path, write=False)
    try:
        return JournalFileHeader.decode(path, file.pread(FIRST_GROUP_POSITION, 0))
    except (CorruptionError, FormatVersionError, OSError):
        return None
    finally:
        file.close()


@attrs.define
class _Group:
    """A group as far as it could be read.

    Attributes:
        unreadable: Entries with valid checksums whose content is not valid for this program: none of them is torn.
    """

    bad_header: BadEntryHeader | None = None
    unreadable: list[tuple[int, str]] = attrs.Factory(list)
    damages: list[tuple[int, str]] = attrs.Factory(list)
    entries: int = 0


class _FilePass:
    """The check of one journal file.

    Args:
        is_last: There is no later file.
        replaced_from: The next file replaces this one from that lsn on; None if there is none, or it is damaged.

    Attributes:
        header: Its header, None if that is damaged.
        expected_lsn: First lsn of the next group; None if it is not known because of damage.
    """

    def __init__(
        self,
        path: str,
        window: Window,
        report: Report,
        checked: CheckedJournal,
        expected_lsn: int | None,
        *,
        is_last: bool,
        replaced_from: int | None,
    ) -> None:
        self._path = path
        self._replaced_from = replaced_from
        self._window = window
        self._report = report
        self._checked = checked
        self._is_last = is_last
        self.expected_lsn = expected_lsn
        self.header: JournalFileHeader | None = None

    def check(self, number: int) -> None:
        report = self._report
        report.counts.journal_files += 1
        try:
            header = JournalFileHeader.decode(self._path, bytes(self._window.view(0, FIRST_GROUP_POSITION)))
        except (CorruptionError, FormatVersionError) as error:
            self._damage(0, error.problem if isinstance(error, CorruptionError) else str(error))
            self.expected_lsn = None
            return
        self.header = header
        if header.number != number:
            self._damage(0, f"the header has the number of journal file {header.number}")
        if self._window.size < header.size_bytes:
            self._damage(self._window.size, f"the file ends here, but it was made with {header.size_bytes} bytes")
        if self.expected_lsn is not None and header.first_lsn > self.expected_lsn:
            self._checked.gaps.append(LsnGap(self._path, header.first_lsn, self.expected_lsn))
        elif self.expected_lsn not in (None, header.first_lsn):
            self._damage(
                0, f"begins with lsn {header.first_lsn}, but the file before it ends before {self.expected_lsn}"
            )
        self.expected_lsn = header.first_lsn
        self._check_groups(header.salt & 0xFFFFFFFF)

    def _check_groups(self, salt: int) -> None:
        position = FIRST_GROUP_POSITION
        while True:
            header = decode_group_header(self._window.view(position, GROUP_HEADER_SIZE), 0, salt)
            later: tuple[int, GroupHeader] | None = None
            if header is None:
                later = self._next_group(position, salt)
                if later is None:
                    return
                self._damage(position, "the header of a commit group is damaged")
            start = position + GROUP_HEADER_SIZE
            end = later[0] if later is not None else start + (header.size_bytes if header is not None else 0)
            if end > self._window.size:
                self._damage(position, f"a commit group of {end - start} bytes reaches beyond the end of the file")
                self.expected_lsn = None
                return
            if header is not None and self.expected_lsn not in (None, header.first_lsn):
                self._damage(
                    position, f"a commit group begins with lsn {header.first_lsn}, expected {self.expected_lsn}"
                )
            if header is not None and header.next_lsn < header.first_lsn:
                self._damage(position, f"a commit group of lsns from {header.first_lsn} up to {header.next_lsn}")
            if header is not None and header.continues_in and self._is_last:
                missing = journal_path(posixpath.dirname(self._path), header.continues_in)
                self._checked.lost_end = LostEnd(missing, self._path, position)
            if (
                header is not None
                and header.size_bytes
                and self._replaced_from is not None
                and header.first_lsn >= self._replaced_from
            ):
                # The next file has a copy of the group, or it was torn.
                return
            group = self._read_group(start, end, header)
            clean = group.bad_header is None and not group.damages
            if header is not None and not clean:
                later = self._next_group(end, salt, header.next_lsn)
            verdict = judge(
                group_header_ok=header is not None,
                entry_headers_ok=group.bad_header is None,
                payloads_ok=not group.damages,
                is_tail=self._is_last and later is None and not clean,
            )
            if verdict is Verdict.TRUNCATE:
                self._report.note(
                    self._path, position, f"a last write of {end - position} bytes is torn; it was never acknowledged"
                )
                return
            self._tell(group)
            self._report.counts.groups += 1
            self._checked.has_groups = True
            if header is not None:
                self.expected_lsn = header.next_lsn
            elif later is not None:
                self.expected_lsn = later[1].first_lsn
            position = end

    def _tell(self, group: _Group) -> None:
        for position, problem in group.damages + group.unreadable:
            self._damage(position, problem)
        if group.bad_header is not None:
            bad = group.bad_header
            self._damage(
                bad.position,
                f"{bad.problem}; the rest of its commit group cannot be read",
            )

    def _read_group(self, start: int, end: int, header: GroupHeader | None) -> _Group:
        """Read the entries of a group one by one, since a group may be as large as the file."""
        group = _Group()
        position = start
        previous = header.first_lsn - 1 if header is not None else 0
        while position < end:
            head = self._window.view(position, min(ENTRY_HEADER_SIZE, end - position))
            size = decode_entry_size(head, 0, end - position)
            if isinstance(size, BadEntryHeader):
                group.bad_header = attrs.evolve(size, position=position)
                break
            stored = self._window.view(position, size)
            for entry in decode_entries(stored, 0, size):
                assert isinstance(entry, Entry)  # its header was checked before
                if entry.lsn <= previous or (header is not None and entry.lsn >= header.next_lsn):
                    reach = f"{previous + 1} to {header.next_lsn - 1}" if header is not None else f"over {previous}"
                    group.bad_header = BadEntryHeader(position, f"entry with lsn {entry.lsn}, expected {reach}")
                    break
                self._check_entry(group, position, entry)
                previous = entry.lsn
            if group.bad_header is not None:
                break
            group.entries += 1
            position += (size + 7) & ~7
        self._report.counts.entries += group.entries
        return group

    def _next_group(self, start: int, salt: int, least_lsn: int | None = None) -> tuple[int, GroupHeader] | None:
        """The first group header of this use of the file at or after a position."""
        least = least_lsn if least_lsn is not None else self.expected_lsn or 0
        at = self._window.find(GROUP_MAGIC, start, self._window.size)
        while at >= 0:
            header = decode_group_header(self._window.view(at, GROUP_HEADER_SIZE), 0, salt)
            if header is not None and header.first_lsn >= least:
                return at, header
            at = self._window.find(GROUP_MAGIC, at + 1, self._window.size)
        return None

    def _damage(self, position: int, problem: str) -> None:
        self._report.damage(self._path, position, problem)

    def _check_entry(self, group: _Group, position: int, entry: Entry) -> None:
        if entry.kind not in _KINDS:
            # A start refuses it even in a torn group, since its own header is valid.
            self._damage(position, f"entry kind {entry.kind} was written by a newer program")
        elif problem := check_payload(entry):
            group.damages.append((position, problem))
        elif entry.kind != Kind.APPEND:
            try:
                self._checked.note(entry.shard_id, decode_payload(entry.kind, entry.payload), entry.lsn)
            except ValueError as error:
                group.unreadable.append(
                    (position, f"the payload is not a valid {Kind(entry.kind).name.lower()}: {error}")
                )
