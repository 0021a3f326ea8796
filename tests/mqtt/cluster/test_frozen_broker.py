"""A broker that is frozen holds up the messages of a shared subscription no longer than docs/mqtt.md says."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import Properties, Version
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, running_cluster
from tests.mqtt.serving import Client

BOUND_S = 15.0
BUSY_S = 10.0
"""What a busy machine may add."""

KEPT = Properties(session_expiry_interval=3600)
FILTER = "$share/g/f/#"


async def connect(port: int, name: str) -> Client:
    client = Client(await trio.open_tcp_stream("127.0.0.1", port), Version.V5, patience_s=60)
    await client.connect(name, clean_start=False, properties=KEPT)
    return client


async def take_all(client: Client, found: Counter[bytes]) -> None:
    while True:
        found[(await client.message()).payload] += 1


@NEEDS_CLUSTER
@pytest.mark.long
@pytest.mark.timeout(180)
async def test_topics_stand_still_for_as_long_as_a_broker_is_frozen(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        frozen = cluster.brokers[0]
        first, second = await connect(cluster.mqtt_ports[0], "first"), await connect(cluster.mqtt_ports[1], "second")
        publisher = await connect(cluster.mqtt_ports[1], "publisher")
        for member in (first, second):
            await member.subscribe(FILTER, qos=2)
        at_first, at_second = Counter[bytes](), Counter[bytes]()
        async with trio.open_nursery() as nursery:
            for member, found in ((first, at_first), (second, at_second)):
                nursery.start_soon(take_all, member, found)
            for number in range(40):
                await publisher.publish(f"f/{number % 8}", b"%d" % number, 2)
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                began_s = trio.current_time()
                for number in range(40, 120):
                    await publisher.publish(f"f/{number % 8}", b"%d" % number, 2)
                # What the frozen one had claimed is its member's; all the rest comes to the other.
                with trio.fail_after(BOUND_S + BUSY_S - (trio.current_time() - began_s)):
                    while len(set(at_second) & {b"%d" % number for number in range(48, 120)}) < 72:
                        await trio.sleep(0.05)
                held_up_s = trio.current_time() - began_s
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            with trio.fail_after(60):
                while len(at_first) + len(at_second) < 120:
                    await trio.sleep(0.05)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        for client in (first, second, publisher):
            await client.stream.aclose()
        print(f"held up for {held_up_s:.1f} s")
        assert set((at_first + at_second).values()) == {1}, "at QoS 2 each comes once"
