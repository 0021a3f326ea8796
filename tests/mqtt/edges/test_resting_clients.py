"""Clients that are silent: their connections rest without a task, and nothing is different for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from broker_adapter.mqtt.transport.listeners import Peer
from broker_adapter.mqtt.transport.resting import MayRest
from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connect, Publish, Will
from tests.mqtt.edges.broker_process import broker_process
from tests.mqtt.edges.listening import Served
from tests.mqtt.edges.listening import serving as listening
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

CLIENTS = 1_000
MAX_BYTES_EACH = 10_000
"""With 10,000 clients it is less than 8 KB; with 1,000 what the broker allocates in larger pieces weighs more."""

pytestmark = pytest.mark.slow("waits until clients have been silent for a while")

ALONE = ("--store", "memory:", "--listen", "127.0.0.1:0", "--set", "access.anonymous=true")


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.02)


@attrs.frozen
class Scene:
    served: Serving
    listeners: Served

    async def client(self, client_id: str, **options: Any) -> Client:
        """A client on TCP that was accepted and has been silent for so long that its connection rests."""
        client = Client(await self.listeners.connect(), Version.V5)
        self.served._dialled.append(client.stream)
        wanted = self.resting + 1
        assert (await client.connect(client_id, **options)).reason_code == ReasonCode.SUCCESS
        await until(lambda: self.resting >= wanted)
        return client

    @property
    def resting(self) -> int:
        return len(self.listeners.listeners._resting)

    @property
    def connections(self) -> int:
        return self.listeners.listeners.connection_count


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with serving() as served:

        async def serve(stream: trio.abc.Stream, peer: Peer) -> MayRest | None:
            return await served.broker.serve_stream(
                stream, peer=peer.address, transport=peer.transport, may_rest=peer.may_rest
            )

        async with listening(serve) as listeners:
            yield Scene(served, listeners)


async def test_a_client_that_rests_is_answered_without_a_task() -> None:
    async with scene() as one:
        client = await one.client("quiet")
        watcher = await one.served.client("watcher")
        await watcher.subscribe("a")
        await client.silent()
        assert await client.publish("a", b"news", 1) == ReasonCode.SUCCESS
        assert (await watcher.message()).payload == b"news"
        assert one.resting == one.connections == 1


async def test_a_client_that_sends_much_gets_a_task_until_it_is_silent_again() -> None:
    async with scene() as one:
        client = await one.client("busy")
        with trio.fail_after(PATIENCE_S):
            while one.resting:
                await client.silent()
        await client.silent()
        await until(lambda: one.resting == 1)
        assert one.connections == 1


async def test_a_client_that_rests_gets_messages_without_a_task_of_its_own() -> None:
    async with scene() as one:
        client = Client(await one.listeners.connect(), Version.V5)
        await client.connect("quiet")
        await client.subscribe("a", qos=1)
        await until(lambda: one.resting == 1)
        await (await one.served.client("publisher")).publish("a", b"news", 1)
        assert (await client.expect(Publish)).payload == b"news"
        assert one.resting == 1
        await client.stream.aclose()


async def test_a_session_is_taken_over_from_a_connection_that_rests() -> None:
    async with scene() as one:
        first = await one.client("same")
        await one.served.client("same")
        await first.refused(ReasonCode.SESSION_TAKEN_OVER)
        await until(lambda: one.connections == 0)


async def test_keep_alive_ends_a_connection_that_rests() -> None:
    async with scene() as one:
        client = await one.client("quiet", keep_alive_s=2)
        await client.refused(ReasonCode.KEEP_ALIVE_TIMEOUT)
        await until(lambda: one.connections == 0)


@pytest.mark.parametrize("ends", ["closes", "resets"])
async def test_the_will_of_a_client_that_rests_is_published_when_it_is_gone(ends: str) -> None:
    async with scene() as one:
        watcher = await one.served.client("watcher")
        await watcher.subscribe("wills")
        client = await one.client("quiet", will=Will("wills", b"gone"))
        if ends == "resets":
            assert isinstance(client.stream, trio.SocketStream)
            client.stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER of 0 s: closing it sends RST
        await client.stream.aclose()
        assert (await watcher.message()).payload == b"gone"
        await until(lambda: one.connections == 0)


async def test_a_second_connect_of_a_client_that_rests_is_a_protocol_error() -> None:
    async with scene() as one:
        client = await one.client("quiet")
        await client.send(Connect("quiet"))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


async def test_clients_that_rest_are_disconnected_when_the_broker_stops() -> None:
    async with scene() as one:
        clients = [await one.client(f"quiet-{number}") for number in range(2)]
        await one.served.broker.stop()
        for client in clients:
            await client.refused(ReasonCode.SERVER_SHUTTING_DOWN)
        await one.listeners.listeners.wait_empty()


async def test_connections_that_rest_end_with_the_listeners() -> None:
    async with serving() as served:

        async def serve(stream: trio.abc.Stream, peer: Peer) -> MayRest | None:
            return await served.broker.serve_stream(
                stream, peer=peer.address, transport=peer.transport, may_rest=peer.may_rest
            )

        async with listening(serve) as listeners:
            client = await Scene(served, listeners).client("quiet")
        await client.refused(ReasonCode.SERVER_SHUTTING_DOWN)
        assert not served.broker._connections


def resident_bytes(pid: int) -> int:
    [line] = [one for one in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if one.startswith("Rss:")]
    return int(line.split()[1]) * 1024


@pytest.mark.own_interpreter("measures the memory of the broker")
async def test_an_idle_client_with_a_subscription_takes_less_than_ten_kilobytes(tmp_path: Path) -> None:
    """It took 20 KB when each of these connections had a task, and six empty queues."""
    async with broker_process(tmp_path, *ALONE) as broker, AsyncExitStack() as held:

        async def connect(number: int) -> None:
            client = await held.enter_async_context(broker.client(version=Version.V311))
            await client.connect(f"idle-{number}", keep_alive_s=600)
            await client.subscribe(f"devices/{number}/commands", qos=1)

        for number in range(50):  # what the first clients need is needed once
            await connect(number)
        before = resident_bytes(broker.process.pid)
        for number in range(50, 50 + CLIENTS):
            await connect(number)
        await until(lambda: resident_bytes(broker.process.pid) - before < MAX_BYTES_EACH * CLIENTS)
        assert await broker.stop() == 0
