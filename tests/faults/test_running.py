"""Faults while a server runs: a disk that fails or fills up, memory that runs out, and a stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.protocol import Op, messages
from shards.errors import DiskFullError, OverloadedError, StorageError, StorageFailedError
from shards.model import Mode, Retention, ShardConfig
from tests.faults.injection import failing
from tests.faults.processes import ServerProcess, command, running
from tests.patience import PATIENCE_S


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.slow("breaks the storage of a running server")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_server_whose_storage_failed_ends_with_a_status_of_its_own_and_a_restart_has_everything(
    data: Path, error: str
) -> None:
    """A server whose fsync had failed stayed up for ever and took no appends until an operator restarted it."""
    acknowledged: list[bytes] = []
    with running(data, under=failing(f"fdatasync:error={error}:when=12+")) as server:
        with server.client() as reader, server.client() as client:
            handle = client.open("a", ShardConfig())
            with pytest.raises((StorageError, EOFError, ConnectionError)):
                for number in range(100):
                    value = b"%d" % number
                    client.append(handle, value)
                    acknowledged.append(value)
            failed_at = time.monotonic()
            # Who only listens is told why it is sent away.
            _, _, _, body = reader.receive()
            assert b"shutting_down" in body
            with pytest.raises((EOFError, ConnectionError)):
                reader.receive()
        assert server.process.wait(PATIENCE_S) == 74
        assert time.monotonic() - failed_at < 10
        log = server.log.read_text()
        assert log.count("[error    ] the storage failed") == 1, log
        assert "stopping, as the storage failed" in log
        assert log.splitlines()[-1].startswith("journal: the storage failed ("), log
        assert "Traceback" not in log
    assert 0 < len(acknowledged) < 100
    with running(data) as server, server.client() as client:
        handle = client.open("a")
        found = client.read(handle)
        client.append(handle, b"taken again")
        assert server.stop() == 0
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1


@pytest.mark.slow("breaks the storage of a running server")
def test_the_exit_status_shows_a_storage_failure_in_the_last_checkpoint(data: Path) -> None:
    with running(data) as server, server.client() as client:
        client.append(client.open("a", ShardConfig()), b"v")
        assert server.stop() == 0
    (log_file,) = (data / "log").glob("*/*.log")
    with running(data, under=failing("fdatasync:error=EIO", path=log_file)) as server:
        with server.client() as client:
            client.append(client.open("a"), b"w")
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 74
        assert "Traceback" not in server.log.read_text()
    with running(data) as server, server.client() as client:
        assert client.read(client.open("a")) == [b"v", b"w"]
        assert server.stop() == 0


@pytest.mark.slow("starts the program several times")
def test_a_server_with_wrong_settings_ends_with_a_status_that_says_not_to_start_it_again(data: Path) -> None:
    done = subprocess.run(
        command(data, "storage.on_failure=stay"), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 78
    assert 'allowed: "exit" or "read_only"' in done.stderr


@pytest.mark.slow("breaks the storage of a running server")
def test_after_a_failed_fsync_nothing_is_acknowledged_and_reads_go_on_where_that_is_wanted(data: Path) -> None:
    acknowledged: list[bytes] = []
    under = failing("fdatasync:error=EIO:when=12+")
    with running(data, "storage.on_failure=read_only", under=under) as server:
        with server.client() as client:
            handle = client.open("a", ShardConfig())
            with pytest.raises((StorageError, EOFError)):
                for number in range(100):
                    value = b"%d" % number
                    client.append(handle, value)
                    acknowledged.append(value)
        assert 0 < len(acknowledged) < 100
        status, said = server.http("/readyz")
        assert status == 503
        assert "Input/output error" in said
        assert "Restart the server once the disk is sound" in said
        assert server.http("/livez")[0] == 200
        with server.client() as client:
            handle = client.open("a")
            assert client.read(handle) == acknowledged
            with pytest.raises(StorageFailedError, match="Input/output error"):
                client.append(handle, b"never")
            with pytest.raises(StorageFailedError, match="nothing more is acknowledged"):
                client.call(Op.STATE_PUT, messages.StatePutRequest(b"k", b"v"))
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
    with running(data) as server, server.client() as client:
        found = client.read(client.open("a"))
        assert server.stop() == 0
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and the mount program for a small file system")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=24m", "none", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow("breaks the storage of a running server")
def test_a_nearly_full_disk_refuses_appends_before_it_is_full_and_takes_them_again(small_disk: Path) -> None:
    data = small_disk / "data"
    # What is appended between two looks at the free space is far less than half of the reserve.
    with running(data, "storage.disk_reserve_bytes=10 MiB", "storage.flush_interval_ms=20") as server:
        with server.client() as client:
            handle = client.open("a", ShardConfig())
            stored: list[bytes] = []
            with pytest.raises(DiskFullError, match=r"left, under the reserve of 10.0 MiB .*disk_reserve_bytes"):
                for _ in range(1600):
                    value = os.urandom(16 << 10)
                    client.append(handle, value)
                    stored.append(value)
            assert len(stored) > 20
            free = os.statvfs(small_disk)
            assert free.f_bavail * free.f_frsize > 1 << 20, "refused only when it was full"
            assert client.read(handle) == stored
            status, said = server.http("/readyz")
            assert status == 503
            # A machine that is slow to look may have met the end of the disk itself by then.
            assert "storage.disk_reserve_bytes" in said or "No space left on device" in said
            # Consumers may note how far they are, so that what they are through with can be trimmed.
            client.call(Op.STATE_PUT, messages.StatePutRequest(b"k", b"v"))
            client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 1))
            ballast = small_disk / "of another program"
            # What the server had still to write since then has taken its part.
            free = os.statvfs(small_disk)
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (2 << 20))
            with pytest.raises(DiskFullError):
                give_up_at = time.monotonic() + PATIENCE_S
                while time.monotonic() < give_up_at:
                    client.call(Op.STATE_PUT, messages.StatePutRequest(b"k", b"v"))
            with pytest.raises(DiskFullError):
                client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 2))
            ballast.unlink()
            # What frees space is done.
            client.call(Op.DELETE_SHARD, messages.NameRequest("a"))
            deadline = time.monotonic() + PATIENCE_S
            while server.http("/readyz")[0] != 200:
                assert time.monotonic() < deadline, server.http("/readyz")
            handle = client.open("b", ShardConfig())
            assert client.append(handle, b"room again") == 0
        assert server.stop() == 0


@pytest.mark.slow("starts the program several times")
def test_memory_shards_have_a_budget(data: Path) -> None:
    with running(data, "storage.memory_budget_bytes=1 MiB", "storage.memory_segment_bytes=64 KiB") as server:
        with server.client() as client:
            keep_all = ShardConfig(mode=Mode.MEMORY, retention=Retention(max_bytes=1 << 30))
            handle, file = client.open("m", keep_all), client.open("f", ShardConfig())
            with pytest.raises(OverloadedError, match=r"storage\.memory_budget_bytes.*file mode") as refused:
                for _ in range(100):
                    client.append(handle, bytes(32 << 10))
            assert refused.value.retriable
            assert client.append(file, b"x") == 0
            client.call(Op.DELETE_SHARD, messages.NameRequest("m"))
            handle = client.open("m", keep_all)
            assert client.append(handle, b"room again") == 0
        assert server.stop() == 0


class Load(threading.Thread):
    """A client that appends until the connection ends, and remembers what was acknowledged."""

    def __init__(self, server: ServerProcess, shard: str) -> None:
        super().__init__()
        self.server = server
        self.shard = shard
        self.acknowledged: list[bytes] = []
        self.ended: BaseException | None = None

    def run(self) -> None:
        try:
            with self.server.client() as client:
                handle = client.open(self.shard, ShardConfig())
                while True:
                    value = b"%d" % len(self.acknowledged) * 100
                    client.append(handle, value)
                    self.acknowledged.append(value)
        except (OSError, EOFError, StorageError) as error:
            self.ended = error


@pytest.mark.slow("breaks the storage of a running server")
def test_a_stop_under_load_keeps_every_acknowledged_record(data: Path) -> None:
    """Told twice, too: the second signal must not cut the last checkpoint."""
    with running(data) as server:
        loads = [Load(server, f"s{number}") for number in range(3)]
        for load in loads:
            load.start()
        deadline = time.monotonic() + PATIENCE_S
        while min(len(load.acknowledged) for load in loads) < 50:
            assert time.monotonic() < deadline
        with server.client() as idle:
            idle.open("idle", ShardConfig())
            started = time.monotonic()
            for _ in range(2):
                server.process.send_signal(signal.SIGTERM)
            # The idle client is told why, and the stream ends in order rather than with a reset.
            _, _, _, body = idle.receive()
            assert b"shutting_down" in body
            with pytest.raises(EOFError):
                idle.receive()
        assert server.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - started < 5
        for load in loads:
            load.join(PATIENCE_S)
            assert isinstance(load.ended, EOFError), load.ended
        assert "unexpected" not in server.log.read_text()
    with running(data) as server, server.client() as client:
        for load in loads:
            found = client.read(client.open(load.shard))
            assert found[: len(load.acknowledged)] == load.acknowledged
        assert server.stop() == 0


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_views_whose_directory_went_away_were_flushed_into_another_and_could_not_be_opened_any_more(
    data: Path, *, is_replaced: bool
) -> None:
    """What an unmount of ``state/`` under a running server does: RocksDB made its table in the directory below.

    The server ended with status 0 and had recycled its journal. Mounted again, ``state/`` lacked the table.
    """
    state, aside = data / "state", data.parent / "aside"
    with running(data) as server:
        with server.client() as client:
            client.append(client.open("a", ShardConfig()), b"1", b"2")
        state.rename(aside)
        if is_replaced:
            state.mkdir()
        assert server.stop() == 74
        assert f"{state} is not the directory that was opened" in server.log.read_text()
    if is_replaced:
        state.rmdir()
    aside.rename(state)
    with running(data) as server, server.client() as client:
        assert client.read(client.open("a")) == [b"1", b"2"]


@pytest.mark.slow("starts a server")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_directory_of_views_that_was_moved_away_was_noticed_at_the_next_checkpoint(
    data: Path, *, is_replaced: bool
) -> None:
    """That may be days later, for as long as little is written."""
    state, aside = data / "state", data.parent / "aside"
    with running(data) as server:
        state.rename(aside)
        if is_replaced:
            state.mkdir()
        assert server.process.wait(PATIENCE_S) == 74
        log = server.log.read_text()
        assert f"{state} is not the directory that was opened" in log
        assert "put that directory back under its name or mount it again, and start again" in log


@pytest.mark.slow("starts servers and writes 30 MB")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_table_that_rocksdb_wrote_by_itself_was_in_another_directory_than_the_list_of_tables(
    data: Path, *, is_replaced: bool
) -> None:
    """Its memory was full before a checkpoint could find the directory moved. Put back, ``state/`` lacked the table.

    RocksDB did not open it any more, and what was in its other tables was not in the journal.
    """
    state, aside = data / "state", data.parent / "aside"
    settings = (
        "storage.journal_file_bytes=64 MiB",
        "storage.journal_budget_bytes=256 MiB",
        "storage.flush_interval_ms=60000",
    )
    keys = [b"%02d" % number for number in range(60)]
    with running(data, *settings) as server, server.client() as client:
        # While no zeroed file is in reserve, each commit wakes the background task, which looks at the directories.
        client.call(Op.STATE_PUT, messages.StatePutRequest(b"first", b""))
        give_up_at = time.monotonic() + PATIENCE_S
        while not any((data / "journal").glob("free-*.jnl")):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        # The task answers this in its next round, after which it sleeps.
        with server.client() as other:
            other.call(Op.SNAPSHOT, messages.Empty())
        tables = {table.name for table in state.glob("*.sst")}
        for key in keys[:36]:
            client.call(Op.STATE_PUT, messages.StatePutRequest(key, key * 200_000))
        # The checkpoint wrote a table of what was set up. RocksDB writes the next when 16 MiB are in memory.
        assert {table.name for table in state.glob("*.sst")} == tables
        state.rename(aside)
        if is_replaced:
            state.mkdir()
        for key in keys[36:]:
            client.call(Op.STATE_PUT, messages.StatePutRequest(key, key * 200_000))
        give_up_at = time.monotonic() + PATIENCE_S
        while {table.name for table in data.parent.glob("*/**/*.sst")} <= tables:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        server.kill()
    if is_replaced:
        assert list(state.iterdir()) == []
        state.rmdir()
    aside.rename(state)
    with running(data) as server, server.client() as client:
        for key in keys:
            reply = client.call(Op.STATE_GET, messages.StateGetRequest(key))
            assert isinstance(reply, messages.StateGetReply)
            assert reply.value is not None
            assert reply.value.value == key * 200_000
        assert server.stop() == 0
