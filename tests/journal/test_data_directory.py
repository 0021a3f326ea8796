"""A data directory that cannot be used is refused with the directory concerned, the cause and the way out."""

from __future__ import annotations

import errno
import os
import re

import pytest

from journal.engine.directory.data_directory import open_directory
from shards.errors import CorruptionError, DataDirectoryError
from tests.simulation.file_system import SimulatedFileSystem

DATA = "/data"


class RefusingFiles(SimulatedFileSystem):
    """Refuses one kind of call below a path."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: tuple[str, str, int] = ("", "", 0)

    def _refuse(self, act: str, path: str) -> None:
        refused_act, below, number = self.refused
        if act == refused_act and path.startswith(below):
            raise OSError(number, os.strerror(number), path)

    def listdir(self, path: str) -> list[str]:
        self._refuse("listdir", path)
        return super().listdir(path)

    def mkdir(self, path: str) -> None:
        self._refuse("mkdir", path)
        super().mkdir(path)

    def sync_directory(self, path: str) -> None:
        self._refuse("sync_directory", path)
        super().sync_directory(path)


def refusal(files: SimulatedFileSystem) -> str:
    with pytest.raises(DataDirectoryError) as caught:
        open_directory(files, DATA)
    return str(caught.value)


def test_a_mount_that_cannot_be_listed_is_named() -> None:
    """Only the data directory was named, with "check its permissions": not the mount below it that refuses."""
    files = RefusingFiles()
    files.mkdir(f"{DATA}/journal")
    files.refused = ("listdir", f"{DATA}/journal", errno.EACCES)
    assert refusal(files) == (
        "data directory /data cannot be made: /data/journal cannot be listed: Permission denied; give the user of this "
        "process permission to read and write it, or choose an empty directory"
    )
    files.refused = ("listdir", f"{DATA}/journal", errno.EIO)
    assert "/data/journal cannot be listed: Input/output error; its disk or file system has failed" in refusal(files)


def test_a_file_in_the_place_of_a_directory_is_named() -> None:
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    files.open(f"{DATA}/log", create=True).close()
    assert refusal(files) == (
        "/data is not a data directory: it has no FORMAT file, and /data/log is a file; choose an empty directory"
    )


def test_a_data_directory_without_its_format_file_is_not_taken_for_something_else() -> None:
    """ "choose an empty directory" was the advice for a node whose FORMAT file, or whose own mount, was missing."""
    files = SimulatedFileSystem()
    open_directory(files, DATA).close()
    files.remove(f"{DATA}/FORMAT")
    said = refusal(files)
    assert said.startswith(
        "/data is not a complete data directory: /data/journal, /data/log, /data/sealed hold files, but "
    )
    assert "/data/FORMAT is missing. If /data is a file system of its own, mount it" in said
    assert "restore a backup with `journal restore`" in said


@pytest.mark.parametrize(
    ("act", "number", "expected"),
    [
        ("mkdir", errno.ENOSPC, "free space on its file system"),
        ("mkdir", errno.EROFS, "its file system is mounted read-only: mount it for writing"),
        ("sync_directory", errno.EDQUOT, "free space, or raise the disk quota"),
        ("sync_directory", errno.EIO, "its disk or file system has failed"),
    ],
)
def test_each_reason_has_a_way_out_of_its_own(act: str, number: int, expected: str) -> None:
    files = RefusingFiles()
    files.mkdir(DATA)
    files.refused = (act, DATA, number)
    said = refusal(files)
    assert f"{os.strerror(number)}; {expected}" in said
    assert "data directory /data cannot be" in said
    files.refused = ("", "", 0)
    open_directory(files, DATA).close()


@pytest.mark.parametrize(("store_id", "way_out"), [("", "restore a backup"), ("ab" * 16, "delete /data: it is a copy")])
def test_a_part_that_is_gone_is_refused_with_the_way_out(store_id: str, way_out: str) -> None:
    """A copy of the log of a store has no backup: what `journal restore` makes is refused there."""
    files = SimulatedFileSystem()
    directory = open_directory(files, DATA, store_id)
    directory.complete()
    directory.close()
    files.remove(f"{DATA}/journal/.node")
    with pytest.raises(CorruptionError, match=re.escape(way_out)):
        open_directory(files, DATA, store_id)
