"""What every `FileSystem` does, whatever it is made of. What a crash leaves is judged where crashes can be made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shards.errors import DataDirectoryError
from shards.seams.file_system import FileSystem
from shards.seams.held_files import HeldFiles
from shards.seams.memory_file_system import MemoryFileSystem
from shards.seams.os_file_system import OsFileSystem
from tests.simulation.file_system import SimulatedFileSystem


@pytest.fixture(params=["os", "held", "memory", "simulated"])
def file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    if request.param != "held":
        yield {"os": OsFileSystem, "memory": MemoryFileSystem, "simulated": SimulatedFileSystem}[request.param]()
        return
    held = HeldFiles(OsFileSystem(), str(tmp_path), ())
    yield held
    held.close()


@pytest.fixture
def root(file_system: FileSystem, tmp_path: Path) -> str:
    file_system.mkdir(str(tmp_path))
    return str(tmp_path)


def test_what_was_written_is_read_back(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"hello", memoryview(b" "), bytearray(b"world")], 0)
    file.pwritev([b"J"], 0)
    assert file.size() == 11
    assert file.pread(5, 0) == b"Jello"
    assert file.pread(100, 6) == b"world"
    assert file.pread(100, 11) == b""
    assert file.pread(100, 50) == b""
    file.close()
    file.close()


def test_writing_past_the_end_fills_the_hole_with_zeros(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"x"], 3)
    assert file.pread(10, 0) == b"\0\0\0x"
    file.close()


def test_reading_into_a_buffer_gives_the_count(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"0123456789"], 0)
    buffer = bytearray(6)
    assert file.readinto(memoryview(buffer), 2) == 6
    assert buffer == b"234567"
    assert file.readinto(memoryview(buffer), 8) == 2
    assert buffer == b"894567"
    assert file.readinto(memoryview(buffer), 10) == 0
    file.close()


def test_truncating_cuts_and_lengthens_with_zeros(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"abcdef"], 0)
    file.truncate(3)
    assert file.pread(10, 0) == b"abc"
    file.truncate(5)
    assert file.pread(10, 0) == b"abc\0\0"
    file.close()


def test_more_buffers_than_one_system_call_takes(file_system: FileSystem, root: str) -> None:
    buffers = [b"%d," % number for number in range(3_000)]
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev(buffers, 7)
    assert file.pread(1 << 20, 7) == b"".join(buffers)
    file.pwritev([], 0)
    file.pwritev([b""] * 2_000, 0)
    file.pwritev([b""] * 1_024 + [b"x"] + [b""] * 2_000, 7)
    assert file.pread(2, 7) == b"x,"
    file.close()


def test_two_handles_see_the_same_file(file_system: FileSystem, root: str) -> None:
    first = file_system.open(f"{root}/a", create=True)
    second = file_system.open(f"{root}/a", write=False)
    first.pwritev([b"abc"], 0)
    assert second.pread(3, 0) == b"abc"
    first.close()
    assert second.pread(3, 0) == b"abc"
    second.close()


def test_opening_with_create_keeps_what_is_there(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"abc"], 0)
    file.close()
    file = file_system.open(f"{root}/a", create=True)
    assert file.pread(3, 0) == b"abc"
    file.close()


def test_a_file_opened_for_reading_cannot_be_written(file_system: FileSystem, root: str) -> None:
    file_system.open(f"{root}/a", create=True).close()
    file = file_system.open(f"{root}/a", write=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([b"x"], 0)
    file.close()


def test_a_file_or_directory_that_is_not_there(file_system: FileSystem, root: str) -> None:
    for act in (
        file_system.open,
        file_system.remove,
        file_system.listdir,
        file_system.remove_directory,
        file_system.sync_directory,
        lambda path: file_system.rename(path, f"{root}/b"),
        lambda path: file_system.open(f"{path}/below", create=True),
    ):
        with pytest.raises(FileNotFoundError):
            act(f"{root}/missing")
    assert not file_system.exists(f"{root}/missing")


def test_directories(file_system: FileSystem, root: str) -> None:
    file_system.mkdir(f"{root}/x/y")
    file_system.mkdir(f"{root}/x/y")
    file_system.open(f"{root}/x/b", create=True).close()
    file_system.open(f"{root}/x/a", create=True).close()
    assert file_system.listdir(f"{root}/x") == ["a", "b", "y"]
    assert file_system.exists(f"{root}/x/y")
    file_system.remove_directory(f"{root}/x/y")
    file_system.remove(f"{root}/x/a")
    assert file_system.listdir(f"{root}/x") == ["b"]
    with pytest.raises(OSError, match="not empty"):
        file_system.remove_directory(f"{root}/x")


def test_renaming_replaces_the_target(file_system: FileSystem, root: str) -> None:
    for name in ("a", "b"):
        file = file_system.open(f"{root}/{name}", create=True)
        file.pwritev([name.encode()], 0)
        file.close()
    file_system.rename(f"{root}/a", f"{root}/b")
    assert file_system.listdir(root) == ["b"]
    file = file_system.open(f"{root}/b")
    assert file.pread(10, 0) == b"a"
    file.close()


def test_an_open_file_outlives_its_name(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"abc"], 0)
    file_system.remove(f"{root}/a")
    assert file.pread(3, 0) == b"abc"
    file.close()


def test_syncing(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"abc"], 0)
    file.fdatasync()
    file.fsync()
    file_system.sync_directory(root)
    file_system.sync_all(root)
    file_system.sync_all(f"{root}/a")
    file.close()
    assert file_system.free_bytes(root) > 0


def test_a_locked_directory_is_refused_with_the_holder_and_the_way_out(file_system: FileSystem, root: str) -> None:
    lock = file_system.lock(root)
    with pytest.raises(DataDirectoryError, match=f"{root} is in use by the process with pid {os.getpid()}.*; stop"):
        file_system.lock(root)
    lock.release()
    lock.release()
    file_system.lock(root).release()


def test_locking_a_directory_that_is_not_there(file_system: FileSystem, root: str) -> None:
    with pytest.raises(DataDirectoryError, match=f"{root}/missing cannot be used: .*; create"):
        file_system.lock(f"{root}/missing")


writes = st.lists(
    st.tuples(st.integers(0, 3_000), st.lists(st.binary(max_size=700), max_size=4))
    | st.tuples(st.just("truncate"), st.integers(0, 3_000)),
    max_size=12,
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=writes)
def test_a_file_behaves_like_an_array_of_bytes(
    file_system: FileSystem, root: str, steps: list[tuple[object, object]]
) -> None:
    model = bytearray()
    file = file_system.open(f"{root}/a", create=True)
    file.truncate(0)
    for what, argument in steps:
        if what == "truncate":
            assert isinstance(argument, int)
            del model[argument:]
            model.extend(bytes(argument - len(model)))
            file.truncate(argument)
        else:
            assert isinstance(what, int)
            assert isinstance(argument, list)
            data = b"".join(argument)
            if data:
                model.extend(bytes(max(0, what - len(model))))
                model[what : what + len(data)] = data
            file.pwritev(argument, what)
    assert file.size() == len(model)
    assert file.pread(10_000, 0) == model
    file.close()


def test_a_link_is_the_same_file_under_two_names(file_system: FileSystem, root: str) -> None:
    file = file_system.open(f"{root}/a", create=True)
    file.pwritev([b"before"], 0)
    file_system.link(f"{root}/a", f"{root}/b")
    file.pwritev([b", and after"], 6)
    file.close()
    file_system.remove(f"{root}/a")
    linked = file_system.open(f"{root}/b", write=False)
    assert linked.pread(100, 0) == b"before, and after"
    linked.close()


def test_a_link_replaces_nothing(file_system: FileSystem, root: str) -> None:
    for name in ("a", "b"):
        file_system.open(f"{root}/{name}", create=True).close()
    with pytest.raises(FileExistsError):
        file_system.link(f"{root}/a", f"{root}/b")
    with pytest.raises(FileNotFoundError):
        file_system.link(f"{root}/missing", f"{root}/c")


def test_a_directory_is_renamed_with_all_that_is_in_it(file_system: FileSystem, root: str) -> None:
    file_system.mkdir(f"{root}/x/y")
    file_system.open(f"{root}/x/y/a", create=True).close()
    file_system.rename(f"{root}/x", f"{root}/z")
    assert not file_system.exists(f"{root}/x")
    assert file_system.listdir(f"{root}/z/y") == ["a"]


def test_a_file_in_memory_that_nothing_reads_keeps_its_size_alone() -> None:
    file_system = MemoryFileSystem(unread=(".jnl",))
    file = file_system.open("/1.jnl", create=True)
    file.pwritev([b"abc", b"de"], 10)
    file_system.rename("/1.jnl", "/2.jnl")
    assert (file.size(), file_system.open("/2.jnl").size()) == (15, 15)
    with pytest.raises(OSError, match="No data"):
        file.pread(1, 0)
    file.truncate(3)
    assert file.size() == 3


def test_an_identity_stays_with_a_file_or_directory(file_system: FileSystem, root: str) -> None:
    file_system.mkdir(f"{root}/d")
    file = file_system.open(f"{root}/a", create=True)
    other = file_system.open(f"{root}/b", create=True)
    written, directory = file.identity(), file_system.identity(f"{root}/d")
    assert len({written, other.identity(), directory}) == 3
    assert file_system.identity(f"{root}/a") == written
    assert file_system.identity(f"{root}/missing") is None
    assert file_system.identity(f"{root}/a/below") is None
    file_system.rename(f"{root}/a", f"{root}/d/a")
    assert file_system.identity(f"{root}/a") is None
    assert file_system.identity(f"{root}/d/a") == file.identity() == written
    assert file_system.identity(f"{root}/d") == directory
    file.close()
    other.close()


def test_an_open_directory_is_in_its_place_until_it_is_closed(file_system: FileSystem, root: str) -> None:
    file_system.mkdir(f"{root}/d")
    directory = file_system.open_directory(f"{root}/d")
    file_system.open(f"{root}/d/a", create=True).close()
    assert directory.found_instead == ""
    assert file_system.listdir(directory.lasting_path) == ["a"]
    directory.sync_all()
    directory.close()
    directory.close()
