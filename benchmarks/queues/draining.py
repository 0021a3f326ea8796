"""How fast `journal-broker bridge` drains a queue to a sink, measured by the queue's progress."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks import processes
from benchmarks.load import LoadError
from benchmarks.queues import putting
from benchmarks.queues.rows import BATCH_RECORDS
from benchmarks.stage import REPOSITORY
from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.queue import delete_queue
from broker_adapter.cache_queue.stored import Progress
from broker_adapter.opening import open_adapter
from broker_adapter.state_forms import decode

Address = tuple[str, int]

TIMEOUT_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.02
# In this part the bridge connects, and Python compiles its modules and methods.
_UNCOUNTED_PART: Final = 10

BRIDGE: Final = """\
[broker]
store = "journal://127.0.0.1:{port}"

[access]
anonymous = true

[[bridge]]
name = "{queue}"
topics = ["{topic}"]
max_bytes = "{max_bytes} B"
batch_records = {batch_records}

[bridge.sink]
{sink}
"""


@attrs.frozen(slots=True)
class Drained:
    """The result of draining.

    Attributes:
        records_per_s: Records confirmed.
        cpu_us: Processor time of the bridge's process per record, in microseconds.
    """

    records_per_s: float
    cpu_us: float


def bridge_config(journal: Address, queue: str, topic: str, sink: Mapping[str, str]) -> str:
    """A configuration with one bridge, which has the default settings.

    Args:
        sink: Settings of its sink.
    """
    return BRIDGE.format(
        port=journal[1],
        queue=queue,
        topic=topic,
        max_bytes=putting.SETTINGS.max_bytes,
        batch_records=BATCH_RECORDS,
        sink=sink_lines(sink),
    )


def sink_lines(sink: Mapping[str, str]) -> str:
    """The settings of a sink as lines of a configuration."""
    return "\n".join(f'{name} = "{value}"' for name, value in sink.items())


def drain_rate(journal: Address, queue: str, sink: Mapping[str, str], count: int, directory: Path) -> Drained:
    """Fill a queue, start its bridge, and wait until the last record is confirmed.

    Args:
        journal: The server with the queue.
        queue: Its name; it does not exist before, nor afterwards.
        sink: Settings of the sink, which must be available.
        count: Records.
        directory: For the bridge's configuration and log.

    Raises:
        LoadError: The bridge ended, or did not drain everything in time.
    """

    async def run() -> Drained:
        host, port = journal
        await putting.fill(journal, queue, count)
        # The bridge must not wait for data of the journal that is still to be written.
        await trio.to_thread.run_sync(os.sync)
        async with open_adapter(f"journal://{host}:{port}") as adapter:
            bridge = await trio.to_thread.run_sync(_start, journal, queue, sink, directory)
            try:
                drained = await _watch(adapter, queue, count, bridge)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(bridge.stop)
            await delete_queue(adapter, queue)
        return drained

    return trio.run(run)


async def confirmed_offset(adapter: StorageAdapter, queue: str) -> int:
    """The confirmed offset of a queue."""
    found = await adapter.get_state(names.progress_key(queue))
    return 0 if found is None else decode(Progress, found.key, found.value).offset


async def _watch(adapter: StorageAdapter, queue: str, count: int, bridge: processes.Child) -> Drained:
    first: tuple[float, float, int] | None = None
    give_up_at = time.perf_counter() + TIMEOUT_S
    while True:
        offset = await confirmed_offset(adapter, queue)
        if first is None and offset >= count // _UNCOUNTED_PART:
            first = time.perf_counter(), bridge.processor_s(), offset
        if first is not None and offset >= count:
            begun_at, begun_cpu_s, begun_offset = first
            cpu_s = bridge.processor_s() - begun_cpu_s
            records = offset - begun_offset
            return Drained(records / (time.perf_counter() - begun_at), cpu_s / records * 1e6)
        if bridge.process.poll() is not None:
            raise LoadError(f"the bridge ended; see {bridge.log_path}")
        if time.perf_counter() > give_up_at:
            raise LoadError(f"{offset:,} of {count:,} records were drained within {TIMEOUT_S:.0f} s")
        await trio.sleep(_LOOK_INTERVAL_S)


def _start(journal: Address, queue: str, sink: Mapping[str, str], directory: Path) -> processes.Child:
    directory.mkdir(parents=True, exist_ok=True)
    config_path = directory / f"{queue}.toml"
    config_path.write_text(bridge_config(journal, queue, putting.TOPIC, sink))
    argv = processes.python_module("broker_adapter.mqtt.cli.main", "bridge", "--config", str(config_path.resolve()))
    return processes.start_ready(argv, directory / f"{queue}.log", cwd=REPOSITORY)
