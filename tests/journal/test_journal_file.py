"""Journal files: made once, written in place, recycled, and never written beyond their own end."""

from __future__ import annotations

import errno
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.wal.entry import GROUP_HEADER_SIZE
from journal.engine.wal.journal_file import (
    FIRST_GROUP_POSITION,
    JournalFileHeader,
    UsedFile,
    journal_path,
    list_journal_files,
)
from journal.engine.wal.journal_writer import JournalWriter
from shards.errors import CorruptionError, DiskFullError, FormatVersionError
from shards.format.checksum import crc32c
from tests.journal.journals import DIRECTORY, FILE_BYTES, Written, cursor_entry, go_on, lsns, new_journal, read_back
from tests.simulation.disk import everything_lost
from tests.simulation.faults import Fault, Trigger
from tests.simulation.file_system import SimulatedFile, SimulatedFileSystem

u64 = st.integers(0, 2**64 - 1)
LARGE = 1 << 20
HEADER = JournalFileHeader(3, 2**64 - 1, FILE_BYTES, 77)


def write_single_groups(journal: Written, count: int) -> None:
    for _ in range(count):
        journal.write([cursor_entry(journal.next_lsn, 1, "n" * 200)])


def records(journal: Written, files: SimulatedFileSystem | None = None) -> list[list[int]]:
    """The lsns of the groups that are read back, without marks, and each copied group once."""
    return [each for each in lsns(read_back(files or journal.files)[1]) if each]


def names(files: SimulatedFileSystem) -> list[str]:
    return files.listdir(DIRECTORY)


@given(u64, u64, u64, u64)
def test_a_header_is_read_back_as_it_was_written(number: int, salt: int, size: int, first_lsn: int) -> None:
    header = JournalFileHeader(number, salt, size, first_lsn)
    assert len(header.encode()) == FIRST_GROUP_POSITION
    assert JournalFileHeader.decode("f", header.encode()) == header


def test_every_flipped_bit_of_a_header_is_found() -> None:
    for bit in range(48 * 8):
        damaged = bytearray(HEADER.encode())
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="f at byte 0"):
            JournalFileHeader.decode("f", bytes(damaged))


def test_a_file_of_a_newer_program_is_refused() -> None:
    stored = bytearray(HEADER.encode())
    stored[8] = 3
    stored[4:8] = crc32c(bytes(stored[8:48])).to_bytes(4, "little")
    with pytest.raises(FormatVersionError, match="journal format 3"):
        JournalFileHeader.decode("f", bytes(stored))


def test_a_short_header_is_damage() -> None:
    with pytest.raises(CorruptionError, match="found 47"):
        JournalFileHeader.decode("f", HEADER.encode()[:47])


def test_a_group_is_durable_when_the_write_returns() -> None:
    journal = new_journal()
    write_single_groups(journal, 3)
    after_power_loss = journal.files.crash(lambda fates: 0)
    assert lsns(read_back(after_power_loss)[1]) == [[1], [2], [3]]


def test_groups_go_on_in_the_next_file_and_the_file_keeps_its_size() -> None:
    journal = new_journal()
    write_single_groups(journal, 120)
    assert [number for number, _ in list_journal_files(journal.files, DIRECTORY)] == [1, 2, 3]
    assert {journal.files.open(file.path).size() for file in journal.used} == {FILE_BYTES}
    found, groups = read_back(journal.files)
    assert [each for each in lsns(groups) if each] == [[lsn] for lsn in range(1, 121)]
    assert [file.header.first_lsn for file in found.used] == [1, *(file.last_lsn + 1 for file in found.used[:-1])]
    assert [file.last_lsn for file in found.used] == [file.last_lsn for file in journal.used]


def test_the_largest_group_fits_and_fills_its_file_to_the_last_byte() -> None:
    journal = new_journal()
    size = journal.writer.largest_group_bytes
    assert size == FILE_BYTES - FIRST_GROUP_POSITION - 2 * GROUP_HEADER_SIZE
    rest = len(cursor_entry(1, 1, "")) + 8
    name = "n" * ((size - rest) // 8 * 8)
    while len(cursor_entry(1, 1, name)) > size:
        name = name[:-1]
    entry = cursor_entry(1, 1, name)
    assert len(entry) == size
    journal.write([entry])
    journal.write([cursor_entry(2, 1)])
    assert len(journal.used) == 2
    assert records(journal) == [[1], [2]]


def test_files_before_a_checkpoint_are_recycled_and_spares_beyond_the_wanted_ones_removed() -> None:
    journal = new_journal()
    write_single_groups(journal, 120)
    lsn = journal.used[1].last_lsn
    journal.writer.release_up_to(lsn - 1, 5)
    assert [number for number, _ in list_journal_files(journal.files, DIRECTORY)] == [2, 3]
    journal.writer.release_up_to(lsn, 1)
    assert [name.partition("-")[0] for name in names(journal.files)] == ["free", "journal"]
    journal.writer.release_up_to(journal.next_lsn, 1)
    assert [number for number, _ in list_journal_files(journal.files, DIRECTORY)] == [3]


def test_a_recycled_file_shows_nothing_of_its_earlier_life() -> None:
    salts = iter(range(1, 100))
    journal = new_journal()
    journal.writer._new_salt = lambda: next(salts)
    write_single_groups(journal, 80)
    journal.writer.release_up_to(journal.used[0].last_lsn, 5)
    old_content = journal.files.open(_spare(journal.files))
    assert b"JGRP" in old_content.pread(FILE_BYTES, FIRST_GROUP_POSITION)
    first = journal.next_lsn
    while len(journal.used) < 2:
        write_single_groups(journal, 1)
    found, groups = read_back(journal.files, checkpoint=first)
    assert lsns(groups)[-1] == [journal.next_lsn - 1]
    assert found.next_lsn == journal.next_lsn
    assert found.truncated_bytes == 0


def _spare(files: SimulatedFileSystem) -> str:
    return next(f"{DIRECTORY}/{name}" for name in names(files) if name.startswith("free-"))


def test_a_file_that_holds_damage_is_set_aside_and_not_recycled() -> None:
    journal = new_journal()
    write_single_groups(journal, 60)
    journal.used[0].keep = True
    journal.writer.release_up_to(journal.used[0].last_lsn, 5)
    assert [name for name in names(journal.files) if name.startswith("damaged-")] == ["damaged-0000000000000001.jnl"]
    assert not [name for name in names(journal.files) if name.startswith("free-")]


def test_a_start_continues_in_a_new_file_with_a_copy_of_the_last_group() -> None:
    """A process that is killed before the sync leaves its last group in the page cache alone."""
    journal = new_journal()
    write_single_groups(journal, 5)
    again = go_on(journal)
    write_single_groups(again, 60)
    after_power_loss = journal.files.crash(lambda fates: 0)
    assert records(again, after_power_loss) == [[lsn] for lsn in range(1, 66)]
    assert [file.header.first_lsn for file in again.used][:2] == [1, 5]


def test_a_group_that_was_never_synced_is_durable_after_the_next_start() -> None:
    """Defect: the start trusted the page cache: a record acknowledged as a duplicate was lost with the power."""
    journal = new_journal()
    write_single_groups(journal, 2)
    sync = len(journal.files.operations) + 2
    journal.files.fail_at(sync, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_single_groups(journal, 1)
    # Its pages count as clean: a read shows them, another sync of this file would not write them.
    again = go_on(journal)
    assert again.next_lsn == 4
    write_single_groups(again, 1)
    after_power_loss = journal.files.crash(lambda fates: 0)
    assert records(again, after_power_loss) == [[1], [2], [3], [4]]


def test_a_file_whose_name_was_never_synced_takes_no_group_of_the_next_process() -> None:
    """Defect: after a kill between rename and directory sync, synced groups were lost with the name of their file."""
    rehearsal = new_journal()
    write_single_groups(rehearsal, 80)
    renames = [at for at, name in enumerate(rehearsal.files.operations, 1) if name.startswith("rename")]
    journal = new_journal()
    # The second file's rename is the last thing that the disk is told of.
    journal.files.fail_at(renames[1] + 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_single_groups(journal, 80)
    assert len(list_journal_files(journal.files, DIRECTORY)) == 2
    last = journal.next_lsn
    again = go_on(journal)
    write_single_groups(again, 3)
    after_power_loss = journal.files.crash(lambda fates: 0)
    assert records(again, after_power_loss) == [[lsn] for lsn in range(1, last + 3)]


def test_starts_that_write_nothing_leave_no_more_than_two_files() -> None:
    journal = new_journal()
    write_single_groups(journal, 5)
    for _ in range(10):
        journal = go_on(journal)
    assert len(list_journal_files(journal.files, DIRECTORY)) == 2
    assert records(journal) == [[1], [2], [3], [4], [5]]


@pytest.mark.parametrize("file_bytes", [FILE_BYTES // 2, FILE_BYTES * 2])
def test_a_configuration_with_other_sizes_holds_for_new_files(file_bytes: int) -> None:
    journal = new_journal()
    write_single_groups(journal, 5)
    again = go_on(journal, file_bytes=file_bytes)
    write_single_groups(again, 150)
    assert records(again) == [[lsn] for lsn in range(1, 156)]
    sizes = [journal.files.open(file.path).size() for file in again.used]
    assert sizes == [FILE_BYTES] + [file_bytes] * (len(sizes) - 1)
    assert [file.header.size_bytes for file in again.used] == sizes


def test_a_group_larger_than_the_files_are_now_is_copied_into_a_file_of_its_size() -> None:
    journal = new_journal()
    journal.write([cursor_entry(1, 1, "n" * 10_000)])
    again = go_on(journal, file_bytes=8192)
    write_single_groups(again, 2)
    assert records(again) == [[1], [2], [3]]


def test_a_start_on_a_full_disk_makes_do_with_a_small_file() -> None:
    files = SimulatedFileSystem(capacity_bytes=3 * LARGE)
    files.mkdir(DIRECTORY)
    writer = JournalWriter(files, DIRECTORY, LARGE, lambda: 1, [])
    writer.begin(1)
    journal = Written(files, writer, writer._used)
    write_single_groups(journal, 3)
    files.open(f"{DIRECTORY}/ballast", create=True).pwritev([bytes(2 * LARGE - 700_000)], 0)
    again = go_on(journal, file_bytes=LARGE)
    assert again.used[-1].header.size_bytes < 100_000
    write_single_groups(again, 3)
    assert records(again) == [[lsn] for lsn in range(1, 7)]


def test_spares_of_a_process_that_was_killed_are_removed_as_nothing_proves_them_synced() -> None:
    journal = new_journal()
    half = journal.files.open(f"{DIRECTORY}/free-0000000000000007.jnl", create=True)
    half.pwritev([bytes(FILE_BYTES)], 0)
    writer = JournalWriter(journal.files, DIRECTORY, FILE_BYTES, lambda: 9, [], 6)
    assert not writer.spare_count
    assert not [name for name in names(journal.files) if name.startswith("free")]
    writer.add_spare()
    assert writer.spare_count
    assert journal.files.open(_spare(journal.files)).size() == FILE_BYTES
    assert JournalWriter(journal.files, DIRECTORY, FILE_BYTES, lambda: 9, [], writer.newest_spare).spare_count == 1
    assert not JournalWriter(journal.files, DIRECTORY, 2 * FILE_BYTES, lambda: 9, [], writer.newest_spare).spare_count


def test_a_mark_proves_the_last_group_and_is_written_once() -> None:
    journal = new_journal()
    assert journal.writer.is_marked
    write_single_groups(journal, 2)
    assert not journal.writer.is_marked
    assert read_back(journal.files)[1][-1].unproven is not None
    for _ in range(2):
        journal.writer.write_mark()
        assert journal.writer.is_marked
        groups = read_back(journal.files)[1]
        assert lsns(groups) == [[1], [2], []]
        assert all(group.unproven is None for group in groups)
    journal.position += GROUP_HEADER_SIZE
    write_single_groups(journal, 1)
    assert records(journal) == [[1], [2], [3]]


def test_a_mark_that_finds_no_room_is_the_one_that_leads_to_the_next_file() -> None:
    journal = new_journal()
    while len(journal.used) < 2:
        journal.writer.write_mark()
        write_single_groups(journal, 1)
    journal.writer.write_mark()
    assert records(journal) == [[lsn] for lsn in range(1, journal.next_lsn)]


def test_an_error_of_the_disk_is_the_callers_and_nothing_counts_as_written() -> None:
    journal = new_journal()
    write_single_groups(journal, 2)
    journal.files.fail_at(len(journal.files.operations) + 2, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_single_groups(journal, 1)
    assert journal.used[-1].last_lsn == 2


def test_names_and_numbers_belong_together() -> None:
    assert journal_path("/d", 12) == "/d/journal-0000000000000012.jnl"
    files = SimulatedFileSystem()
    files.mkdir(DIRECTORY)
    for name in (
        "journal-0000000000000010.jnl",
        "journal-0000000000000009.jnl",
        "journal-1.jnl",
        "free-0000000000000001.jnl",
    ):
        files.open(f"{DIRECTORY}/{name}", create=True).close()
    assert [number for number, _ in list_journal_files(files, DIRECTORY)] == [9, 10]
    assert UsedFile("p", HEADER).keep is False


def test_a_mark_that_finds_no_space_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = new_journal()
    write_single_groups(journal, 1)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(SimulatedFile, "pwritev", full)
        with pytest.raises(DiskFullError, match=DIRECTORY):
            journal.writer.write_mark()
    assert not journal.writer.is_marked
    journal.writer.write_mark()
    journal.position += GROUP_HEADER_SIZE
    write_single_groups(journal, 1)
    assert records(journal) == [[1], [2]]


def copy(journal: Written, count: int) -> None:
    """Write groups that are durable elsewhere."""
    for _ in range(count):
        entry = cursor_entry(journal.next_lsn, 1, "n" * 200)
        journal.writer.write_copy([entry], len(entry), journal.next_lsn, journal.next_lsn + 1)
        journal.next_lsn += 1


@given(st.integers(1, 150), st.randoms(use_true_random=False))
def test_a_power_loss_takes_the_last_copy_at_most_and_leaves_no_hole(count: int, fates: random.Random) -> None:
    """Only the last one is not waited for; a hole before a later one would be taken for damage at the next start."""
    journal = new_journal()
    copy(journal, count)
    after = journal.files.crash(fates.randrange)
    assert records(journal, after) in ([[lsn] for lsn in range(1, end)] for end in (count, count + 1))


def test_whatever_follows_copies_waits_until_they_are_durable() -> None:
    for follow in (
        JournalWriter.write_mark,
        lambda writer: writer.write_group([(entry := cursor_entry(4, 1))], len(entry), 4, 5),
        JournalWriter.close,
    ):
        journal = new_journal()
        copy(journal, 3)
        follow(journal.writer)
        assert records(journal, journal.files.crash(everything_lost))[:3] == [[1], [2], [3]]


def test_a_sync_of_a_copy_that_fails_ends_the_journal() -> None:
    """The copy is durable elsewhere, but nobody knows what this directory has of it from now on."""
    journal = new_journal()
    copy(journal, 1)
    journal.writer.write_mark()
    journal.files.inject(Fault(Trigger(1, "^fdatasync"), errno.EIO))
    copy(journal, 1)
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            copy(journal, 1)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        journal.writer.write_mark()
    journal.writer.close()
    assert records(journal, journal.files.crash(everything_lost)) == [[1]]
