"""What the simulated file system leaves after a crash. What it does before, the file system contract judges."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.seams.file_system import make_durable_directory
from tests.simulation.file_system import (
    SECTOR_BYTES,
    Choose,
    CrashNow,
    Fault,
    SimulatedFileSystem,
    Trigger,
    everything_lost,
    everything_survived,
    full_disk,
)


def disk_with(path: str, content: bytes) -> SimulatedFileSystem:
    """A file system on which one file is durable."""
    disk = SimulatedFileSystem()
    disk.mkdir("/d")
    disk.open(path, create=True).pwritev([content], 0)
    disk.sync_all("/")
    return disk


def content(disk: SimulatedFileSystem, path: str) -> bytes:
    return disk.open(path, write=False).pread(1 << 20, 0)


def test_an_unsynced_write_is_lost_or_there() -> None:
    for choose, expected in ((everything_lost, b"old"), (everything_survived, b"newer")):
        disk = disk_with("/d/a", b"old")
        disk.open("/d/a").pwritev([b"newer"], 0)
        assert content(disk.crash(choose), "/d/a") == expected


def test_a_synced_write_is_there_whatever_happens() -> None:
    disk = disk_with("/d/a", b"old")
    file = disk.open("/d/a")
    file.pwritev([b"newer"], 0)
    file.fdatasync()
    assert content(disk.crash(everything_lost), "/d/a") == b"newer"


def test_a_write_is_torn_at_sectors_only() -> None:
    size = 4 * SECTOR_BYTES
    seen = set()
    for seed in range(60):
        disk = disk_with("/d/a", b"o" * size)
        disk.open("/d/a").pwritev([b"n" * 1_300], 300)
        found = content(disk.crash(random.Random(seed).randrange), "/d/a")
        pieces = (found[:300], found[300:512], found[512:1024], found[1024:1536], found[1536:1600], found[1600:])
        assert all(len(set(piece)) == 1 for piece in pieces)
        assert found[:300] == b"o" * 300
        assert found[1600:] == b"o" * (size - 1600)
        seen.add(bytes(piece[0] for piece in pieces[1:5]))
    assert {b"oooo", b"nnnn"} < seen


def test_a_file_whose_directory_was_not_synced_may_be_gone() -> None:
    disk = disk_with("/d/a", b"")
    file = disk.open("/d/b", create=True)
    file.pwritev([b"content"], 0)
    file.fsync()
    assert disk.crash(everything_lost).listdir("/d") == ["a"]
    disk = disk_with("/d/a", b"")
    disk.open("/d/b", create=True)
    disk.sync_directory("/d")
    disk.open("/d/b").pwritev([b"content"], 0)
    assert content(disk.crash(everything_lost), "/d/b") == b""


@pytest.mark.parametrize("seed", range(8))
def test_an_unsynced_rename_happened_or_did_not(seed: int) -> None:
    disk = disk_with("/d/a", b"old")
    disk.open("/d/new", create=True).pwritev([b"new"], 0)
    disk.sync_all("/")
    disk.rename("/d/new", "/d/a")
    found = disk.crash(random.Random(seed).randrange)
    if found.listdir("/d") == ["a"]:
        assert content(found, "/d/a") == b"new"
    else:
        assert found.listdir("/d") == ["a", "new"]
        assert (content(found, "/d/a"), content(found, "/d/new")) == (b"old", b"new")


def test_a_synced_rename_or_remove_is_there_whatever_happens() -> None:
    disk = disk_with("/d/a", b"x")
    disk.rename("/d/a", "/d/b")
    disk.sync_directory("/d")
    assert disk.crash(everything_lost).listdir("/d") == ["b"]
    disk = disk_with("/d/a", b"x")
    disk.remove("/d/a")
    assert disk.crash(everything_survived).listdir("/d") == []
    disk = disk_with("/d/a", b"x")
    disk.remove("/d/a")
    assert disk.crash(everything_lost).listdir("/d") == ["a"]


def test_a_directory_whose_parent_was_not_synced_may_be_gone_with_all_in_it() -> None:
    disk = disk_with("/d/a", b"")
    disk.mkdir("/d/e")
    disk.open("/d/e/f", create=True).fsync()
    disk.sync_directory("/d/e")
    assert disk.crash(everything_lost).listdir("/d") == ["a"]


def test_a_directory_made_durably_is_there_whatever_happens() -> None:
    disk = SimulatedFileSystem()
    make_durable_directory(disk, "/a/b/c")
    assert disk.crash(everything_lost).exists("/a/b/c")
    disk = SimulatedFileSystem()
    disk.mkdir("/a")
    make_durable_directory(disk, "/a/b")
    make_durable_directory(disk, "/a/b")
    assert disk.crash(everything_lost).exists("/a/b")


def test_a_move_between_directories_brings_along_what_it_builds_on() -> None:
    disk = disk_with("/d/a", b"x")
    disk.mkdir("/e")
    disk.sync_directory("/")
    disk.open("/e/a", create=True)
    disk.rename("/d/a", "/e/a")
    disk.sync_directory("/d")
    found = disk.crash(everything_lost)
    assert (found.listdir("/d"), found.listdir("/e")) == ([], ["a"])
    assert content(found, "/e/a") == b"x"


def test_a_crash_at_an_operation_stops_everything() -> None:
    disk = disk_with("/d/a", b"old")
    disk.crash_at(len(disk.operations) + 2)
    file = disk.open("/d/a")
    file.pwritev([b"new"], 0)
    with pytest.raises(CrashNow, match="fdatasync /d/a"):
        file.fdatasync()
    with pytest.raises(CrashNow):
        file.pwritev([b"later"], 0)
    with pytest.raises(CrashNow):
        disk.listdir("/d")
    file.close()
    assert content(disk.crash(everything_lost), "/d/a") == b"old"


def test_a_lock_ends_with_a_crash() -> None:
    disk = disk_with("/d/a", b"")
    disk.lock("/d")
    disk.crash(everything_survived).lock("/d").release()


@pytest.mark.parametrize("reached_disk", [False, True])
def test_syncing_again_after_a_failed_sync_proves_nothing(reached_disk: bool) -> None:
    disk = disk_with("/d/a", b"old")
    disk.fail_at(len(disk.operations) + 2, errno.EIO, reached_disk=reached_disk)
    file = disk.open("/d/a")
    file.pwritev([b"new"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    file.fdatasync()
    assert file.pread(3, 0) == b"new"
    assert content(disk.crash(everything_survived), "/d/a") == (b"new" if reached_disk else b"old")


def test_a_failing_write_leaves_a_part() -> None:
    disk = disk_with("/d/a", b"old")
    disk.fail_at(len(disk.operations) + 1, errno.ENOSPC)
    file = disk.open("/d/a")
    with pytest.raises(OSError, match="No space left"):
        file.pwritev([b"newest"], 0)
    assert file.pread(9, 0) == b"new"


def test_a_full_disk_refuses_growth_only() -> None:
    disk = SimulatedFileSystem(capacity_bytes=1_000)
    file = disk.open("/a", create=True)
    file.pwritev([bytes(900)], 0)
    assert disk.free_bytes("/") == 100
    with pytest.raises(OSError, match="No space left"):
        file.pwritev([bytes(300)], 800)
    file.pwritev([bytes(900)], 0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "truncate", "sync", "sync all"]),
        st.integers(0, 2_000),
        st.integers(1, 1_500),
    ),
    max_size=10,
)


@settings(max_examples=100, deadline=None)
@given(steps=steps, seed=st.integers(0, 1_000))
def test_every_sector_after_a_crash_holds_what_it_held_at_or_after_the_last_sync(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    disk = disk_with("/d/a", b"")
    file = disk.open("/d/a")
    versions = [b""]
    for number, (what, position, size) in enumerate(steps, 1):
        if what == "write":
            # Whole sectors, so that a sector's content is one of its versions and no mixture within.
            file.pwritev([bytes([number]) * (size // SECTOR_BYTES + 1) * SECTOR_BYTES], position // 512 * 512)
        elif what == "truncate":
            file.truncate(position // 512 * 512)
        elif what == "sync":
            file.fdatasync()
        else:
            disk.sync_all("/")
        if what.startswith("sync"):
            versions.clear()
        versions.append(file.pread(1 << 20, 0))
    choose: Choose = random.Random(seed).randrange
    found = content(disk.crash(choose), "/d/a")
    for at in range(0, len(found), SECTOR_BYTES):
        sector = found[at : at + SECTOR_BYTES]
        hole = bytes(SECTOR_BYTES)
        assert sector in {version[at : at + SECTOR_BYTES] for version in versions} | {hole}
    if len(versions) == 1:
        assert found == versions[0]


def test_a_kill_leaves_what_was_written_and_a_later_power_loss_takes_what_was_not_synced() -> None:
    disk = disk_with("/d/a", b"old")
    file = disk.open("/d/a")
    file.pwritev([b"newer"], 0)
    disk.open("/d/b", create=True)
    lock = disk.lock("/d")
    for _ in range(3):
        killed, disk = disk, disk.kill(everything_lost)
        assert content(disk, "/d/a") == b"newer"
        assert disk.listdir("/d") == ["LOCK", "a", "b"]
        with pytest.raises(CrashNow):
            killed.listdir("/d")
        with pytest.raises(CrashNow):
            file.pwritev([b"x"], 0)
    disk.lock("/d")
    lock.release()
    lost = disk.crash(everything_lost)
    assert content(lost, "/d/a") == b"old"
    assert lost.listdir("/d") == ["a"]


def test_the_next_process_can_sync_what_a_killed_one_wrote() -> None:
    disk = disk_with("/d/a", b"old")
    disk.open("/d/a").pwritev([b"newer"], 0)
    disk = disk.kill(everything_lost)
    disk.open("/d/a").fdatasync()
    assert content(disk.crash(everything_lost), "/d/a") == b"newer"


def test_pages_of_a_failed_sync_are_read_until_they_are_evicted_or_the_power_goes() -> None:
    disk = disk_with("/d/a", b"old")
    disk.inject(Fault(Trigger(1, "fdatasync"), errno.EIO))
    file = disk.open("/d/a")
    file.pwritev([b"new"], 0)
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    disk = disk.kill(everything_lost)
    disk.open("/d/a").fdatasync()
    assert content(disk, "/d/a") == b"new"
    disk.disk.evict()
    assert content(disk, "/d/a") == b"old"


def test_eviction_leaves_dirty_pages_and_synced_ones() -> None:
    disk = disk_with("/d/a", b"old")
    disk.open("/d/a").pwritev([b"dirty"], 0)
    disk.disk.evict()
    assert content(disk, "/d/a") == b"dirty"


@pytest.mark.parametrize("keep_entries", [False, True])
def test_entries_of_a_failed_directory_sync_are_forgotten_or_written_by_the_next_one(keep_entries: bool) -> None:
    disk = disk_with("/d/a", b"")
    disk.mkdir("/d/e")
    disk.open("/d/b", create=True)
    disk.inject(Fault(Trigger(1, "sync directory"), errno.EIO, keep_entries=keep_entries))
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory("/d")
    disk.sync_directory("/d")
    assert disk.listdir("/d") == ["a", "b", "e"]
    # A directory that was made is not forgotten: a journaling file system stops instead.
    assert disk.crash(everything_lost).listdir("/d") == ["a", *(["b"] if keep_entries else []), "e"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_lasts_for_a_while(number: int) -> None:
    disk = disk_with("/d/a", b"old")
    grown = disk.open("/d/g", create=True)
    grown.pwritev([b"unsynced"], 0)
    free = disk.free_bytes("/d")
    disk.inject(full_disk(Trigger(1, lasts=6), number))
    for refused in (
        lambda: disk.open("/d/a").pwritev([b"longer"], 0),
        lambda: disk.open("/d/b", create=True),
        lambda: disk.rename("/d/a", "/d/c"),
        grown.fsync,
    ):
        with pytest.raises(OSError, match=r"No space left|quota exceeded"):
            refused()
        assert disk.free_bytes("/d") == (0 if number == errno.ENOSPC else free)
    disk.open("/d/a").pwritev([b"own"], 0)
    disk.remove("/d/a")
    disk.open("/d/b", create=True).pwritev([b"there is room again"], 0)
    assert disk.free_bytes("/d") > 0


def test_a_part_of_the_last_write_of_a_killed_process_may_be_there() -> None:
    disk = disk_with("/d/a", b"")
    disk.crash_at(1, pattern="write", written=0.5)
    with pytest.raises(CrashNow):
        disk.open("/d/a").pwritev([b"12345678"], 0)
    assert content(disk.kill(everything_lost), "/d/a") == b"1234"


def test_what_vanished_can_be_put_back() -> None:
    disk = disk_with("/d/a", b"content")
    vanished = disk.disk.vanish("/d/a")
    assert disk.listdir("/d") == []
    disk.disk.put_back(vanished)
    hidden = disk.disk.vanish("/d", leave_empty_directory=True)
    disk.open("/d/other", create=True)
    disk.sync_directory("/d")
    disk.disk.put_back(hidden)
    assert content(disk.crash(everything_lost), "/d/a") == b"content"


def test_what_vanished_does_not_come_back_by_a_sync_or_a_power_loss() -> None:
    """The unsynced entry of a file that was taken away was written by a later sync, and a power loss showed it."""
    disk = disk_with("/d/a", b"content")
    disk.open("/d/b", create=True)
    disk.disk.vanish("/d/b")
    disk.sync_directory("/d")
    assert disk.crash(everything_survived).listdir("/d") == ["a"]
