"""A broker that is cancelled as a whole, as after a fault of one of its parts, while clients are connected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import memory_stream_pair

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.mqtt.broker.broker import Broker
from broker_adapter.mqtt.connection import connection
from broker_adapter.mqtt_codec import Version
from broker_adapter.mqtt_codec.packets import Publish
from tests.mqtt.serving import AllowAll, Client

pytestmark = pytest.mark.trio
PATIENCE_S = 5.0
CLIENTS = 10


class NeverAnswered:
    """A pending append to a store that does not answer."""

    is_done = False

    async def wait(self) -> None:
        await trio.sleep_forever()

    def call_when_done(self, call: Callable[[], None]) -> None:
        pass

    def result_nowait(self) -> None:
        raise trio.WouldBlock


@pytest.mark.parametrize("publishes", [False, True])
async def test_connections_end_before_the_nursery_of_their_tasks(
    publishes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that ended after the tasks of the broker raised "Nursery is closed to new arrivals"."""
    monkeypatch.setattr(connection, "_GRACE_S", 0.3)  # a session with unanswered publishes is not closed
    clients: list[Client] = []
    async with open_adapter("memory:") as adapter:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                broker = Broker(adapter, "one", access=AllowAll())
                await nursery.start(broker.run)
                for number in range(CLIENTS):
                    here, there = memory_stream_pair()
                    nursery.start_soon(serve, broker, there)
                    client = Client(here, Version.V5, patience_s=PATIENCE_S)
                    await client.connect(f"client-{number}")
                    clients.append(client)
                if publishes:
                    await leave_unanswered(adapter, clients, monkeypatch)
                nursery.cancel_scope.cancel()
        for client in clients:
            with pytest.raises(EOFError):
                await client.receive()


async def serve(broker: Broker, stream: trio.abc.Stream) -> None:
    await broker.serve_stream(stream, peer="test", transport="tcp")


async def leave_unanswered(adapter: StorageAdapter, clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client publishes a message that the store has not answered when this returns."""
    await clients[0].publish("a", b"1", 1)
    monkeypatch.setattr(adapter, "append_nowait", lambda *_, **__: NeverAnswered())
    for client in clients:
        await client.send(Publish("a", b"2", 1, packet_id=2))
        await client.silent()
