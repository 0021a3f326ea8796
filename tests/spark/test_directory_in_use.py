"""Readers of a data directory and the server that it belongs to: neither makes the other fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_adapter import StorageAdapter
from shards.seams.os_file_system import OsFileSystem
from spark_export import live_shards
from spark_export.discovery import take_snapshot
from spark_export.errors import UnreadableError
from spark_export.options import parse_options
from spark_export.server_connection import connected
from spark_export.snapshot import Snapshot
from tests.faults.processes import running
from tests.patience import PATIENCE_S
from tests.spark.queues import at


def in_thread(work: Callable[[], Any], found: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread


def wait_for_text(path: Path, text: str, then: threading.Event) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while text not in path.read_text() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    then.set()


def look(data: Path) -> Snapshot:
    return take_snapshot(parse_options({"path": str(data)}, "batch"))


@pytest.mark.slow("starts servers")
def test_a_reader_made_the_restart_of_a_crashed_server_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It recovered the directory in the server's place, and the server said "in use by the process with pid ..."."""
    data = tmp_path / "data"
    reads, may_leave = threading.Event(), threading.Event()
    shards_of = live_shards._shards

    async def slowly(*args: Any, **options: Any) -> Any:
        found = await shards_of(*args, **options)
        reads.set()
        assert may_leave.wait(PATIENCE_S)
        return found

    with running(data) as server:
        at(f"journal://127.0.0.1:{server.ports['tcp']}", lambda adapter: adapter.create_shard("a"))
        server.kill()
    monkeypatch.setattr(live_shards, "_shards", slowly)
    snapshots: list[Snapshot] = []
    reader = in_thread(lambda: look(data), snapshots)
    with ExitStack() as stack:
        try:
            assert reads.wait(PATIENCE_S)
            waited = in_thread(lambda: wait_for_text(tmp_path / "data.log", "waiting for a reader", may_leave), [])
            server = stack.enter_context(running(data))
        finally:
            may_leave.set()
            reader.join()
        waited.join()
        assert "waiting for a reader" in server.log.read_text()
        # The server has come up, and who comes now asks it.
        assert look(data).store.server == f"journal://127.0.0.1:{server.ports['tcp']}"
        assert server.stop() == 0
    assert [shard.name for one in snapshots for shard in one.shards] == ["a"]


@pytest.mark.slow("reads files of a server that runs")
def test_a_server_that_freezes_held_up_a_query_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(live_shards, "PATIENCE_S", 1.0)
    with running(data) as server:
        address = f"journal://127.0.0.1:{server.ports['tcp']}"

        @asynccontextmanager
        async def frozen(url: str) -> AsyncIterator[StorageAdapter]:
            async with connected(url) as adapter:
                os.kill(server.pid, signal.SIGSTOP)
                yield adapter

        monkeypatch.setattr(live_shards, "connected", frozen)
        try:
            with pytest.raises(UnreadableError, match=rf"server at {address} did not list its shards within 1 s"):
                take_snapshot(parse_options({"server": address}, "batch"))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert server.stop() == 0


@pytest.mark.slow("reads files of a server that runs")
def test_a_reader_that_waits_for_a_server_took_its_lock_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see whether the directory is in use it took LOCK, at which a server that was just starting failed."""
    data = tmp_path / "data"
    locked: list[str] = []
    lock = OsFileSystem.lock
    with running(data) as server:
        monkeypatch.setattr(OsFileSystem, "lock", lambda self, path: locked.append(path) or lock(self, path))
        assert look(data).store.server
        assert locked == [f"{data}/reading", str(data)]
        assert server.stop() == 0
