"""A directory that is held open, also after it was moved."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shards.seams.held_directory import HeldDirectory, OwnedDirectory


def test_its_lasting_path_means_the_directory_that_was_opened(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("a path of a descriptor that is a directory is a feature of Linux")
    path, aside = tmp_path / "held", tmp_path / "aside"
    path.mkdir()
    held = HeldDirectory(str(path))
    assert not held.found_instead
    path.rename(aside)
    assert held.found_instead
    path.mkdir()
    assert held.found_instead
    Path(held.lasting_path, "file").touch()
    assert (os.listdir(aside), os.listdir(path)) == (["file"], [])
    assert held.with_path(f"{held.lasting_path}/file is there") == f"{path}/file is there"
    path.rmdir()
    aside.rename(path)
    assert not held.found_instead


def test_what_is_in_its_place_is_described(tmp_path: Path) -> None:
    path, aside, other = tmp_path / "held", tmp_path / "aside", tmp_path / "other"
    path.mkdir()
    held = HeldDirectory(str(path))
    path.rename(aside)
    assert held.found_instead == "nothing is there"
    path.mkdir()
    assert held.found_instead == "an empty directory is there"
    (path / "file").touch()
    assert held.found_instead == "another directory is there"
    path.rename(other)
    path.touch()
    assert held.found_instead == "something is there that is not a directory"
    path.unlink()
    path.symlink_to(aside)
    assert held.found_instead == ""
    path.unlink()
    path.symlink_to("/proc")
    assert held.found_instead == "another directory of another file system is there"


def test_it_has_one_owner(tmp_path: Path) -> None:
    owned = OwnedDirectory(str(tmp_path))
    with pytest.raises(BlockingIOError):
        OwnedDirectory(str(tmp_path))
    HeldDirectory(str(tmp_path))
    owned.release()
    later = OwnedDirectory(str(tmp_path))
    del owned
    with pytest.raises(BlockingIOError):
        OwnedDirectory(str(tmp_path))
    later.close()
    OwnedDirectory(str(tmp_path))


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(OSError, match=name):
            HeldDirectory(str(tmp_path / name))
