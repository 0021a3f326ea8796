"""Journals made by the writer itself, for the tests of those who read them back."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from journal.engine.wal.entry import CHECKED_PART, NODE_EPOCH, NODE_GROUP, Kind, encode_entry
from journal.engine.wal.entry_payloads import CursorCommitted, encode_payload
from journal.engine.wal.journal_file import UsedFile
from journal.engine.wal.journal_writer import JournalWriter
from journal.engine.wal.recovery import Expected, Recovered, RecoveredGroup, read_journal
from shards.format.batch import BatchHeader, encode_values
from shards.format.checksum import crc32c
from shards.seams.file_system import make_durable_directory
from tests.shards.batches import NOW_US, stamped
from tests.simulation.file_system import SimulatedFileSystem

DIRECTORY = "/journal"
FILE_BYTES = 16 * 1024
SALT = 0x1234_5678_9ABC_DEF0


def append_entry(lsn: int, shard_id: int, base_offset: int, value: bytes) -> bytes:
    """An entry as the append path makes it: the batch's checksum is that of the entry."""
    batch = stamped(encode_values([value], timestamp_us=NOW_US), base_offset, lsn)
    body_crc = BatchHeader.unpack(batch).body_crc
    size = 40 + len(batch)
    checked = CHECKED_PART.pack(body_crc, NODE_GROUP, Kind.APPEND, 0, NODE_EPOCH, 0, lsn, shard_id)
    return size.to_bytes(4, "little") + crc32c(checked, size).to_bytes(4, "little") + checked + batch


def cursor_entry(lsn: int, shard_id: int, name: str = "reader") -> bytes:
    return encode_entry(Kind.COMMIT_CURSOR, lsn, shard_id, encode_payload(CursorCommitted(name, lsn)))


@attrs.define
class Written:
    """A journal with what was put in: the position, the size and the entries of each group."""

    files: SimulatedFileSystem
    writer: JournalWriter
    used: list[UsedFile]
    next_lsn: int = 1
    position: int = 4096
    groups: list[tuple[int, int, list[bytes]]] = attrs.Factory(list)

    def write(self, entries: Sequence[bytes], lsns: int | None = None) -> None:
        """Write a group of entries that take ``lsns`` lsns (or one each)."""
        files_before = len(self.used)
        size = sum(map(len, entries))
        next_lsn = self.next_lsn + (len(entries) if lsns is None else lsns)
        self.writer.write_group(list(entries), size, self.next_lsn, next_lsn)
        if len(self.used) > files_before:
            self.position = 4096
        self.groups.append((self.position, size, list(entries)))
        self.position += 40 + size
        self.next_lsn = next_lsn

    @property
    def path(self) -> str:
        return self.used[-1].path

    def content(self) -> bytearray:
        file = self.files.open(self.path)
        return bytearray(file.pread(file.size(), 0))

    def replace(self, content: bytes) -> None:
        self.files.open(self.path).pwritev([content], 0)


def new_journal(*, file_bytes: int = FILE_BYTES, salt: int = SALT) -> Written:
    files = SimulatedFileSystem()
    make_durable_directory(files, DIRECTORY)
    used: list[UsedFile] = []
    writer = JournalWriter(files, DIRECTORY, file_bytes, lambda: salt, used)
    writer.begin(1)
    return Written(files, writer, used)


def three_groups() -> Written:
    """Groups with lsns 1..3, 4..6, 7..9: each an append to shard 1, a cursor of shard 2, an append to shard 3."""
    journal = new_journal()
    for number in range(3):
        lsn = journal.next_lsn
        value = b"payload-%d" % number
        journal.write(
            [append_entry(lsn, 1, number, value), cursor_entry(lsn + 1, 2), append_entry(lsn + 2, 3, number, value * 3)]
        )
    return journal


def read_back(files: SimulatedFileSystem, checkpoint: int = 0) -> tuple[Recovered, list[RecoveredGroup]]:
    found = Recovered()
    return found, list(read_journal(files, DIRECTORY, found, Expected(checkpoint)))


def go_on(journal: Written, *, file_bytes: int = FILE_BYTES, salt: int = 9) -> Written:
    """What a start does: read the journal back, and go on in a new file with a copy of what is not proven durable."""
    found, groups = read_back(journal.files)
    writer = JournalWriter(journal.files, DIRECTORY, file_bytes, lambda: salt, found.used)
    unproven = next((group for group in groups if group.unproven is not None), None)
    if unproven is None or unproven.unproven is None:
        writer.begin(found.next_lsn)
        position = 4096
    else:
        writer.begin(unproven.first_lsn, unproven.unproven, unproven.next_lsn)
        position = 4096 + 40 + len(unproven.unproven)
    return Written(journal.files, writer, found.used, found.next_lsn, position)


def lsns(groups: list[RecoveredGroup]) -> list[list[int]]:
    return [[entry.lsn for entry in group.entries] for group in groups]
