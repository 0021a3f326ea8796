"""What a commit changes: the difference between wanted files and those of the table, and which of it is new data."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shards.delta.actions import AddedFile, PresentFile, commit, compare, encode, table_path

DAY = 19_675
keys = st.sets(st.tuples(st.integers(DAY, DAY + 2), st.integers(0, 2**64 - 1)), max_size=8)


def present(*file_ids: int) -> list[PresentFile]:
    return [PresentFile(table_path(DAY, file_id), 10) for file_id in file_ids]


def added(file_id: int, *rewritten_from: int) -> AddedFile:
    sources = tuple(table_path(DAY, source) for source in rewritten_from)
    return AddedFile(table_path(DAY, file_id), 10, 1_700_000_000_000, sources, "{}")


def data_changes(actions: list[dict[str, Any]]) -> dict[str, bool]:
    """Of each file of a commit, by the last digit of its id."""
    files = [action.get("add") or action.get("remove") for action in actions]
    return {file["path"][-9]: file["dataChange"] for file in files if file}


def test_a_path_is_a_partition_and_an_id() -> None:
    assert table_path(DAY, 0xAB) == "date=2023-11-14/00000000000000ab.parquet"


@given(keys, keys)
def test_what_is_missing_and_what_is_not_wanted_make_the_wanted_state(
    wanted: set[tuple[int, int]], found: set[tuple[int, int]]
) -> None:
    files = {table_path(*key): PresentFile(table_path(*key), 1) for key in found}
    differences = compare(wanted, files)
    for file in differences.unwanted:
        del files[file.path]
    assert not files.keys() & set(differences.missing)
    assert files.keys() | set(differences.missing) == {table_path(*key) for key in wanted}
    assert bool(differences) is (wanted != found)


def test_new_rows_are_new_data_and_so_is_their_end() -> None:
    assert data_changes(commit([added(1)], present(2), lsn=7, now_ms=1)) == {"1": True, "2": True}


def test_rows_that_are_written_again_are_no_new_data() -> None:
    actions = commit([added(3, 1, 2), added(4)], present(1, 2, 5), lsn=7, now_ms=1)
    assert data_changes(actions) == {"3": False, "4": True, "1": False, "2": False, "5": True}


def test_rows_of_which_some_were_never_in_the_table_are_new_data() -> None:
    """The commit with file 2 was prevented, and then it was merged with file 1: a stream must not miss its rows."""
    assert data_changes(commit([added(3, 1, 2)], present(1), lsn=7, now_ms=1)) == {"3": True, "1": True}


def test_a_commit_has_its_lsn_and_is_a_line_for_each_action() -> None:
    actions = commit([added(1)], present(2), lsn=7, now_ms=5)
    lines = [json.loads(line) for line in encode(actions).splitlines()]
    assert lines == actions
    assert [next(iter(line)) for line in lines] == ["commitInfo", "txn", "remove", "add"]
    assert lines[1]["txn"] == {"appId": "journal", "version": 7, "lastUpdated": 5}
    assert lines[3]["add"]["partitionValues"] == {"date": "2023-11-14"}
