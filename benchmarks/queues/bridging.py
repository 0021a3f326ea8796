"""How fast messages reach a sink that is available: published by MQTT, queued, written to the sink, confirmed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from benchmarks.load import LoadError
from benchmarks.mqtt import packets, publishing
from benchmarks.mqtt.connection import Connection
from benchmarks.mqtt.ours import OurBrokers
from benchmarks.queues import draining, putting
from benchmarks.queues.rows import BATCH_RECORDS, CONNECTIONS
from broker_adapter.opening import open_adapter

QUEUE: Final = "bench-bridged"
TOPIC: Final = "bench/through"
WINDOW: Final = 1000
PER_CHUNK: Final = 250
_LOOK_INTERVAL_S: Final = 0.02

BRIDGE: Final = """
[[bridge]]
name = "{queue}"
topics = ["{topic}/#"]
max_bytes = "64 GiB"
batch_records = {batch_records}

[bridge.sink]
{sink}
"""


def bridged_rate(sink: Mapping[str, str], count: int, directory: Path) -> float:
    """Publish this many messages at QoS 1 and wait until the sink has confirmed all of them; messages per second.

    Args:
        sink: Settings of the sink, which must be available.
        count: A multiple of a chunk of each connection.
        directory: Empty directory for the server, the broker and their logs.

    Raises:
        LoadError: The broker did not acknowledge or forward everything in time.
    """
    each, rest = divmod(count, CONNECTIONS)
    if rest or each % PER_CHUNK:
        raise LoadError(f"{count:,} messages cannot be split into chunks of {PER_CHUNK} over {CONNECTIONS} connections")
    bridge = BRIDGE.format(queue=QUEUE, topic=TOPIC, batch_records=BATCH_RECORDS, sink=draining.sink_lines(sink))
    brokers = OurBrokers(directory, count=1, more_config=bridge)
    try:
        with ExitStack() as stack:
            lanes = []
            for number in range(CONNECTIONS):
                connection = stack.enter_context(Connection(brokers.brokers[0].address, f"bench-through-{number}"))
                ring = packets.publish_ring(
                    f"{TOPIC}/{number}", putting.payload(number), window=WINDOW, per_chunk=PER_CHUNK
                )
                lanes.append(publishing.Lane(connection.socket, ring, WINDOW, total=each))
            return trio.run(_rate, brokers.journal_address, lanes, count)
    finally:
        brokers.close()


async def _rate(journal: tuple[str, int], lanes: list[publishing.Lane], count: int) -> float:
    async with open_adapter(f"journal://{journal[0]}:{journal[1]}") as adapter, trio.open_nursery() as nursery:
        begun_s = time.perf_counter()
        nursery.start_soon(trio.to_thread.run_sync, publishing.publish_all, lanes, draining.TIMEOUT_S)
        while (offset := await draining.confirmed_offset(adapter, QUEUE)) < count:
            if time.perf_counter() - begun_s > draining.TIMEOUT_S:
                raise LoadError(f"{offset:,} of {count:,} messages were forwarded within {draining.TIMEOUT_S:.0f} s")
            await trio.sleep(_LOOK_INTERVAL_S)
        return count / (time.perf_counter() - begun_s)
