"""A backlog is on the disk: neither the server nor the bridge's driver holds more of it than their settings say.

Both are real processes, and what counts is the most memory that the kernel has seen each of them use, while the sink is
out and the queue fills, and while it drains.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import urllib.request
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import QueueMode, QueueSettings, QueueState, QueueWriter, look
from broker_adapter.results import PendingAppend
from shards.errors import OverloadedError
from shards.format.record import Record
from tests.faults.processes import command
from tests.mqtt.cluster.processes import Process
from tests.patience import PATIENCE_S
from tests.ports import free_port

MIB: Final = 1 << 20
QUEUE: Final = "backlog"
VALUE_BYTES: Final = 2000
CHUNK_RECORDS: Final = 250
PENDING_CHUNKS: Final = 16
MEMORY_MIB: Final = 16

SERVER: Final = {
    "storage.journal_file_bytes": 16,
    "storage.journal_budget_bytes": 64,
    "storage.tail_budget_bytes": 16,
    "storage.memory_budget_bytes": 64,
    "storage.memory_segment_bytes": 4,
    "limits.max_frame_bytes": 4,
    "limits.max_batch_bytes": 2,
    "limits.max_inflight_bytes_per_connection": 8,
    "limits.max_output_bytes_per_connection": 8,
}
"""In MiB."""
CONNECTIONS: Final = 3
"""Of this test, of the driver, and one that is being given up."""
PER_CONNECTION_MIB: Final = (
    SERVER["limits.max_inflight_bytes_per_connection"] + SERVER["limits.max_output_bytes_per_connection"]
)
SERVER_MIB: Final = SERVER["storage.tail_budget_bytes"] + CONNECTIONS * PER_CONNECTION_MIB
WINDOW: Final = 4
BATCH_MIB: Final = 1
FORMS: Final = 4
"""In which the driver has a batch at once: as it was received, as records, as rows, as the body of a request."""
DRIVER_MIB: Final = (WINDOW + 3) * BATCH_MIB * FORMS
"""Those that are under way, two that are prepared, and one that is being read."""
SPARE_MIB: Final = 32
"""What a process uses beside what it holds: code that is first used now, and what the allocator keeps."""
PARQUET_MIB: Final = 200
"""The library that reads sealed segments, and what it reads at a time."""

BRIDGE: Final = """\
[broker]
store = "{store}"
[log]
level = "error"
[[bridge]]
name = "{queue}"
topics = ["backlog/#"]
fields = {{ offset = "offset", text = "text" }}
mode = "{mode}"
memory_bytes = "{memory_mib} MiB"
max_bytes = 0
batch_bytes = "{batch_mib} MiB"
window = {window}
max_backoff_s = 1
[bridge.sink]
type = "http"
url = "http://127.0.0.1:{port}/rows"
"""


@attrs.frozen
class Peaks:
    """The most memory in MiB, of which the kernel knows, over what the process used before."""

    server: float
    driver: float


class Watch:
    """The memory of processes."""

    def __init__(self, server: Process, driver: Process) -> None:
        self._pids = server.pid, driver.pid
        self._before = [_memory_mib(pid, "VmRSS") for pid in self._pids]
        self._forget()

    def peaks(self) -> Peaks:
        """Since the last call, or since the start."""
        found = [_memory_mib(pid, "VmHWM") - before for pid, before in zip(self._pids, self._before, strict=True)]
        self._forget()
        return Peaks(*found)

    def _forget(self) -> None:
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


async def fill(adapter: StorageAdapter, settings: QueueSettings, count: int) -> None:
    """Put records into the queue, all of which are acknowledged."""
    waiting: deque[PendingAppend] = deque()
    value = (os.urandom(VALUE_BYTES // 2)).hex().encode()
    chunk = [Record(value, topic="backlog/x", timestamp_us=1) for _ in range(CHUNK_RECORDS)]
    async with trio.open_nursery() as nursery:
        writer = QueueWriter(adapter, QUEUE, settings, writer="test")
        await nursery.start(writer.run)
        put_count = 0
        while put_count < count:
            try:
                pending = writer.put_nowait(chunk)
            except OverloadedError:
                await adapter.wait_for_room(CHUNK_RECORDS * VALUE_BYTES)
                continue
            assert pending is not None
            waiting.append(pending)
            put_count += CHUNK_RECORDS
            if len(waiting) >= PENDING_CHUNKS:
                await waiting.popleft().wait()
        for pending in waiting:
            await pending.wait()
        nursery.cancel_scope.cancel()


def processes(directory: Path, mode: QueueMode, others: Sequence[str]) -> tuple[Process, Process, Process, str]:
    """Server, driver and sink, and the store's address; none is started."""
    store_port, sink_port = free_port(), free_port()
    store = f"journal://127.0.0.1:{store_port}"
    settings = [*(f"{name}={size_mib} MiB" for name, size_mib in SERVER.items()), *others]
    server = Process(
        command(directory / "data", f"listen.tcp=127.0.0.1:{store_port}", *settings), directory / "journal.log"
    )
    config = directory / "bridge.toml"
    config.write_text(
        BRIDGE.format(
            store=store,
            queue=QUEUE,
            mode=mode.value,
            memory_mib=MEMORY_MIB,
            batch_mib=BATCH_MIB,
            window=WINDOW,
            port=sink_port,
        )
    )
    driver = Process(
        [sys.executable, "-m", "broker_adapter.mqtt.cli.main", "bridge", "--config", str(config)],
        directory / "bridge.log",
    )
    sink = Process(
        [sys.executable, "-m", "benchmarks.queues.web_service", str(sink_port)],
        directory / "sink.log",
        {"http": sink_port},
    )
    return server, driver, sink, store


async def run_backlog(directory: Path, mode: QueueMode, backlog_bytes: int, *settings: str) -> tuple[Peaks, Peaks]:
    """Fill a queue while its sink is out, and drain it; what that took of memory."""
    count = backlog_bytes // VALUE_BYTES // CHUNK_RECORDS * CHUNK_RECORDS
    queue = QueueSettings(mode=mode, max_bytes=0, memory_bytes=MEMORY_MIB * MIB)
    server, driver, sink, store = processes(directory, mode, settings)
    with ExitStack() as ending:
        for process in (server, driver, sink):
            ending.callback(process.end, signal.SIGKILL)
        for process in (server, driver):
            await trio.to_thread.run_sync(process.start)
        async with open_adapter(store) as adapter:
            watch = Watch(server, driver)
            await fill(adapter, queue, count)
            state = await look(adapter, QUEUE)
            assert state.depth.record_count == count
            filling = watch.peaks()
            await trio.to_thread.run_sync(sink.start)
            await _drained(adapter)
            draining = watch.peaks()
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.ports['http']}/", timeout=PATIENCE_S) as reply:
            assert json.load(reply) == {"rows": count, "in_order": True}
    return filling, draining


async def _drained(adapter: StorageAdapter) -> QueueState:
    while (state := await look(adapter, QUEUE)).depth.record_count:
        await trio.sleep(0.1)
    return state


def check(mode: QueueMode, peaks: Sequence[Peaks], *, reads_parquet: bool) -> None:
    """Compare with what the settings allow."""
    in_memory_mib = SERVER["storage.memory_budget_bytes"] if mode is QueueMode.HYBRID else 0
    server_mib = SERVER_MIB + SPARE_MIB + in_memory_mib + (PARQUET_MIB if reads_parquet else 0)
    for each in peaks:
        assert each.server < server_mib
        assert each.driver < DRIVER_MIB + SPARE_MIB


@pytest.mark.slow("hundreds of MiB go through a bridge")
@pytest.mark.own_interpreter("measures the memory of the processes")
@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.HYBRID])
async def test_a_backlog_is_not_in_memory(mode: QueueMode, tmp_path: Path) -> None:
    """Without conversion, so that what is allowed is much less than the backlog."""
    peaks = await run_backlog(tmp_path, mode, 256 * MIB, "conversion.enabled=false")
    check(mode, peaks, reads_parquet=False)


@pytest.mark.long
@pytest.mark.own_interpreter("measures the memory of the processes")
@pytest.mark.timeout(0)
async def test_a_large_backlog_is_not_in_memory_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BACKLOG_GIB sets how large (5). Its segments are sealed meanwhile, as they are by default."""
    backlog_bytes = int(os.environ.get("BACKLOG_GIB", "5")) << 30
    free_bytes = shutil.disk_usage(tmp_path).free
    if free_bytes < 3 * backlog_bytes:
        pytest.skip(
            f"{free_bytes} bytes are free here, a backlog of {backlog_bytes} needs three times as much as it has"
        )
    peaks = await run_backlog(tmp_path, QueueMode.FILE, backlog_bytes)
    with capsys.disabled():
        print(f"\nbacklog of {backlog_bytes >> 30} GiB: filling {peaks[0]}, draining {peaks[1]}", flush=True)
    check(QueueMode.FILE, peaks, reads_parquet=True)
