"""`journal check` tells what is wrong with the log of the Delta table, as notes: a start makes the table anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from journal.check import check_directory
from journal.check.delta_table import check_delta_table
from journal.check.report import Report
from shards.delta.log_files import LOG
from shards.seams.os_file_system import OsFileSystem
from tests.journal.engines import DATA
from tests.journal.test_gathering import NAMES, fill, gathered, opened, shared_files, until
from tests.journal.test_history_table import ROOT
from tests.shards.delta.tables import Shelf, logs_of
from tests.shards.delta.test_table import update
from tests.simulation.delta_log import JsonLog
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.store import SimulatedStore


async def with_a_table() -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await until(lambda: engine.parts.history.is_current)
    return files


def check(files: SimulatedFileSystem) -> Report:
    return check_directory(
        DATA,
        files=files,
        open_store=lambda path: SimulatedStore(files, path),
        open_delta_library=lambda: JsonLog(files),
    )


def empty_the_commit(files: SimulatedFileSystem) -> None:
    files.open(f"{ROOT}/{LOG}/{0:020}.json").truncate(0)


def put_a_file_in_the_way(files: SimulatedFileSystem) -> None:
    files.rename(f"{ROOT}/{LOG}", f"{ROOT}/elsewhere")
    files.rename(f"{ROOT}/elsewhere/{0:020}.json", f"{ROOT}/{LOG}")
    files.remove_directory(f"{ROOT}/elsewhere")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (empty_the_commit, "the log of the Delta table cannot be read: "),
        (put_a_file_in_the_way, "the log of the Delta table is not a directory: "),
    ],
)
async def test_a_log_that_cannot_be_used_is_a_note(
    spoil: Callable[[SimulatedFileSystem], None], problem: str, autojump_clock: object
) -> None:
    files = await with_a_table()
    report = check(files)
    assert (report.damages, report.notes) == ([], [])
    spoil(files)
    report = check(files)
    assert report.damages == []
    (note,) = report.notes
    assert note.path == f"{ROOT}/{LOG}"
    assert note.problem.startswith(problem)
    assert note.problem.endswith("the next start makes it anew")


async def test_files_that_are_missing_and_that_the_table_names_are_notes(autojump_clock: object) -> None:
    files = await with_a_table()
    (path,) = shared_files(files)
    files.remove(path)
    report = check(files)
    assert [damage.path for damage in report.damages] == [path]
    (note,) = report.notes
    assert note.path == path
    assert "version 0 of the Delta table names it" in note.problem


def test_the_report_says_that_the_library_is_missing(tmp_path: Path) -> None:
    shelf = Shelf(OsFileSystem(), str(tmp_path))
    report = Report(str(tmp_path))
    check_delta_table(shelf.files, shelf.root, report, None)
    assert report.notes == []
    update(shelf, shelf.put(1, logs_of("a")))
    check_delta_table(shelf.files, shelf.root, report, None)
    (note,) = report.notes
    assert note.problem == "the Delta table was not checked: the library deltalake is not installed"
