"""Files of directories that are held open, also after others are in their places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shards.errors import StorageFailedError
from shards.seams.held_files import HeldFiles
from shards.seams.os_file_system import OsFileSystem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for part in ("log", "journal", "other"):
        (root / part).mkdir(parents=True)
    return root


def held(root: Path) -> HeldFiles:
    return HeldFiles(OsFileSystem(), str(root), ("log", "journal"))


@pytest.mark.parametrize("moved", ["log", ""])
def test_files_are_in_the_directories_that_were_opened_whatever_is_in_their_places(root: Path, moved: str) -> None:
    files = held(root)
    path, aside = root / moved, root.with_name("aside")
    path.rename(aside)
    (root / "log").mkdir(parents=True)
    files.mkdir(f"{root}/log/00")
    files.open(f"{root}/log/00/a.new", create=True).pwritev([b"content"], 0)
    files.rename(f"{root}/log/00/a.new", f"{root}/log/00/a")
    files.link(f"{root}/log/00/a", f"{root}/log/00/b")
    files.remove(f"{root}/log/00/b")
    files.sync_directory(f"{root}/log/00")
    assert os.listdir(root / "log") == []
    assert files.listdir(f"{root}/log/00") == ["a"]
    assert files.exists(f"{root}/log/00/a")
    kept = aside / ("" if moved else "log") / "00/a"
    assert kept.read_bytes() == b"content"
    assert files.identity(f"{root}/log/00/a") == OsFileSystem().identity(str(kept))
    files.close()


def test_what_was_moved_is_named_with_what_is_in_its_place(root: Path) -> None:
    files = held(root)
    files.require_in_place()
    aside = root.with_name("aside")
    (root / "other").rename(aside)
    files.require_in_place()
    aside.rename(root / "other")
    (root / "log").rename(aside)
    with pytest.raises(
        StorageFailedError, match=rf"^{root}/log is not the directory that was opened: nothing is there\."
    ):
        files.require_in_place()
    (root / "log").mkdir()
    with pytest.raises(
        StorageFailedError, match=r"an empty directory is there\. .* put that directory back under its name"
    ):
        files.require_in_place()
    (root / "log").rmdir()
    aside.rename(root / "log")
    files.require_in_place()
    root.rename(aside)
    with pytest.raises(StorageFailedError, match=rf"^{root} is not the directory"):
        files.require_in_place()
    files.close()
    files.close()


def test_errors_name_the_path_and_not_that_of_the_descriptor(root: Path) -> None:
    files = held(root)
    for call, missing in (
        (lambda: files.open(f"{root}/log/a"), f"{root}/log/a"),
        (lambda: files.listdir(f"{root}/journal/b"), f"{root}/journal/b"),
        (lambda: files.rename(f"{root}/c", f"{root}/log/d"), f"{root}/c"),
        (lambda: files.remove("elsewhere"), "elsewhere"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.filename == missing
        assert "/proc" not in str(caught.value)
        assert "None" not in str(caught.value)
    files.close()


def test_paths_elsewhere_are_left_alone(root: Path) -> None:
    files = HeldFiles(OsFileSystem(), f"{root}/", ("log",))
    assert not files.exists(f"{root}-not")
    beside = root.with_name("root-beside")
    beside.mkdir()
    assert files.listdir(str(beside)) == []
    assert files.listdir(str(root)) == files.listdir(f"{root}/") == ["journal", "log", "other"]
    assert files.listdir(f"{root}//log") == []
    files.close()


def test_nothing_stays_open_when_one_is_missing(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="missing"):
        HeldFiles(OsFileSystem(), str(root), ("log", "missing"))
    assert len(os.listdir("/proc/self/fd")) == before
