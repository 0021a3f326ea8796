"""A file counts as synced only if the next start finds it: under its name, in the directory that was there before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.engine.segments.unsynced_files import UnsyncedFiles
from shards.errors import StorageFailedError
from shards.seams.os_file_system import OsFileSystem


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log/00").mkdir(parents=True)
    return tmp_path / "log"


@pytest.fixture
def unsynced(log: Path) -> Iterator[UnsyncedFiles]:
    unsynced = UnsyncedFiles(OsFileSystem(), str(log))
    yield unsynced
    unsynced.close()


def write(unsynced: UnsyncedFiles, path: Path) -> None:
    unsynced.make_directory(str(path.parent))
    unsynced.open(str(path)).pwritev([b"content"], 0)


@pytest.mark.parametrize("name", ["00", "01"])
def test_files_in_their_places_are_synced(log: Path, unsynced: UnsyncedFiles, name: str) -> None:
    for number in range(40):
        write(unsynced, log / name / f"{number}.log")
    unsynced.limit()
    unsynced.sync()
    write(unsynced, log / name / "0.log")
    unsynced.create(str(log / name / "0.log"))
    unsynced.sync()


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_moved_or_replaced_is_not_synced(
    log: Path, unsynced: UnsyncedFiles, *, is_closed: bool, is_replaced: bool
) -> None:
    path = log / "00/a.log"
    write(unsynced, path)
    if is_closed:
        for number in range(40):
            write(unsynced, log / f"00/{number}.log")
        unsynced.limit()
    path.rename(log / "aside")
    if is_replaced:
        shutil.copyfile(log / "aside", path)
        # What is written to it from now on does not make it the file that was written before.
        unsynced.open_written(str(path), 7)
    found = "another file" if is_replaced else "nothing"
    with pytest.raises(StorageFailedError, match=f"{path} is not the file that was written: {found} is there"):
        unsynced.sync()
    (log / "aside").rename(path)
    unsynced.sync()


def test_a_file_that_is_to_be_removed_may_be_gone(log: Path, unsynced: UnsyncedFiles) -> None:
    path = log / "00/a.log"
    write(unsynced, path)
    unsynced.forget(str(path))
    path.unlink()
    unsynced.sync()


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("name", ["00", "01"])
def test_a_directory_that_was_moved_or_replaced_gets_no_file(
    log: Path, unsynced: UnsyncedFiles, name: str, *, is_replaced: bool
) -> None:
    directory = log / name
    write(unsynced, directory / "a.log")
    directory.rename(log / "aside")
    if is_replaced:
        directory.mkdir()
    found = "another directory" if is_replaced else "nothing"
    with pytest.raises(StorageFailedError, match=f"{directory} is not the directory that was opened: {found} is there"):
        write(unsynced, directory / "b.log")
    with pytest.raises(StorageFailedError, match=f"{directory} is not the directory that was opened"):
        unsynced.sync()


def test_a_file_that_was_made_in_a_directory_which_was_replaced_for_a_moment_is_missed(
    log: Path, unsynced: UnsyncedFiles
) -> None:
    directory, aside = log / "00", log / "aside"
    unsynced.make_directory(str(directory))
    directory.rename(aside)
    directory.mkdir()
    unsynced.open(str(directory / "a.log")).pwritev([b"content"], 0)
    directory.rename(log / "replacement")
    aside.rename(directory)
    with pytest.raises(
        StorageFailedError, match=f"{directory}/a.log is not the file that was written: nothing is there"
    ):
        unsynced.sync()
