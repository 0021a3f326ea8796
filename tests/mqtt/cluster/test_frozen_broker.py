"""What a frozen broker has is delayed no longer than the table in docs/mqtt.md says."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Disconnect, Pubcomp, Publish, Pubrec, Pubrel, Will
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, running_cluster
from tests.mqtt.serving import Client

GROUP_S = 15.0
LEASE_S = 25.0
TIMER_S = 3.0
TAKEOVER_S = 2.0
"""The documented times: of a group, of wills and expiries, of another broker's timer, of a session."""

BUSY_S = 10.0
"""What a busy machine may add."""

DELAY_S = 4

KEPT = Properties(session_expiry_interval=3600)
FILTER = "$share/g/f/#"


async def connect(port: int, name: str, will: Will | None = None) -> Client:
    while True:
        client = Client(await trio.open_tcp_stream("127.0.0.1", port), Version.V5, patience_s=60)
        answer = await client.connect(name, clean_start=False, properties=KEPT, will=will)
        if answer.reason_code != ReasonCode.SERVER_UNAVAILABLE:
            assert answer.reason_code == ReasonCode.SUCCESS
            return client
        # A busy machine stopped this broker for a second, so it refuses clients for a moment.
        await client.stream.aclose()


class Member:
    """A client in a group that takes what comes at QoS 2, and continues its session after a lost connection.

    Attributes:
        found: How often each payload was delivered.
        lost: How often the broker said that it does not own the session any more: a freeze may outlast its lease.
    """

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name
        self._begun: set[int] = set()
        self.found = Counter[bytes]()
        self.lost = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take messages for ever. Started when the client is subscribed."""
        client = await connect(self._port, self._name)
        try:
            await client.subscribe(FILTER, qos=2)
            task_status.started()
            while True:
                with suppress(EOFError):
                    while True:
                        await self._take(client, await client.receive())
                await client.stream.aclose()
                client = await connect(self._port, self._name)
        finally:
            await trio.aclose_forcefully(client.stream)

    async def _take(self, client: Client, packet: Packet) -> None:
        match packet:
            case Publish(packet_id=packet_id, payload=payload):
                # Delivered with the first PUBLISH; one with the same identifier before PUBREL is the same message.
                self.found[payload] += packet_id not in self._begun
                self._begun.add(packet_id)
                await client.send(Pubrec(packet_id))
            case Pubrel(packet_id=packet_id):
                self._begun.discard(packet_id)
                await client.send(Pubcomp(packet_id))
            case Disconnect(reason_code=ReasonCode.SESSION_TAKEN_OVER):
                self.lost += 1
            case _:
                raise AssertionError(f"{self._name} received {packet}")


@NEEDS_CLUSTER
@pytest.mark.slow("freezes a broker until its share of a group goes to others")
@pytest.mark.timeout(180)
async def test_topics_stand_still_for_as_long_as_a_broker_is_frozen(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        frozen = cluster.brokers[0]
        first, second = Member(cluster.mqtt_ports[0], "first"), Member(cluster.mqtt_ports[1], "second")
        publisher = await connect(cluster.mqtt_ports[1], "publisher")
        async with trio.open_nursery() as nursery:
            for member in (first, second):
                await nursery.start(member.run)
            for number in range(40):
                await publisher.publish(f"f/{number % 8}", b"%d" % number, 2)
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                began_s = trio.current_time()
                for number in range(40, 120):
                    await publisher.publish(f"f/{number % 8}", b"%d" % number, 2)
                # What the frozen one had claimed is its member's; all the rest comes to the other.
                with trio.fail_after(GROUP_S + BUSY_S - (trio.current_time() - began_s)):
                    while len(second.found.keys() & {b"%d" % number for number in range(48, 120)}) < 72:
                        await trio.sleep(0.05)
                held_up_s = trio.current_time() - began_s
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            with trio.fail_after(60):
                while len(first.found) + len(second.found) < 120:
                    await trio.sleep(0.05)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        await publisher.stream.aclose()
        print(f"held up for {held_up_s:.1f} s")
        assert set((first.found + second.found).values()) == {1}, "at QoS 2 each comes once"
        assert not second.lost, "its broker was not frozen"


@NEEDS_CLUSTER
@pytest.mark.slow("freezes a broker until its lease has expired")
@pytest.mark.timeout(180)
async def test_sessions_timers_and_wills_of_a_frozen_broker_go_on_at_others(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        at_frozen, elsewhere, _ = cluster.mqtt_ports
        watcher = await connect(elsewhere, "watcher")
        await watcher.subscribe("seen/#", qos=2)
        mortal = await connect(at_frozen, "mortal", Will("seen/will", b"will", 2))
        mover = await connect(at_frozen, "mover")
        await mover.subscribe("for/mover", qos=2)
        await mover.publish(f"$delayed/{DELAY_S}/seen/delayed", b"delayed", 1)
        due_s = trio.current_time() + DELAY_S
        os.kill(cluster.brokers[0].pid, signal.SIGSTOP)
        try:
            frozen_s = trio.current_time()
            with trio.fail_after(TAKEOVER_S + BUSY_S):
                moved = await connect(elsewhere, "mover")
            await watcher.publish("for/mover", b"there", 2)
            assert (await moved.message()).payload == b"there"
            with trio.fail_after(due_s + TIMER_S + BUSY_S - trio.current_time()):
                assert (await watcher.message()).payload == b"delayed"
            with trio.fail_after(frozen_s + LEASE_S + BUSY_S - trio.current_time()):
                assert (await watcher.message()).payload == b"will"
        finally:
            os.kill(cluster.brokers[0].pid, signal.SIGCONT)
        # When the broker goes on it closes the connections whose sessions it has lost, and publishes nothing again.
        for client in (mover, mortal):
            with suppress(EOFError):
                while True:
                    assert isinstance(await client.receive(), Disconnect)
        await watcher.silent()
        await moved.silent()
        for client in (watcher, mortal, mover, moved):
            await client.stream.aclose()
