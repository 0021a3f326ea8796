"""What is special to the store in RocksDB: crashes, its lock, damaged files. The rest is the store contract."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options

from shards.errors import CorruptionError, DataDirectoryError, DiskFullError, StorageFailedError
from shards.seams import held_directory, rocks_scan, rocks_store
from shards.seams.rocks_store import FAMILY_PREFIXES, RocksStore
from shards.seams.store import Family, Mutations
from tests.faults.disks import MIB, ext4, fill
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def start_workload(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.shards.store_workload", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_after_sigkill_all_families_stand_at_one_point_not_before_the_last_flush(tmp_path: Path) -> None:
    """Guards against a recorded lsn that is ahead of what a family holds."""
    path = tmp_path / "store"
    with start_workload(path) as workload:
        assert workload.stdout is not None
        flushed = 0
        while flushed < 3_000:
            flushed = int(workload.stdout.readline())
        workload.kill()
        for line in workload.stdout:
            flushed = int(line)
    store = RocksStore(str(path))
    last = int(store.get(Family.META, b"last") or b"0")
    assert last >= flushed
    expected = [(b"n%08d" % number, b"%08d" % number * 10) for number in range(1, last + 1)]
    for family in Family:
        assert store.get(family, b"last") == b"%08d" % last
        assert list(store.scan(family, b"n")) == expected
    store.close()


def test_a_store_loses_what_was_not_flushed(tmp_path: Path) -> None:
    """Shows that the promise of `flush` is what makes data stay, so the test above judges something."""
    script = (
        "import os, sys; from shards.seams.rocks_store import RocksStore\n"
        "from shards.seams.store import Family, Mutations\n"
        "s = RocksStore(sys.argv[1])\n"
        "for n in (b'1', b'2'):\n"
        "    m = Mutations(); [m.put(f, b'n', n) for f in Family]; s.write(m)\n"
        "    if n == b'1': s.flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = str(tmp_path / "store")
    subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    store = RocksStore(path)
    assert {family: store.get(family, b"n") for family in Family} == dict.fromkeys(Family, b"1")
    store.close()


def test_a_flush_that_fails_raises_and_the_store_takes_no_more(tmp_path: Path) -> None:
    """Guards against a way to flush that says nothing of a failed disk, as RocksDB's compact_range does here."""
    script = (
        "import os, resource, sys\n"
        "from shards.errors import StorageFailedError\n"
        "from shards.seams.rocks_store import RocksStore\n"
        "from shards.seams.store import Family, Mutations\n"
        "store = RocksStore(sys.argv[1])\n"
        "mutations = Mutations()\n"
        "mutations.put(Family.META, b'k', os.urandom(100_000))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, -1))\n"
        "for attempt in range(2):\n"
        "    try:\n"
        "        store.write(mutations)\n"
        "        store.flush()\n"
        "    except StorageFailedError as error:\n"
        "        print(error)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "print(store.get(Family.META, b'other'))\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = subprocess.check_output(arguments, cwd=ROOT, env=environment, text=True).splitlines()
    assert len(lines) == 3
    assert all("File too large" in line and "opened again" in line for line in lines[:2])
    assert lines[2] == "None"


def test_every_family_has_a_prefix_byte_of_its_own() -> None:
    assert set(FAMILY_PREFIXES) == set(Family)
    assert len(set(FAMILY_PREFIXES.values())) == len(Family)
    assert all(len(prefix) == 1 and prefix != b"\xff" for prefix in FAMILY_PREFIXES.values())


def test_a_second_opening_in_this_process_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    first = RocksStore(path)
    with pytest.raises(DataDirectoryError, match=f"{path} is in use by this process"):
        RocksStore(path)
    with pytest.raises(DataDirectoryError):
        RocksStore(path)
    first.close()
    RocksStore(path).close()


def test_a_store_held_by_another_process_is_refused_with_its_pid(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with start_workload(path) as workload:
        assert workload.stdout is not None
        workload.stdout.readline()
        with pytest.raises(DataDirectoryError, match=f"in use by the process with pid {workload.pid}; stop"):
            RocksStore(str(path))
        workload.kill()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_tables_were_divided_between_a_directory_that_was_moved_and_the_one_in_its_place(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    """RocksDB writes and merges tables by itself. In the other directory they were missing when it was put back."""
    path, aside = tmp_path / "store", tmp_path / "aside"
    store = RocksStore(str(path), write_buffer_bytes=64 << 10)
    path.rename(aside)
    if is_replaced:
        path.mkdir()
    filled_up(store, range(200), bytes(10_000))
    store.catch_up()
    store._open_db().compact_range(None, None)
    with pytest.raises(
        StorageFailedError,
        match=f"{path} is not the directory that was opened: .*put that directory back under its name",
    ):
        store.check_directory()
    with pytest.raises(StorageFailedError, match="is not the directory that was opened"):
        filled_up(store, range(1), b"")
    store.close()
    if is_replaced:
        path.rmdir()
    aside.rename(path)
    store = RocksStore(str(path))
    assert [key for key, _ in store.scan(Family.STATE)] == [b"%06d" % number for number in range(200)]
    store.check_directory()
    store.close()


def test_without_paths_of_descriptors_closing_does_not_flush_into_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_directory, "_DESCRIPTORS", str(tmp_path / "missing"))
    path, aside = tmp_path / "store", tmp_path / "aside"
    store = RocksStore(str(path))
    filled_up(store, range(2), b"value")
    path.rename(aside)
    path.mkdir()
    with pytest.raises(StorageFailedError, match=f"{path} is not the directory that was opened"):
        store.flush()
    store.close()
    assert list(path.iterdir()) == []


def test_errors_name_the_path_of_a_store_and_not_that_of_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = filled(path)
    for table in path.glob("*.sst"):
        flip(table, table.stat().st_size // 2)
    with pytest.raises(CorruptionError) as caught:
        list(store.scan(Family.STATE))
    assert f"{path}/" in str(caught.value)
    assert "/proc/" not in str(caught.value)
    store.close()


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(DataDirectoryError, match="/sys/store cannot be opened"):
        RocksStore("/sys/store")


def filled(path: Path) -> RocksStore:
    store = RocksStore(str(path))
    mutations = Mutations()
    for number in range(2_000):
        mutations.put(Family.STATE, b"%05d" % number, os.urandom(100))
    store.write(mutations)
    store.flush()
    return store


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x01
    path.write_bytes(content)


def test_a_flipped_bit_in_a_table_is_an_error_never_a_shorter_scan(tmp_path: Path) -> None:
    """Guards against an iterator that ends at a damaged block as if there were no more keys."""
    filled(tmp_path).close()
    (table,) = tmp_path.glob("*.sst")
    flip(table, table.stat().st_size // 2)
    store = RocksStore(str(tmp_path))
    with pytest.raises(CorruptionError, match=str(tmp_path)):
        list(store.scan(Family.STATE))
    with pytest.raises(CorruptionError, match="checksum"):
        list(store.scan(Family.STATE, reverse=True))
    with pytest.raises(CorruptionError):
        [store.get(Family.STATE, b"%05d" % number) for number in range(2_000)]
    store.close()


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT", "*.sst"])
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_damaged_or_missing_file_is_an_error_at_opening_and_nothing_is_deleted(
    tmp_path: Path, name: str, damage: str
) -> None:
    filled(tmp_path).close()
    victim = max(tmp_path.glob(name))
    if damage == "flip":
        flip(victim, -6)
    else:
        victim.unlink()
    tables = sorted(tmp_path.glob("*.sst"))
    with pytest.raises(CorruptionError, match=f"{tmp_path}.*put it back and start again; .* restore a backup$"):
        RocksStore(str(tmp_path))
    assert sorted(tmp_path.glob("*.sst")) == tables


def test_a_copy_holds_what_was_written_before_and_goes_its_own_way(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "store"))
    mutations = Mutations()
    mutations.put(Family.STATE, b"key", b"before")
    store.write(mutations)
    store.copy_to(str(tmp_path / "copy"))
    mutations = Mutations()
    mutations.put(Family.STATE, b"key", b"after")
    store.write(mutations)
    store.flush()

    copy = RocksStore(str(tmp_path / "copy"))
    assert copy.get(Family.STATE, b"key") == b"before"
    mutations = Mutations()
    mutations.delete(Family.STATE, b"key")
    copy.write(mutations)
    copy.flush()
    copy.close()
    assert store.get(Family.STATE, b"key") == b"after"
    store.close()


def test_a_copy_into_a_directory_that_is_there_is_refused(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "store"))
    (tmp_path / "copy").mkdir()
    with pytest.raises(StorageFailedError, match="cannot be copied"):
        store.copy_to(str(tmp_path / "copy"))
    mutations = Mutations()
    mutations.put(Family.STATE, b"key", b"it goes on")
    store.write(mutations)
    store.flush()
    store.close()


def test_compacting_drops_what_was_deleted_and_keeps_the_rest(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "store"))
    for number in range(2000):
        mutations = Mutations()
        mutations.put(Family.STATE, b"%04d" % number, os.urandom(500))
        store.write(mutations)
    store.flush()
    # RocksDB may do a part by itself, at any time from the second flush on.
    before = sum(file.stat().st_size for file in (tmp_path / "store").glob("*.sst"))
    for number in range(1, 2000):
        mutations = Mutations()
        mutations.delete(Family.STATE, b"%04d" % number)
        store.write(mutations)
    store.flush()
    store.compact()
    assert [key for key, _ in store.scan(Family.STATE)] == [b"0000"]
    # RocksDB removes the replaced files in the background; closing waits for it.
    store.close()
    after = sum(file.stat().st_size for file in (tmp_path / "store").glob("*.sst"))
    assert after < before // 10


def test_passing_over_many_deleted_keys_was_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan behind 500,000 keys that were deleted a moment ago blocked every thread for 600 ms."""
    store = RocksStore(str(tmp_path / "store"))
    keys = [b"loop/%06d" % number for number in range(20_000)]
    for start in range(0, len(keys), 1000):
        mutations = Mutations()
        for key in keys[start : start + 1000]:
            mutations.put(Family.STATE, key, b"v")
        store.write(mutations)
    store.flush()
    mutations = Mutations()
    for key in keys[:-1]:
        if key != keys[10_000]:
            mutations.delete(Family.STATE, key)
    store.write(mutations)
    for prefix, start in ((b"", None), (b"loop/", None), (b"loop/", keys[5_000])):
        steps = list(store.scan_in_steps(Family.STATE, prefix, start=start))
        assert [item[0] for item in steps if item is not None] == [keys[10_000], keys[-1]]
        # Each step passes over a number of versions that is bounded: two of each deleted key.
        passed_over = 2 * (len(keys) - (5_000 if start else 0))
        assert steps.count(None) > passed_over / rocks_scan._STEP_SKIPPED_KEYS
    monkeypatch.setattr(rocks_scan, "_STEP_SKIPPED_KEYS", 1 << 30)
    # Where nothing bounds a step, as before, there is no step without a key.
    assert None not in list(store.scan_in_steps(Family.STATE))
    store.close()


def test_a_table_that_is_half_deletions_is_compacted_soon(tmp_path: Path) -> None:
    """Until it was compacted for another reason, every scan over it paid for each deleted key."""
    store = RocksStore(str(tmp_path / "store"))
    mutations = Mutations()
    for number in range(5_000):
        mutations.put(Family.STATE, b"%06d" % number, b"v")
    store.write(mutations)
    store.flush()
    mutations.clear()
    for number in range(5_000):
        mutations.delete(Family.STATE, b"%06d" % number)
    store.write(mutations)
    store.flush()
    give_up_at = time.monotonic() + PATIENCE_S
    while list(store.scan_in_steps(Family.STATE)):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    store.close()


def test_a_step_of_a_scan_ends_with_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of 1 MiB were read 512 at once, although the page that they were for took eight of them."""
    store = RocksStore(str(tmp_path / "store"))
    filled_up(store, range(20), bytes(MIB))
    largest = 0
    read = rocks_scan.RocksScan._chunk

    def noted(*arguments: Any, **named: Any) -> tuple[list[tuple[bytes, bytes]], bool]:
        nonlocal largest
        found = read(*arguments, **named)
        largest = max(largest, len(found[0]))
        return found

    monkeypatch.setattr(rocks_scan.RocksScan, "_chunk", noted)
    expected = [b"%06d" % number for number in range(20)]
    assert [key for key, _ in store.scan(Family.STATE)] == expected
    assert [key for key, _ in store.scan(Family.STATE, reverse=True)] == expected[::-1]
    assert [item[0] for item in store.scan_in_steps(Family.STATE) if item is not None] == expected
    assert largest == 1
    store.close()


def filled_up(store: RocksStore, numbers: range, value: bytes) -> None:
    for number in numbers:
        mutations = Mutations()
        mutations.put(Family.STATE, b"%06d" % number, value)
        store.write(mutations)


def test_a_disk_that_takes_nothing_for_a_while_holds_up_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of a server were blocked for as long as its disk: a write waited in RocksDB, with the
    interpreter's lock, until one of three write buffers had been written."""
    if shutil.which("fsfreeze") is None:
        pytest.skip("needs the program fsfreeze")
    real = rocks_store._options

    def log_elsewhere(*arguments: int) -> Options:
        # RocksDB writes lines into a log as well, which is not what is looked at here.
        options = real(*arguments)
        options.set_db_log_dir(str(tmp_path))
        return options

    monkeypatch.setattr(rocks_store, "_options", log_elsewhere)
    with ext4(tmp_path / "disk", tmp_path / "image", 256 * MIB) as disk:
        store = RocksStore(str(disk / "state"), write_buffer_bytes=MIB)
        value = os.urandom(10_000)
        filled_up(store, range(10), value)
        store.flush()
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        # Where a write waits, this ends it: in a process of its own, as no thread of this one would run.
        watchdog = subprocess.Popen(["sh", "-c", f"sleep {PATIENCE_S / 2}; fsfreeze -u {disk}; touch {tmp_path}/late"])
        try:
            filled_up(store, range(10, 2_000), value)
            assert not (tmp_path / "late").exists(), "a write waited for the disk"
            assert store.queued_bytes > 10 * MIB
            assert store.get(Family.STATE, b"001999") == value
            assert len(list(store.scan(Family.STATE))) == 2_000
        finally:
            watchdog.kill()
            watchdog.wait()
            subprocess.run(["fsfreeze", "-u", str(disk)], check=False, capture_output=True)
        store.flush()
        assert store.queued_bytes == 0
        store.close()
        store = RocksStore(str(disk / "state"))
        assert [key for key, _ in store.scan(Family.STATE)] == [b"%06d" % number for number in range(2_000)]
        store.close()


@pytest.mark.slow("fills a disk")
def test_a_store_whose_disk_is_full_continues_when_there_is_space_again(tmp_path: Path) -> None:
    """A store whose disk had been full failed for ever, although nothing was lost: all of it was in memory."""
    with ext4(tmp_path / "disk", tmp_path / "image", 64 * MIB) as disk:
        store = RocksStore(str(disk / "state"))
        value = os.urandom(1_000)
        filled_up(store, range(1_000), value)
        fill(disk / "ballast")
        with pytest.raises(DiskFullError, match=f"{disk}/state: No space left on device; free some space there"):
            store.flush()
        filled_up(store, range(1_000, 2_000), value)
        assert store.queued_bytes > 1_000_000
        assert len(list(store.scan(Family.STATE))) == 2_000
        with pytest.raises(DiskFullError):
            store.catch_up()
        (disk / "ballast").unlink()
        give_up_at = time.monotonic() + PATIENCE_S
        while store.queued_bytes:
            assert time.monotonic() < give_up_at
            with contextlib.suppress(DiskFullError):
                store.catch_up()
            time.sleep(0.05)
        store.flush()
        store.close()
        store = RocksStore(str(disk / "state"))
        assert len(list(store.scan(Family.STATE))) == 2_000
        store.close()


def test_what_waits_for_a_full_disk_is_bounded(tmp_path: Path) -> None:
    with ext4(tmp_path / "disk", tmp_path / "image", 64 * MIB) as disk:
        store = RocksStore(str(disk / "state"), queue_bytes=MIB)
        filled_up(store, range(10), b"v")
        fill(disk / "ballast")
        with pytest.raises(DiskFullError):
            store.flush()
        with pytest.raises(StorageFailedError, match=r"No space left .* wait to be written .* the limit is 1\.00 MiB"):
            filled_up(store, range(10_000), bytes(1_000))
        store.close()
        (disk / "ballast").unlink()
        RocksStore(str(disk / "state")).close()
