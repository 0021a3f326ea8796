"""The power goes off at each step of a commit, or the disk refuses: the commit is there, or the next call makes it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from shards.delta.actions import TableRequest, TableVersion, table_path
from shards.delta.log_files import LOG, CommitConflictError, put_commit
from shards.delta.log_library import TableState
from shards.delta.table import update_table
from shards.errors import ConversionFailedError
from tests.shards.delta.tables import Key, Shelf, logs_of
from tests.simulation.delta_log import JsonLog
from tests.simulation.file_system import CrashNow, SimulatedFileSystem, everything_lost, everything_survived

BASE = "/data"


def shelf_with_files() -> tuple[Shelf, list[Key], list[Key]]:
    shelf = Shelf(SimulatedFileSystem(), BASE)
    shelf.files.sync_directory("/")
    return shelf, shelf.put(1, logs_of("a")), shelf.put(2, logs_of("b"))


def update(files: SimulatedFileSystem, wanted: list[Key], lsn: int = 7) -> TableVersion:
    return update_table(files, TableRequest(f"{BASE}/sealed", lsn, tuple(wanted)), JsonLog(files), 1)


def state(files: SimulatedFileSystem) -> TableState | None:
    """What the log says; None if there is none yet."""
    directory = f"{BASE}/sealed/{LOG}"
    if not files.exists(directory) or not any(name.endswith(".json") for name in files.listdir(directory)):
        return None
    return JsonLog(files).read(f"{BASE}/sealed")


def paths(files: SimulatedFileSystem) -> list[str]:
    found = state(files)
    return sorted(found.files) if found is not None else []


def prepared(*, damaged: bool) -> tuple[SimulatedFileSystem, list[Key], list[str]]:
    """A file system whose table has one file and is to have another, or is damaged."""
    shelf, first, second = shelf_with_files()
    files = shelf.files
    assert isinstance(files, SimulatedFileSystem)
    update(files, first)
    if damaged:
        file = files.open(f"{shelf.root}/{LOG}/{0:020}.json")
        file.pwritev([b"\0"], 0)
        file.fsync()
    return files, second, [] if damaged else [table_path(*first[0])]


def operations_of(*, damaged: bool) -> int:
    files, second, _ = prepared(damaged=damaged)
    before = len(files.operations)
    update(files, second)
    return len(files.operations) - before


@pytest.mark.parametrize("choose", [everything_lost, everything_survived])
@pytest.mark.parametrize("damaged", [False, True], ids=["a commit", "a table anew"])
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one(damaged: bool, choose: Callable[[int], int]) -> None:
    for step in range(operations_of(damaged=damaged)):
        files, second, old = prepared(damaged=damaged)
        files.crash_at(len(files.operations) + step + 1)
        with pytest.raises(CrashNow):
            update(files, second)
        files = files.crash(choose)
        new = [table_path(*second[0])]
        if not damaged:
            assert paths(files) in (old, new)
        made = update(files, second)
        assert paths(files) == new
        assert made.version <= 1
        assert update(files, second) == TableVersion(made.version, committed_ms=made.committed_ms)
        leftovers = [name for name in files.listdir(f"{BASE}/sealed/{LOG}") if not name.endswith(".json")]
        assert leftovers == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("reached_disk", [False, True])
def test_a_refused_step_is_an_error_and_the_next_call_ends_the_work(number: int, reached_disk: bool) -> None:
    for step in range(operations_of(damaged=False)):
        files, second, old = prepared(damaged=False)
        files.fail_at(len(files.operations) + step + 1, number, reached_disk=reached_disk)
        with pytest.raises(OSError, match=rf"\[Errno {number}\]"):
            update(files, second)
        assert paths(files) in (old, [table_path(*second[0])])
        update(files, second)
        assert paths(files) == [table_path(*second[0])]
        assert state(files).version == 1  # type: ignore[union-attr]


def test_a_commit_that_was_found_is_durable_when_the_call_returns() -> None:
    files, second, _ = prepared(damaged=False)
    files.crash_at(len(files.operations) + operations_of(damaged=False))
    with pytest.raises(CrashNow):
        update(files, second)
    files = files.kill(everything_survived)
    assert paths(files) == [table_path(*second[0])]
    assert update(files, second) == TableVersion(1, committed_ms=1)
    assert paths(files.crash(everything_lost)) == [table_path(*second[0])]


def test_a_version_is_made_once() -> None:
    shelf, first, _ = shelf_with_files()
    update(shelf.files, first)  # type: ignore[arg-type]
    with pytest.raises(CommitConflictError, match="has version 0 already"):
        put_commit(shelf.files, shelf.root, 0, b"other")
    assert paths(shelf.files) == [table_path(*first[0])]  # type: ignore[arg-type]


class Racing(JsonLog):
    """A log to which another program commits after each read, so many times."""

    def __init__(self, files: SimulatedFileSystem, times: int) -> None:
        super().__init__(files)
        self._left = times

    def read(self, root: str) -> TableState:
        found = super().read(root)
        if self._left:
            self._left -= 1
            put_commit(self._files, root, found.version + 1, b'{"commitInfo":{}}\n')
        return found


def test_a_commit_of_another_program_in_between_is_taken_into_account() -> None:
    files, second, _ = prepared(damaged=False)
    request = TableRequest(f"{BASE}/sealed", 7, tuple(second))
    assert update_table(files, request, Racing(files, 2), 1).version == 3
    assert paths(files) == [table_path(*second[0])]
    with pytest.raises(ConversionFailedError, match="only the server may write to this table"):
        update_table(files, TableRequest(f"{BASE}/sealed", 7, ()), Racing(files, 99), 1)
