"""A directory that is held open, also after it was moved."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shards.seams.held_directory import HeldDirectory


def test_its_lasting_path_means_the_directory_that_was_opened(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("a path of a descriptor that is a directory is a feature of Linux")
    path, aside = tmp_path / "held", tmp_path / "aside"
    path.mkdir()
    held = HeldDirectory(str(path))
    assert held.is_in_place
    path.rename(aside)
    assert not held.is_in_place
    path.mkdir()
    assert not held.is_in_place
    Path(held.lasting_path, "file").touch()
    assert (os.listdir(aside), os.listdir(path)) == (["file"], [])
    assert held.with_path(f"{held.lasting_path}/file is there") == f"{path}/file is there"
    path.rmdir()
    aside.rename(path)
    assert held.is_in_place


def test_it_has_one_holder(tmp_path: Path) -> None:
    held = HeldDirectory(str(tmp_path))
    with pytest.raises(BlockingIOError):
        HeldDirectory(str(tmp_path))
    held.release()
    later = HeldDirectory(str(tmp_path))
    del held
    with pytest.raises(BlockingIOError):
        HeldDirectory(str(tmp_path))
    del later
    HeldDirectory(str(tmp_path))


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(OSError, match=name):
            HeldDirectory(str(tmp_path / name))
