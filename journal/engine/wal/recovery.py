"""Reading the journal after a stop or a crash, and the table that decides what each kind of damage means.

A commit group is written only after the one before it is durable, so a crash can tear at most the last group: it was
never acknowledged and is cut off. Damage anywhere else affects acknowledged data and is never cut off.
For the same reason all groups but the last are known to be durable. The last one may be in the page cache only (the
process was killed before its sync) or may never reach the disk (its sync failed): it is returned as unproven, and has
to be written again before it is used. Each start begins a new file for that, so a file replaces the content of the
files before it from its first lsn on.
"""

from __future__ import annotations

import enum
import posixpath
import struct
from collections.abc import Iterator

import attrs
from crc32c import crc32c

from journal.engine.wal.entry import (
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    BadEntryHeader,
    Entry,
    GroupHeader,
    Kind,
    decode_entries,
    decode_group_header,
)
from journal.engine.wal.journal_file import (
    FIRST_GROUP_POSITION,
    JournalFileHeader,
    UsedFile,
    journal_path,
    list_journal_files,
)
from shards.errors import BatchError, CorruptionError, FormatVersionError
from shards.format.batch import HEADER_SIZE, verify
from shards.format.batch_header import CHECKED_FROM, MAGIC, PREFIX_SIZE
from shards.seams.file_system import FileSystem

_STAMP = struct.Struct("<4sI8xQ8xI")
_KINDS = frozenset(Kind)


class Verdict(enum.Enum):
    """The action for a group."""

    KEEP = "keep"
    TRUNCATE = "truncate"
    STOP_SHARDS = "stop the shards whose entries are damaged"
    REFUSE = "refuse to open"
    END = "nothing more was written"


def judge(*, group_header_ok: bool, entry_headers_ok: bool, payloads_ok: bool, is_tail: bool) -> Verdict:
    """The recovery table.

    Args:
        group_header_ok: The group's header is valid and belongs to the present use of the file.
        entry_headers_ok: Every entry header in it is valid (False if the group header is not and the entries could
            not be followed up to the next group).
        payloads_ok: Every payload matches its checksum.
        is_tail: There is no later group: a crash may have torn this one.
    """
    table = {
        # group header, entry headers, payloads, tail
        (True, True, True, True): Verdict.KEEP,
        (True, True, True, False): Verdict.KEEP,
        (True, True, False, True): Verdict.TRUNCATE,
        (True, True, False, False): Verdict.STOP_SHARDS,
        (True, False, True, True): Verdict.TRUNCATE,
        (True, False, True, False): Verdict.REFUSE,
        (True, False, False, True): Verdict.TRUNCATE,
        (True, False, False, False): Verdict.REFUSE,
        # Without its header a group at the tail cannot be told from the content of an earlier use of the file.
        (False, True, True, True): Verdict.END,
        (False, True, True, False): Verdict.KEEP,
        (False, True, False, True): Verdict.END,
        (False, True, False, False): Verdict.STOP_SHARDS,
        (False, False, True, True): Verdict.END,
        (False, False, True, False): Verdict.REFUSE,
        (False, False, False, True): Verdict.END,
        (False, False, False, False): Verdict.REFUSE,
    }
    return table[group_header_ok, entry_headers_ok, payloads_ok, is_tail]


class IncompleteCopyError(CorruptionError):
    """A file of a journal is missing that is a copy: the log store has what was in it."""


@attrs.frozen(slots=True)
class Damage:
    """A damaged entry of acknowledged data whose shard is known."""

    path: str
    position: int
    shard_id: int
    lsn: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.problem}"


@attrs.frozen(slots=True)
class RecoveredGroup:
    """One group, ready for replay: its valid entries and the damaged ones.

    Attributes:
        unproven: The bytes of its entries, if nothing proves that they are durable: write them again before the replay.
    """

    entries: list[Entry]
    damages: list[Damage]
    first_lsn: int
    next_lsn: int
    unproven: memoryview | None = None


@attrs.define(slots=True)
class Recovered:
    """Result of reading the journal; complete when the iteration has ended.

    Attributes:
        used: The journal files, oldest first.
        truncated_bytes: Bytes of a torn last group that were cut off: none of it had been acknowledged.
        next_lsn: lsn after the last group.
        damages: Damaged entries whose shards are stopped.
    """

    used: list[UsedFile] = attrs.Factory(list)
    truncated_bytes: int = 0
    next_lsn: int = 1
    damages: list[Damage] = attrs.Factory(list)


@attrs.frozen(slots=True)
class Expected:
    """What the views prove about the journal, so that a missing part of the journal is noticed.

    Attributes:
        checkpoint: The views contain everything up to this lsn, so only files before it may be missing.
        folded_lsn: The views contain an entry with this lsn, so the journal reaches at least that far.
        newest_number: A journal file with this number or a higher one exists; 0 if it is not known.
        is_unused: The views have never been used, so nothing was ever written to the journal.
        is_copy: The journal is a copy of a log in a log store: what is missing of it is read there again.
    """

    checkpoint: int = 0
    folded_lsn: int = 0
    newest_number: int = 0
    is_unused: bool = False
    is_copy: bool = False

    def check_files(self, directory: str, numbers: list[int]) -> None:
        """Refuse a directory without the newest file that the views know.

        Raises:
            CorruptionError: It is missing.
        """
        newest = max(numbers, default=0)
        if newest > 1:
            self.check_use(directory)
        if self.is_copy:
            return
        if newest < self.newest_number:
            raise CorruptionError(
                journal_path(directory, self.newest_number),
                0,
                f"the file is missing, and so is every later one: {_found(numbers)}. The views were written together "
                f"with it. Is the journal's file system mounted? If it is lost, restore a backup",
            )
        if not numbers and self.checkpoint:
            raise CorruptionError(
                directory,
                0,
                f"there is no journal file, but the views end with lsn {self.checkpoint}. Is the journal's file system "
                f"mounted? If it is lost, restore a backup",
            )

    def gap(self, path: str, position: int, problem: str) -> CorruptionError:
        """The error for a file that is missing, before or behind others that are there."""
        return (IncompleteCopyError if self.is_copy else CorruptionError)(path, position, problem)

    def check_end(self, directory: str, next_lsn: int) -> None:
        """Refuse a journal that ends before the last entry in the views.

        Raises:
            CorruptionError: Its end is missing.
        """
        known = max(self.checkpoint, self.folded_lsn)
        if next_lsn <= known and not self.is_copy:
            raise CorruptionError(
                directory,
                0,
                f"the journal ends with lsn {next_lsn - 1}, but the views hold lsn {known}: its newest part is "
                f"missing. Restore journal and views from the same backup",
            )

    def check_use(self, path: str) -> None:
        """Refuse a journal that was in use together with new views: its own views are missing.

        Raises:
            CorruptionError: Its views are missing.
        """
        if self.is_unused:
            raise CorruptionError(
                path,
                0,
                "the journal was in use, but the store of the views (state/) is empty. Is its file system mounted? If "
                "it is lost, restore journal and views from the same backup",
            )


def _found(numbers: list[int]) -> str:
    return f"found files {numbers[0]} to {numbers[-1]}" if numbers else "found none"


def check_payload(entry: Entry) -> str:
    """The problem of an entry's payload, or an empty string."""
    if entry.kind == Kind.APPEND:
        batch = entry.payload
        if len(batch) >= HEADER_SIZE:
            magic, prefix_crc, lsn, body_crc = _STAMP.unpack_from(batch)
            if (
                body_crc == entry.payload_crc == crc32c(batch[CHECKED_FROM:])
                and prefix_crc == crc32c(batch[8:PREFIX_SIZE])
                and lsn == entry.lsn
                and magic == MAGIC
            ):
                return ""
        try:
            header = verify(batch)
        except BatchError as error:
            return str(error)
        if header.body_crc != entry.payload_crc or header.lsn != entry.lsn:
            return f"batch with lsn {header.lsn} under an entry header with lsn {entry.lsn}"
        return ""
    found = crc32c(entry.payload)
    if found != entry.payload_crc:
        return f"payload checksum: expected {entry.payload_crc:#010x}, found {found:#010x}"
    return ""


@attrs.frozen(slots=True)
class _Source:
    """A journal file that will be read.

    Attributes:
        replaced_from: The next file replaces its content from this lsn on; None for the last file.
    """

    path: str
    header: JournalFileHeader
    replaced_from: int | None


def read_journal(
    files: FileSystem, directory: str, found: Recovered, expected: Expected = Expected()
) -> Iterator[RecoveredGroup]:
    """All groups in order, as far as they may be replayed; fills ``found`` during the iteration.

    Args:
        files: The file system.
        directory: The journal's directory.
        found: Filled with the result.
        expected: What the views prove about the journal.

    Raises:
        CorruptionError: Acknowledged data is damaged, and it is not known which shard it belongs to, or a part of the
            journal is missing.
        FormatVersionError: A newer program wrote the journal.
    """
    checkpoint = expected.checkpoint
    # One buffer for all files, as allocating memory is slow: a group is replayed before the next one is read.
    buffer = bytearray()
    for source in _sources(files, directory, expected):
        path, header = source.path, source.header
        # Files are recycled together, but a crash may have undone that for some of them; the views contain everything
        # that missing files in between had.
        if (
            found.used
            and header.first_lsn != found.next_lsn
            and not found.next_lsn <= header.first_lsn <= checkpoint + 1
        ):
            raise expected.gap(
                path, 0, f"begins with lsn {header.first_lsn}, but the file before it ends with {found.next_lsn - 1}"
            )
        if not found.used and header.first_lsn > checkpoint + 1:
            raise expected.gap(
                path,
                0,
                f"begins with lsn {header.first_lsn}, but the views end with {checkpoint}: a file is missing before it",
            )
        file = files.open(path, write=False)
        try:
            # Checked before memory of the size in the header is allocated.
            size_bytes = file.size()
            if size_bytes < header.size_bytes:
                raise CorruptionError(
                    path, size_bytes, f"the file ends here, but it was made with {header.size_bytes} bytes"
                )
            if len(buffer) != header.size_bytes:
                buffer = bytearray(header.size_bytes)
            data = memoryview(buffer)[: file.readinto(memoryview(buffer), 0)]
        finally:
            file.close()
        found.next_lsn = header.first_lsn
        used = UsedFile(path, header, header.first_lsn - 1)
        found.used.append(used)
        for group in _read_groups(source, data, found, expected):
            expected.check_use(path)
            used.last_lsn = group.next_lsn - 1
            used.keep = used.keep or bool(group.damages)
            found.damages.extend(group.damages)
            yield group
    if found.used:
        expected.check_end(directory, found.next_lsn)


def _sources(files: FileSystem, directory: str, expected: Expected) -> list[_Source]:
    paths = list_journal_files(files, directory)
    expected.check_files(directory, [number for number, _ in paths])
    headers = []
    for _, path in paths:
        file = files.open(path, write=False)
        try:
            headers.append(JournalFileHeader.decode(path, file.pread(FIRST_GROUP_POSITION, 0)))
        finally:
            file.close()
    following = [header.first_lsn for header in headers[1:]]
    return [
        _Source(path, header, replaced_from)
        for (_, path), header, replaced_from in zip(paths, headers, [*following, None], strict=False)
    ]


def _read_groups(source: _Source, data: memoryview, found: Recovered, expected: Expected) -> Iterator[RecoveredGroup]:
    checkpoint = expected.checkpoint
    path, replaced_from = source.path, source.replaced_from
    is_last_file = replaced_from is None
    salt = source.header.salt & 0xFFFFFFFF
    position = FIRST_GROUP_POSITION
    while True:
        header = decode_group_header(data, position, salt)
        later = None if header is not None else find_group(data, position, salt, found.next_lsn)
        if header is None and later is None:
            # The end of the written part; a file that is not the last one may end before its size.
            return
        start = position + GROUP_HEADER_SIZE
        end = start + header.size_bytes if header is not None else later[0] if later is not None else start
        if end > len(data):
            raise CorruptionError(path, position, f"group of {end - start} bytes reaches beyond the file's end")
        if header is not None and header.first_lsn != found.next_lsn:
            raise CorruptionError(path, position, f"expected lsn {found.next_lsn}, found {header.first_lsn}")
        if header is not None and header.next_lsn < header.first_lsn:
            raise CorruptionError(
                path, position, f"group of lsns from {header.first_lsn} up to {header.next_lsn}, which is before them"
            )
        if header is not None and header.continues_in and is_last_file:
            raise expected.gap(
                journal_path(posixpath.dirname(path), header.continues_in),
                0,
                f"the file is missing: {path} says at byte {position} that the journal continues in it. Restore it "
                f"from a copy",
            )
        if replaced_from is not None and header is not None and header.size_bytes and header.first_lsn >= replaced_from:
            # The next file has a copy of the group, or it was torn.
            return
        if header is not None and header.next_lsn <= checkpoint + 1:
            # The views contain all of it durably: a start skips it, 'journal check' reads it.
            found.next_lsn = header.next_lsn
            position = end
            yield RecoveredGroup([], [], header.first_lsn, header.next_lsn)
            continue
        bounds = (found.next_lsn, header.next_lsn if header is not None else later[1].first_lsn if later else 0)
        entries, damages, bad_header = read_entries(path, data, start, end, *bounds)
        if header is not None:
            later = find_group(data, end, salt, header.next_lsn)
        clean = bad_header is None and not damages
        verdict = judge(
            group_header_ok=header is not None,
            entry_headers_ok=bad_header is None,
            payloads_ok=not damages,
            is_tail=later is None and not clean and (replaced_from is None or replaced_from <= found.next_lsn),
        )
        if verdict is Verdict.REFUSE:
            raise _refusal(path, position, bad_header)
        if verdict is Verdict.TRUNCATE:
            found.truncated_bytes = end - position
            return
        _refuse_damage_of_no_shard(damages)
        first_lsn, found.next_lsn = found.next_lsn, bounds[1]
        # Nothing follows it, so it is complete (a damaged one would have been cut off).
        is_proven = later is not None or not is_last_file or start == end
        yield RecoveredGroup(entries, damages, first_lsn, bounds[1], None if is_proven else data[start:end])
        position = end


def read_entries(
    path: str, data: memoryview, start: int, end: int, least_lsn: int, next_lsn: int
) -> tuple[list[Entry], list[Damage], BadEntryHeader | None]:
    """The valid entries of a group, the damaged ones, and a damaged header if there is one."""
    entries: list[Entry] = []
    damages: list[Damage] = []
    for entry in decode_entries(data, start, end):
        if isinstance(entry, BadEntryHeader):
            return entries, damages, entry
        if not least_lsn <= entry.lsn < next_lsn:
            # A complete entry, but of an earlier use of the file: the sector that replaces it was never written.
            problem = f"entry with lsn {entry.lsn}, expected {least_lsn} to {next_lsn - 1}"
            return entries, damages, BadEntryHeader(entry.position, problem)
        least_lsn = entry.lsn + 1
        if entry.kind not in _KINDS:
            # Its header is valid, so this is not damage, and nothing of it may be cut off or skipped.
            raise FormatVersionError(
                f"{path} at byte {entry.position}: entry kind {entry.kind} was written by a newer program; "
                f"start that version of the server"
            )
        if problem := check_payload(entry):
            damages.append(Damage(path, entry.position, entry.shard_id, entry.lsn, problem))
        else:
            entries.append(entry)
    return entries, damages, None


def _refusal(path: str, position: int, bad_header: BadEntryHeader | None) -> CorruptionError:
    problem = "the header of its commit group is damaged" if bad_header is None else bad_header.problem
    return CorruptionError(
        path,
        position if bad_header is None else bad_header.position,
        f"{problem}, in acknowledged data; it is not known which shard the entry belongs to. Restore the file "
        f"from a backup; 'journal check' shows what else is damaged",
    )


def _refuse_damage_of_no_shard(damages: list[Damage]) -> None:
    for damage in damages:
        if damage.shard_id == 0:
            problem = f"{damage.problem}, in an entry that belongs to no single shard"
            raise CorruptionError(damage.path, damage.position, problem)


def find_group(data: memoryview, start: int, salt: int, least_lsn: int) -> tuple[int, GroupHeader] | None:
    """The first group header of this use of the file at or after a position, found by its magic."""
    raw = data.obj
    assert isinstance(raw, bytes | bytearray)  # the data was read from a file
    at = raw.find(GROUP_MAGIC, start)
    while at >= 0:
        header = decode_group_header(data, at, salt)
        if header is not None and header.first_lsn >= least_lsn:
            return at, header
        at = raw.find(GROUP_MAGIC, at + 1)
    return None
