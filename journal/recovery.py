"""Reading the journal back after a stop or a crash, and the table that decides what each damage means.

A commit group is written only after the one before it is durable, so at most the last group can be torn by a crash:
it was never acknowledged and is cut off. Damage anywhere else is damage to acknowledged data and is never cut.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import attrs
from crc32c import crc32c

from journal.entry import (
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    BadEntryHeader,
    Entry,
    GroupHeader,
    Kind,
    decode_entries,
    decode_group_header,
)
from journal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader, UsedFile, list_journal_files
from shards.batch import HEADER_SIZE, verify
from shards.batch_header import CHECKED_FROM, MAGIC, PREFIX_SIZE
from shards.errors import BatchError, CorruptionError, FormatVersionError
from shards.file_system import FileSystem

_STAMP = struct.Struct("<4sI8xQ8xI")
_KINDS = frozenset(Kind)


class Verdict(enum.Enum):
    """What to do with a group."""

    KEEP = "keep"
    TRUNCATE = "truncate"
    STOP_SHARDS = "stop the shards whose entries are damaged"
    REFUSE = "refuse to open"
    END = "nothing more was written"


def judge(*, group_header_ok: bool, entry_headers_ok: bool, payloads_ok: bool, is_tail: bool) -> Verdict:
    """The recovery table.

    Args:
        group_header_ok: The group's header is whole and of this file's present life.
        entry_headers_ok: Every entry header in it is whole (False when the group header is not and the entries could
            not be followed up to the next group).
        payloads_ok: Every payload matches its checksum.
        is_tail: No later group exists: a crash may have torn this one.
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
        # Without its header a group at the tail cannot be told from what an earlier life of the file left there.
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


@attrs.frozen(slots=True)
class Damage:
    """An entry of acknowledged data that cannot be read any more; its shard is known."""

    path: str
    position: int
    shard_id: int
    lsn: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.problem}"


@attrs.frozen(slots=True)
class RecoveredGroup:
    """One group, ready to be folded: its whole entries and what is damaged in it."""

    entries: list[Entry]
    damages: list[Damage]
    next_lsn: int


@attrs.define(slots=True)
class Recovered:
    """What reading the journal found; complete when the iteration is over.

    Attributes:
        used: The journal files, oldest first.
        resume_position: Where the next group goes in the newest file.
        truncated_bytes: Bytes of a torn last group that were cut off: none of it had been acknowledged.
        next_lsn: lsn after the last group.
        damages: Damaged entries whose shards are stopped.
    """

    used: list[UsedFile] = attrs.Factory(list)
    resume_position: int = FIRST_GROUP_POSITION
    truncated_bytes: int = 0
    next_lsn: int = 1
    damages: list[Damage] = attrs.Factory(list)


def check_payload(entry: Entry) -> str:
    """What is wrong with an entry's payload, or an empty string."""
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


def read_journal(files: FileSystem, directory: str, found: Recovered, checkpoint: int = 0) -> Iterator[RecoveredGroup]:
    """All groups in order, as far as they may be folded; fills ``found`` on the way.

    Args:
        files: The file system.
        directory: The journal's directory.
        found: Is filled.
        checkpoint: The views hold everything up to this lsn, so files before it may be gone, but no others.

    Raises:
        CorruptionError: Acknowledged data is damaged and it cannot be told whose.
        FormatVersionError: A newer program wrote the journal.
    """
    paths = list_journal_files(files, directory)
    # One buffer for all files, since fresh memory is dear: what a group gives is folded before the next.
    buffer = bytearray()
    for number_in_list, (_, path) in enumerate(paths):
        file = files.open(path, write=False)
        try:
            header = JournalFileHeader.decode(path, file.pread(FIRST_GROUP_POSITION, 0))
            if len(buffer) != header.size_bytes:
                buffer = bytearray(header.size_bytes)
            data = memoryview(buffer)[: file.readinto(memoryview(buffer), 0)]
        finally:
            file.close()
        # Files are recycled together, but a crash may have undone that for some and not for others; the views hold
        # everything that files missing in between had.
        if (
            found.used
            and header.first_lsn != found.next_lsn
            and not found.next_lsn <= header.first_lsn <= checkpoint + 1
        ):
            raise CorruptionError(
                path, 0, f"begins with lsn {header.first_lsn}, but the file before it ends with {found.next_lsn - 1}"
            )
        if len(data) < header.size_bytes:
            raise CorruptionError(
                path, len(data), f"the file ends here, but it was made with {header.size_bytes} bytes"
            )
        if not found.used and header.first_lsn > checkpoint + 1:
            raise CorruptionError(
                path,
                0,
                f"begins with lsn {header.first_lsn}, but the views end with {checkpoint}: a file is missing before it",
            )
        found.next_lsn = header.first_lsn
        used = UsedFile(path, header, header.first_lsn - 1)
        found.used.append(used)
        is_last = number_in_list == len(paths) - 1
        for group in _read_groups(path, data, header, found, checkpoint, is_last=is_last):
            used.last_lsn = group.next_lsn - 1
            used.keep = used.keep or bool(group.damages)
            found.damages.extend(group.damages)
            yield group


def _read_groups(
    path: str, data: memoryview, file_header: JournalFileHeader, found: Recovered, checkpoint: int, *, is_last: bool
) -> Iterator[RecoveredGroup]:
    salt = file_header.salt & 0xFFFFFFFF
    position = FIRST_GROUP_POSITION
    while True:
        found.resume_position = position
        header = decode_group_header(data, position, salt)
        later = None if header is not None else _find_group(data, position, salt, found.next_lsn)
        if header is None and later is None:
            # The end of what was written here; a file that is not the last one may well end before its size.
            return
        start = position + GROUP_HEADER_SIZE
        end = start + header.size_bytes if header is not None else later[0] if later is not None else start
        if end > len(data):
            raise CorruptionError(path, position, f"group of {end - start} bytes reaches beyond the file's end")
        if header is not None and header.first_lsn != found.next_lsn:
            raise CorruptionError(path, position, f"expected lsn {found.next_lsn}, found {header.first_lsn}")
        if header is not None and header.next_lsn <= checkpoint + 1:
            # The views hold all of it safely: a start does not read it, 'journal check' does.
            found.next_lsn = header.next_lsn
            position = end
            yield RecoveredGroup([], [], header.next_lsn)
            continue
        entries: list[Entry] = []
        damages: list[Damage] = []
        bad_header: BadEntryHeader | None = None
        for entry in decode_entries(data, start, end):
            if isinstance(entry, BadEntryHeader):
                bad_header = entry
            elif entry.kind not in _KINDS:
                # Its header is whole, so this is no damage, and nothing of it may be cut off or skipped.
                raise FormatVersionError(
                    f"{path} at byte {entry.position}: entry kind {entry.kind} was written by a newer program; "
                    f"start that version of the server"
                )
            elif problem := check_payload(entry):
                damages.append(Damage(path, entry.position, entry.shard_id, entry.lsn, problem))
            else:
                entries.append(entry)
        if header is not None and (bad_header is not None or damages):
            later = _find_group(data, end, salt, header.next_lsn)
        clean = bad_header is None and not damages
        verdict = judge(
            group_header_ok=header is not None,
            entry_headers_ok=bad_header is None,
            payloads_ok=not damages,
            is_tail=is_last and later is None and not clean,
        )
        if verdict is Verdict.REFUSE:
            where = bad_header.position if bad_header is not None else position
            expected, got = (bad_header.expected, bad_header.found) if bad_header is not None else (0, 0)
            raise CorruptionError(
                path,
                where,
                f"entry header checksum: expected {expected:#010x}, found {got:#010x}, in acknowledged data; whose "
                f"entry it was cannot be told. Restore the file from a copy; 'journal check' shows what else is hit",
            )
        if verdict is Verdict.TRUNCATE:
            found.truncated_bytes = end - position
            return
        _refuse_damage_of_no_shard(damages)
        next_lsn = (
            header.next_lsn if header is not None else later[1].first_lsn if later is not None else found.next_lsn
        )
        found.next_lsn = next_lsn
        yield RecoveredGroup(entries, damages, next_lsn)
        position = end


def _refuse_damage_of_no_shard(damages: list[Damage]) -> None:
    for damage in damages:
        if damage.shard_id == 0:
            problem = f"{damage.problem}, in an entry that belongs to no single shard"
            raise CorruptionError(damage.path, damage.position, problem)


def _find_group(data: memoryview, start: int, salt: int, least_lsn: int) -> tuple[int, GroupHeader] | None:
    """The first group header of this life of the file at or after a position, by its magic."""
    raw = data.obj
    assert isinstance(raw, bytes | bytearray)  # it was read from a file
    at = raw.find(GROUP_MAGIC, start)
    while at >= 0:
        header = decode_group_header(data, at, salt)
        if header is not None and header.first_lsn >= least_lsn:
            return at, header
        at = raw.find(GROUP_MAGIC, at + 1)
    return None
