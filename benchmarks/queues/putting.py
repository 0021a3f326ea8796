"""Putting records into a queue as a broker does: with a `QueueWriter`, as many at a time as one receive brings."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from benchmarks.load import RateClock, Timing
from benchmarks.queues.rows import CHUNK_RECORDS, VALUE_BYTES
from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import QueueSettings, QueueWriter
from broker_adapter.mqtt.model.message import Message, record_of
from broker_adapter.opening import open_adapter
from broker_adapter.results import PendingAppend
from shards.errors import OverloadedError
from shards.format.record import Record

TOPIC: Final = "bench/queued"
SETTINGS: Final = QueueSettings(max_bytes=64 << 30)
_CHUNKS: Final = 50
_ROOM_BYTES: Final = CHUNK_RECORDS * (VALUE_BYTES + 128)


def chunks() -> list[list[Record]]:
    """Records as a broker makes them from publishes, JSON of one size."""
    found = []
    for number in range(_CHUNKS):
        messages = [
            Message(TOPIC, payload(number * CHUNK_RECORDS + each), 1, publisher=f"press-{number:02}")
            for each in range(CHUNK_RECORDS)
        ]
        for message in messages:
            message.timestamp_us = time.time_ns() // 1000
        found.append([record_of(message) for message in messages])
    return found


def payload(number: int) -> bytes:
    """Telemetry of a machine, padded to the size."""
    telemetry = {
        "number": number,
        "machine": f"line-{number % 7}/press-{number % 31:02}",
        "temperature": 60 + number % 400 / 10,
        "pressure": 1013.25 - number % 900 / 100,
        "state": "running" if number % 5 else "waiting for material",
        "note": "",
    }
    telemetry["note"] = "." * (VALUE_BYTES - len(json.dumps(telemetry)))
    return json.dumps(telemetry).encode()


@asynccontextmanager
async def open_writer(address: tuple[str, int], queue: str) -> AsyncIterator[tuple[StorageAdapter, QueueWriter]]:
    """A writer with its background task, as in a broker."""
    host, port = address
    async with open_adapter(f"journal://{host}:{port}") as adapter, trio.open_nursery() as nursery:
        writer = QueueWriter(adapter, queue, SETTINGS, writer="bench")
        await nursery.start(writer.run)
        yield adapter, writer
        nursery.cancel_scope.cancel()


async def put(adapter: StorageAdapter, writer: QueueWriter, may_go_on: Callable[[int, int], bool]) -> int:
    """Put records in, with the client's window always full.

    Args:
        may_go_on: Called before each chunk with the number of records put in and of those acknowledged; false ends it.

    Returns:
        Records put in, all of them acknowledged.
    """
    ready = chunks()
    waiting: deque[PendingAppend] = deque()
    count = acknowledged = 0
    while may_go_on(count, acknowledged):
        try:
            pending = writer.put_nowait(ready[count // CHUNK_RECORDS % len(ready)])
        except OverloadedError:
            await adapter.wait_for_room(_ROOM_BYTES)
        else:
            assert pending is not None, "the queue has no bound"
            waiting.append(pending)
            count += CHUNK_RECORDS
            await trio.lowlevel.checkpoint()
        while waiting and waiting[0].is_done:
            waiting.popleft().result_nowait()
            acknowledged += CHUNK_RECORDS
    while waiting:
        await waiting.popleft().wait()
    return count


async def fill(address: tuple[str, int], queue: str, count: int) -> None:
    """Create a queue with this many waiting records, a multiple of a chunk."""
    async with open_writer(address, queue) as (adapter, writer):
        await put(adapter, writer, lambda put_in, _acknowledged: put_in < count)


async def put_rate(address: tuple[str, int], queue: str, timing: Timing) -> tuple[float, float]:
    """Acknowledged records per second, and processor time of this process per record, in microseconds."""
    async with open_writer(address, queue) as (adapter, writer):
        clock = RateClock(timing)
        begun_s = time.process_time()
        count = await put(adapter, writer, lambda _count, acknowledged: not clock.ended(acknowledged))
        return clock.rate(), (time.process_time() - begun_s) / count * 1e6
