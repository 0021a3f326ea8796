"""Clients see one broker, although they are connected to different processes of it."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import Properties, ReasonCode
from broker_adapter.mqtt_codec.packets import Disconnect
from tests.mqtt.clients.paho_client import PahoClient
from tests.mqtt.edges.broker_process import BrokerProcess
from tests.mqtt.processes.several import client_at, several_processes, workers
from tests.patience import PATIENCE_S

DURABLE = Properties(session_expiry_interval=3600)

pytestmark = pytest.mark.slow("starts a server and a broker of several processes")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_reach_subscribers_at_the_other_process_once_and_in_order(tmp_path: Path, qos: int) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        first, second = workers(broker)
        async with client_at(broker, first, "publisher") as publisher, client_at(broker, second, "sub") as subscriber:
            await subscriber.subscribe("a/+", qos=qos)
            payloads = [b"%d" % number for number in range(20)]
            for payload in payloads:
                assert await publisher.publish("a/b", payload, qos=qos) == ReasonCode.SUCCESS
            assert [(await subscriber.message()).payload for _ in payloads] == payloads
            await subscriber.silent()
        assert await broker.stop() == 0


async def test_publishes_over_many_connections_reach_every_one_of_many_subscribers(tmp_path: Path) -> None:
    def converse(port: int) -> None:
        with PahoClient(port) as one, PahoClient(port) as other, PahoClient(port) as third, PahoClient(port) as fourth:
            clients = [one, other, third, fourth]
            for client in clients:
                client.subscribe("all/#", 1)
            for number, client in enumerate(clients):
                client.publish("all/x", b"%d" % number, 1 + number % 2)
            for client in clients:
                assert sorted(each.payload for each in client.wait_messages(4)) == [b"0", b"1", b"2", b"3"]

    async with several_processes(tmp_path, "--anonymous", count=3) as broker:
        assert len(workers(broker)) == 3
        await trio.to_thread.run_sync(converse, broker.ports["mqtt"])
        assert await broker.stop() == 0


async def test_what_is_retained_at_one_process_comes_from_the_other(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        first, second = workers(broker)
        async with client_at(broker, first, "publisher") as publisher:
            assert await publisher.publish("state", b"kept", qos=1, retain=True) == ReasonCode.SUCCESS
        async with client_at(broker, second, "reader") as reader:
            await reader.subscribe("state", qos=1)
            message = await reader.message()
            assert (message.payload, message.retain) == (b"kept", True)
        assert await broker.stop() == 0


async def test_a_client_that_connects_to_the_other_process_takes_its_session_there(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        first, second = workers(broker)
        async with client_at(broker, first, "roams", properties=DURABLE) as before:
            await before.subscribe("a/#", qos=1)
            async with (
                client_at(broker, second, "roams", clean_start=False, properties=DURABLE) as after,
                client_at(broker, first, "publisher") as publisher,
            ):
                assert (await before.expect(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
                assert await publisher.publish("a/b", b"found", qos=1) == ReasonCode.SUCCESS
                assert (await after.message()).payload == b"found"
        assert await broker.stop() == 0


async def test_a_killed_process_is_started_again_and_its_clients_continue_without_a_loss(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        first, second = workers(broker)
        async with client_at(broker, second, "away", properties=DURABLE) as away:
            await away.subscribe("a/#", qos=1)
        async with client_at(broker, first, "publisher") as publisher:
            async with client_at(broker, second, "sub", properties=DURABLE) as subscriber:
                await subscriber.subscribe("a/#", qos=1)
                assert await publisher.publish("a/b", b"0", qos=1) == ReasonCode.SUCCESS
                assert (await subscriber.message()).payload == b"0"
                os.kill(second, signal.SIGKILL)
                await subscriber.closed()
            # The other process serves meanwhile.
            for number in range(1, 10):
                assert await publisher.publish("a/b", b"%d" % number, qos=1) == ReasonCode.SUCCESS
            await broker.said("a process of the broker is ready again")
            assert "ended='killed by signal 9'" in broker.log
            kept, third = workers(broker)
            assert kept == first
            payloads = [b"%d" % number for number in range(10)]
            async with client_at(broker, third, "sub", clean_start=False, properties=DURABLE) as subscriber:
                found = await _payloads_until(subscriber, b"9")
                # At least once: what was acknowledged just before the end may come again.
                assert [payload for payload, _ in itertools.groupby(found)][-9:] == payloads[1:]
            async with client_at(broker, first, "away", clean_start=False, properties=DURABLE) as away:
                assert await _payloads_until(away, b"9") == payloads
        assert await broker.stop() == 0


async def test_a_killed_process_does_not_keep_new_clients_waiting(tmp_path: Path) -> None:
    """Connections that the kernel passed to a dead process would wait for its successor."""
    async with several_processes(tmp_path, "--anonymous") as broker:
        _, second = workers(broker)
        os.kill(second, signal.SIGKILL)
        await broker.said("has ended, and is started again")
        await _many_clients(broker)
        assert await broker.stop() == 0


async def _payloads_until(client: object, last: bytes) -> list[bytes]:
    found = []
    while not found or found[-1] != last:
        found.append((await client.message()).payload)  # type: ignore[attr-defined]
    return found


async def _many_clients(broker: BrokerProcess) -> None:
    with trio.fail_after(PATIENCE_S):
        for number in range(20):
            async with broker.client() as client:
                assert (await client.connect(f"client-{number}")).reason_code == ReasonCode.SUCCESS
