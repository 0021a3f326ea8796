"""Which shared files are rewritten: those that are mostly dead, and several of one day and a similar size."""

from __future__ import annotations

import attrs
import pytest

from journal.engine.parquet.gatherer import joined
from journal.engine.parquet.rewriting import LARGEST_MERGED_BYTES, LONGEST_DEAD_S, MERGED_AT_ONCE, due
from journal.engine.wal.entry_payloads import ConvertedPart
from shards.model import Retention
from shards.views.shared_files import SharedFileRecord

MIB = 1 << 20
NOW_US = 1_700_000_000_000_000


def record(file_id: int, size_bytes: int = 1000, **changes: int) -> SharedFileRecord:
    whole = SharedFileRecord(19_675, file_id, size_bytes + 100, 100, file_id, 100, size_bytes, b"")
    return attrs.evolve(whole, **changes)


def chosen(records: list[SharedFileRecord], lsn: int = 1000) -> list[int]:
    return [each.file_id for each in due(records, lsn, set(), NOW_US)]


def test_a_file_of_which_less_than_half_is_alive_is_rewritten_alone() -> None:
    files = [record(1, live_records=50), record(2, live_records=49), record(3, live_records=1)]
    assert chosen(files) == [2]
    assert chosen(files[:1]) == []
    assert due(files, 1000, {(19_675, 2)}, NOW_US) == files[2:]


def test_a_file_is_rewritten_when_it_has_had_few_dead_records_for_long() -> None:
    longest_us = LONGEST_DEAD_S * 1_000_000
    assert chosen([record(1, live_records=99, dead_since_us=NOW_US - longest_us + 1)]) == []
    assert chosen([record(1), record(2, live_records=99, dead_since_us=NOW_US - longest_us)]) == [2]


def test_a_file_without_references_is_removed_and_not_rewritten() -> None:
    assert chosen([record(1, live_records=0)]) == []


def test_small_files_of_one_day_are_merged_when_there_are_enough() -> None:
    files = [record(number) for number in range(1, MERGED_AT_ONCE)]
    assert chosen(files) == []
    assert chosen([*files, record(99, day=19_676)]) == []
    assert chosen([*files, record(99, size_bytes=100 * MIB)]) == []
    assert chosen([*files, record(99)]) == [*range(1, MERGED_AT_ONCE), 99]


def test_files_of_which_references_are_not_recorded_yet_wait() -> None:
    files = [record(number) for number in range(1, MERGED_AT_ONCE + 1)]
    assert chosen(files, lsn=MERGED_AT_ONCE - 1) == []
    assert chosen([record(5, live_records=1)], lsn=4) == []


def test_files_are_not_merged_to_one_that_is_too_large() -> None:
    size = LARGEST_MERGED_BYTES // (MERGED_AT_ONCE - 1)
    assert chosen([record(number, size) for number in range(1, 20)]) == []
    assert len(chosen([record(number, LARGEST_MERGED_BYTES // 10) for number in range(1, 20)])) == 10


@pytest.mark.parametrize("count", [9, 64, 500])
def test_a_record_is_rewritten_about_once_for_each_factor_of_eight(count: int) -> None:
    """Files that come one after the other are merged like the levels of a log-structured merge tree."""
    files: list[SharedFileRecord] = []
    written = number = 0
    for _ in range(count):
        number += 1
        files.append(record(number, 2 * MIB))
        while merged := due(files, number, set(), NOW_US):
            number += 1
            size = sum(each.live_bytes for each in merged)
            written += size
            files = [each for each in files if each not in merged] + [record(number, size)]
    assert written <= 3 * count * 2 * MIB
    assert len(files) <= 3 * MERGED_AT_ONCE + count * 2 * MIB // (LARGEST_MERGED_BYTES // MERGED_AT_ONCE)


def test_adjacent_parts_of_one_shard_become_one() -> None:
    first = ConvertedPart(7, 0, 5, 0, 20, 100, 3, 30, 300, 9)
    second = ConvertedPart(7, 5, 8, 0, 25, 50, 4, 40, 400, 8)
    assert list(joined([first, second], {})) == [ConvertedPart(7, 0, 8, 0, 20, 150, 3, 40, 400, 9)]
    for apart in (
        second._replace(base_offset=6),
        second._replace(file=1),
        second._replace(first_row=26),
        second._replace(shard_id=8),
    ):
        assert list(joined([first, apart], {})) == [first, apart]
    assert list(joined([], {})) == []


def test_parts_of_shards_with_a_retention_stay_small_enough_to_be_dropped_one_by_one() -> None:
    parts = [ConvertedPart(7, 5 * at, 5 * at + 5, 0, 5 * at, 100, 1000 * at, 1000 * at + 900, at, 9) for at in range(6)]
    for retention, most in (
        (Retention(max_records=160), 2),
        (Retention(max_records=159), 1),
        (Retention(max_bytes=16 * 300), 3),
        (Retention(max_age_s=3600), 6),
        (Retention(max_records=100_000, max_bytes=16 * 400), 4),
    ):
        found = list(joined(parts, {7: retention}))
        assert max(part.next_offset - part.base_offset for part in found) == 5 * most
        assert [found[0].base_offset, found[-1].next_offset] == [0, 30]
    aged = [
        part._replace(created_us=part.created_us * 10**6, newest_append_us=part.newest_append_us * 10**6)
        for part in parts
    ]
    assert len(list(joined(aged, {7: Retention(max_age_s=16 * 1900)}))) == 3
