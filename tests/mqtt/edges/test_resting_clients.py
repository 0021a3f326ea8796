"""Clients that are silent: their connections rest without a task, and nothing is different for them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from broker_adapter.mqtt.transport.listeners import Peer
from broker_adapter.mqtt.transport.resting import MayRest
from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connect, Publish, Will
from tests.mqtt.edges.listening import Served
from tests.mqtt.edges.listening import serving as listening
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

CLIENTS = 200
MAX_BYTES_EACH = 8_000

pytestmark = pytest.mark.slow("waits until clients have been silent for a while")


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


async def test_an_idle_client_with_a_subscription_keeps_less_than_eight_kilobytes_in_use() -> None:
    """It kept 20 KB when each of these connections had a task, and six empty queues.

    What the process has from the system is another figure: that of clients that connect at the same time is higher,
    as their tasks end only after a second of silence, and stays so until later clients use it. `idle.mqtt` of the
    benchmarks measures it.
    """
    async with AsyncExitStack() as held, scene() as one:

        async def connect(number: int) -> None:
            # Nothing of the client but its socket counts.
            sock = held.enter_context(trio.socket.socket())
            await sock.connect(("127.0.0.1", one.listeners.ports["mqtt"]))
            client = Client(trio.SocketStream(sock), Version.V311)
            await client.connect(f"idle-{number}", keep_alive_s=600)
            await client.subscribe(f"devices/{number}/commands", qos=1)

        async def in_use_with(clients: int) -> int:
            for number in range(one.resting, clients):
                await connect(number)
            await until(lambda: one.resting == clients)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before = await in_use_with(50)  # what the first clients need is needed once
            assert await in_use_with(50 + CLIENTS) - before < MAX_BYTES_EACH * CLIENTS
        finally:
            tracemalloc.stop()
