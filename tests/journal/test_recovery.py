"""What recovery makes of every damage: each row of its table by bytes on a file system, torn tails at every byte.

The promise behind it: an acknowledged group is never cut off and never taken for another; only a last write that was
not acknowledged may go.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine.wal.entry import ENTRY_HEADER_SIZE, GROUP_HEADER_SIZE, Kind, encode_entry, encode_group_header
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION
from journal.engine.wal.recovery import Verdict, judge
from shards.errors import CorruptionError, FormatVersionError
from tests.journal.journals import (
    DIRECTORY,
    FILE_BYTES,
    SALT,
    Written,
    append_entry,
    cursor_entry,
    go_on,
    lsns,
    new_journal,
    read_back,
    three_groups,
)
from tests.simulation.file_system import SimulatedFileSystem

LOW_SALT = SALT & 0xFFFFFFFF
ALL = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def flip(journal: Written, position: int, bit: int = 0) -> None:
    content = journal.content()
    content[position] ^= 1 << bit
    journal.replace(bytes(content))


def hit_group_header(journal: Written, group: int) -> None:
    flip(journal, journal.groups[group][0] + 9)


def hit_entry_header(journal: Written, group: int) -> None:
    flip(journal, journal.groups[group][0] + GROUP_HEADER_SIZE + 25)


def hit_payload(journal: Written, group: int) -> None:
    """The last bytes of the group's last entry, an append to shard 3."""
    position, size, _ = journal.groups[group]
    flip(journal, position + GROUP_HEADER_SIZE + size - 20)


def verdict_on(journal: Written, group: int) -> Verdict:
    """What recovery did with a damaged group, by its result."""
    try:
        found, groups = read_back(journal.files)
    except CorruptionError:
        return Verdict.REFUSE
    read = lsns(groups)
    if any(each.damages for each in groups):
        assert [damage.shard_id for damage in found.damages] == [3]
        assert read == [each if number != group else each[:2] for number, each in enumerate(ALL)]
        return Verdict.STOP_SHARDS
    if read == ALL:
        return Verdict.KEEP
    assert read == ALL[:group]
    assert found.next_lsn == ALL[group][0]
    return Verdict.TRUNCATE if found.truncated_bytes else Verdict.END


@pytest.mark.parametrize(
    ("group_ok", "headers_ok", "payloads_ok", "is_tail"), list(itertools.product([True, False], repeat=4))
)
def test_every_row_of_the_table_is_what_recovery_does(
    group_ok: bool, headers_ok: bool, payloads_ok: bool, is_tail: bool
) -> None:
    journal = three_groups()
    group = 2 if is_tail else 1
    if not group_ok:
        hit_group_header(journal, group)
    if not payloads_ok:
        hit_payload(journal, group)
    if not headers_ok:
        hit_entry_header(journal, group)
    expected = judge(group_header_ok=group_ok, entry_headers_ok=headers_ok, payloads_ok=payloads_ok, is_tail=is_tail)
    assert verdict_on(journal, group) is expected


def test_a_clean_journal_is_read_whole_and_twice_the_same() -> None:
    journal = three_groups()
    found, groups = read_back(journal.files)
    assert lsns(groups) == ALL
    assert (found.next_lsn, found.truncated_bytes, found.damages) == (10, 0, [])
    assert lsns(read_back(journal.files)[1]) == ALL


def test_a_last_group_torn_at_any_byte_is_cut_off_whole_and_nothing_before_it() -> None:
    whole = three_groups()
    content = bytes(whole.content())
    position, size, _ = whole.groups[2]
    end = position + GROUP_HEADER_SIZE + size
    for cut in range(position, end):
        torn = content[:cut] + bytes(end - cut) + content[end:]
        whole.replace(torn)
        found, groups = read_back(whole.files)
        if torn == content:
            assert lsns(groups) == ALL  # the bytes that were lost are zero anyway
            continue
        # Padding behind the last entry's payload is checked as a part of its batch.
        assert lsns(groups) == ALL[:2], cut
        assert found.next_lsn == 7
        assert found.truncated_bytes in (0, end - position)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_a_last_group_with_any_sectors_missing_is_cut_off(survived: list[bool]) -> None:
    journal = new_journal()
    journal.write([cursor_entry(1, 1)])
    before = bytes(journal.content())
    journal.write([append_entry(2, 1, 0, b"x" * 1000)])
    after = bytes(journal.content())
    start = journal.groups[1][0] // 512 * 512
    torn = bytearray(before)
    for number, kept in enumerate(survived):
        sector = slice(start + number * 512, start + (number + 1) * 512)
        if kept:
            torn[sector] = after[sector]
    journal.replace(bytes(torn))
    expected = [[1], [2]] if all(survived) else [[1]]
    assert lsns(read_back(journal.files)[1]) == expected


def test_a_whole_entry_of_an_earlier_life_in_a_torn_group_is_not_taken_for_one_of_it() -> None:
    """Defect: half of an unacknowledged COMMIT survived, as an old entry was where a sector was missing."""
    journal = new_journal()
    old = cursor_entry(1, 2)
    journal.write([old])
    entries = [cursor_entry(2, 1), cursor_entry(3, 2)]
    assert len(entries[1]) == len(old)
    journal.write(entries)
    content = journal.content()
    position, size, _ = journal.groups[1]
    end = position + GROUP_HEADER_SIZE + size
    content[end - len(old) : end] = old
    journal.replace(bytes(content))
    found, groups = read_back(journal.files)
    assert lsns(groups) == [[1]]
    assert (found.next_lsn, found.truncated_bytes) == (2, GROUP_HEADER_SIZE + size)
    journal.write([cursor_entry(4, 2)])
    with pytest.raises(CorruptionError, match="entry with lsn 1, expected 3 to 3"):
        read_back(journal.files)


def test_a_damaged_last_group_with_a_mark_behind_it_is_damage_and_not_a_torn_write() -> None:
    """Defect: a flipped bit in the last acknowledged group at rest made it look like a write that was cut off."""
    journal = three_groups()
    journal.writer.write_mark()
    for hit, verdict in ((hit_payload, Verdict.STOP_SHARDS), (hit_entry_header, Verdict.REFUSE)):
        content = bytes(journal.content())
        hit(journal, 2)
        if verdict is Verdict.REFUSE:
            with pytest.raises(CorruptionError, match="in acknowledged data"):
                read_back(journal.files)
        else:
            assert [damage.shard_id for damage in read_back(journal.files)[0].damages] == [3]
        journal.replace(content)
    hit_group_header(journal, 2)
    assert lsns(read_back(journal.files)[1]) == [*ALL, []]


def test_what_is_written_after_a_torn_tail_is_read_back() -> None:
    journal = three_groups()
    hit_payload(journal, 2)
    again = go_on(journal)
    again.write([cursor_entry(7, 1)])
    found, groups = read_back(journal.files)
    assert lsns(groups) == [*ALL[:2], [7]]
    assert (found.next_lsn, found.truncated_bytes) == (8, 0)


def test_a_flipped_bit_anywhere_in_a_middle_group_is_never_passed_over() -> None:
    clean = three_groups()
    content = bytes(clean.content())
    position, size, entries = clean.groups[1]
    header_bytes = set()
    at = position + GROUP_HEADER_SIZE
    for entry in entries:
        header_bytes.update(range(at, at + ENTRY_HEADER_SIZE))
        at += len(entry)
    for hit in range(position, position + GROUP_HEADER_SIZE + size):
        damaged = bytearray(content)
        damaged[hit] ^= 1 << hit % 8
        clean.replace(bytes(damaged))
        if hit in header_bytes:
            with pytest.raises(CorruptionError, match="entry header checksum"):
                read_back(clean.files)
            continue
        found, groups = read_back(clean.files)
        if hit < position + GROUP_HEADER_SIZE:
            # The entries can be followed up to the next group, so nothing is lost.
            assert lsns(groups) == ALL
            continue
        read = lsns(groups)
        assert read[0] == ALL[0]
        assert read[2] == ALL[2]
        if found.damages:
            (damage,) = found.damages
            assert read[1] == [lsn for lsn in ALL[1] if lsn != damage.lsn]
            assert damage.shard_id == {4: 1, 5: 2, 6: 3}[damage.lsn]
            assert found.used[0].keep
        else:
            # Only padding behind a decision's payload belongs to nothing.
            assert read == ALL
            assert not any(entry.payload_crc == 0 for each in groups for entry in each.entries)


def test_a_damaged_decision_of_no_single_shard_refuses_the_directory() -> None:
    journal = new_journal()
    journal.write([encode_entry(Kind.PUT_STATE, 1, 0, b"payload")])
    journal.write([cursor_entry(2, 1)])
    flip(journal, journal.groups[0][0] + GROUP_HEADER_SIZE + ENTRY_HEADER_SIZE + 2)
    with pytest.raises(CorruptionError, match="belongs to no single shard"):
        read_back(journal.files)


def test_damage_at_the_end_of_a_file_that_is_not_the_last_is_no_torn_tail() -> None:
    journal = new_journal()
    while len(journal.used) < 2:
        journal.write([cursor_entry(journal.next_lsn, 2, "n" * 200)])
    position, _size, _ = journal.groups[-2]
    first_file = journal.used[0].path
    file = journal.files.open(first_file)
    at = position + GROUP_HEADER_SIZE + 60
    file.pwritev([bytes((file.pread(1, at)[0] ^ 1,))], at)
    found, groups = read_back(journal.files)
    assert [damage.path for damage in found.damages] == [first_file]
    assert lsns(groups)[-1] == [journal.next_lsn - 1]
    file.pwritev([b"\xff"], position)
    found, _ = read_back(journal.files)
    assert [damage.path for damage in found.damages] == [first_file]
    file.pwritev([bytes(FILE_BYTES - position)], position)
    with pytest.raises(CorruptionError, match="but the file before it ends with"):
        read_back(journal.files)


def test_any_missing_file_is_reported() -> None:
    journal = new_journal()
    while len(journal.used) < 4:
        journal.write([cursor_entry(journal.next_lsn, 2, "n" * 200)])
    paths = [file.path for file in journal.used]
    first_of_second = journal.used[1].header.first_lsn
    journal.files.remove(paths[2])
    with pytest.raises(CorruptionError, match="but the file before it ends with"):
        read_back(journal.files)
    journal.files.remove(paths[0])
    with pytest.raises(CorruptionError, match=f"begins with lsn {first_of_second}, but the views end with 3"):
        read_back(journal.files, checkpoint=3)


def test_a_file_that_lost_its_end_is_reported() -> None:
    journal = three_groups()
    journal.files.open(journal.path).truncate(journal.groups[2][0])
    with pytest.raises(CorruptionError, match="the file ends here, but it was made with 16384 bytes"):
        read_back(journal.files)


def test_an_entry_of_a_newer_program_is_neither_cut_off_nor_skipped() -> None:
    for kinds in ([200], [200, Kind.COMMIT_CURSOR]):
        journal = new_journal()
        for kind in kinds:
            journal.write([encode_entry(kind, journal.next_lsn, 1, b"payload")])  # type: ignore[arg-type]
        with pytest.raises(FormatVersionError, match="entry kind 200 was written by a newer program"):
            read_back(journal.files)


def test_lsns_that_memory_batches_took_are_no_gap() -> None:
    journal = new_journal()
    journal.write([cursor_entry(1, 1), cursor_entry(5, 1)], lsns=20)
    journal.write([cursor_entry(24, 1)], lsns=10)
    found, groups = read_back(journal.files)
    assert lsns(groups) == [[1, 5], [24]]
    assert found.next_lsn == 31


def test_a_group_that_does_not_follow_refuses_the_directory() -> None:
    journal = three_groups()
    content = journal.content()
    position, size, _ = journal.groups[1]
    content[position : position + GROUP_HEADER_SIZE] = encode_group_header(LOW_SALT, size, 5, 7)
    journal.replace(bytes(content))
    with pytest.raises(CorruptionError, match="expected lsn 4, found 5"):
        read_back(journal.files)


def recycled(salts: list[int]) -> Written:
    """A journal file in its second use, which overwrites many groups of the first."""
    journal = new_journal()
    given_salts = iter(salts)
    journal.writer._new_salt = lambda: next(given_salts)
    while len(journal.used) < 2:
        journal.write([cursor_entry(journal.next_lsn, 2, "n" * 200)])
    journal.writer.release_up_to(journal.used[0].last_lsn, 3)
    while len(journal.used) < 2:
        journal.write([cursor_entry(journal.next_lsn, 2, "n" * 200)])
    return journal


@pytest.mark.parametrize("damage", [None, hit_entry_header, hit_payload, hit_group_header])
def test_groups_of_an_earlier_life_are_never_taken_for_later_ones(damage: object) -> None:
    journal = recycled([1, 2, 3])
    last = len(journal.groups) - 1
    assert journal.content()[journal.position :].count(b"JGRP") > 10
    if callable(damage):
        damage(journal, last)
    expected = journal.next_lsn - (1 if damage is None else 2)
    _, groups = read_back(journal.files, checkpoint=expected - 1)
    assert [each for each in lsns(groups) if each][-1:] == [[expected]]


def test_a_payload_that_holds_journal_bytes_is_never_taken_for_a_group() -> None:
    """A user stores a copy of this journal in the journal, with its salt, and then a header is damaged."""
    journal = three_groups()
    copy = bytes(journal.content())[FIRST_GROUP_POSITION : journal.position]
    assert copy.count(b"JGRP") == 3
    journal.write([append_entry(10, 4, 0, copy)])
    journal.write([cursor_entry(11, 1)])
    assert lsns(read_back(journal.files)[1]) == [*ALL, [10], [11]]
    hit_group_header(journal, 3)
    assert lsns(read_back(journal.files)[1]) == [*ALL, [10], [11]]
    position, size, _ = journal.groups[3]
    flip(journal, position + GROUP_HEADER_SIZE + size - 9)
    found, groups = read_back(journal.files)
    assert lsns(groups) == [*ALL, [], [11]]
    assert [damage.shard_id for damage in found.damages] == [4]


def test_a_torn_tail_that_holds_journal_bytes_is_cut_off_all_the_same() -> None:
    journal = three_groups()
    copy = bytes(journal.content())[FIRST_GROUP_POSITION : journal.position]
    journal.write([append_entry(10, 4, 0, copy)])
    position, size, _ = journal.groups[3]
    for damage in (position + 9, position + GROUP_HEADER_SIZE + 5, position + GROUP_HEADER_SIZE + size - 9):
        flip(journal, damage)
        _, groups = read_back(journal.files)
        assert lsns(groups) == ALL
        flip(journal, damage)


def test_an_empty_directory_is_an_empty_journal() -> None:
    files = SimulatedFileSystem()
    files.mkdir(DIRECTORY)
    found, groups = read_back(files)
    assert (groups, found.used, found.next_lsn) == ([], [], 1)
