"""What clients can do before they are accepted: their memory is bounded for all of them together, and so is the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.connection.services import FREE_BYTES, ConnectBudget
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.transport.listeners import Peer
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect, Will
from tests.mqtt.edges.listening import logged, websocket_over
from tests.mqtt.edges.listening import serving as listening
from tests.mqtt.serving import Client, serving
from tests.mqtt.test_connect import Doorkeeper
from tests.patience import PATIENCE_S

LONG = encode(Connect("long", will=Will("will", bytes(60_000))), Version.V5)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


async def begin(client: Client, size_bytes: int = 50_000) -> None:
    await client.stream.send_all(LONG[:size_bytes])


async def test_unfinished_connects_of_all_clients_together_are_bounded() -> None:
    async with serving(limits=Limits(max_unaccepted_bytes=120_000)) as served:
        services = served.broker._services
        assert services is not None
        budget = services.connect_budget
        first, second, third = (served.dial() for _ in range(3))
        for client, used_bytes in ((first, 50_000 - FREE_BYTES), (second, 2 * (50_000 - FREE_BYTES))):
            await begin(client)
            await until(partial(lambda wanted: budget.used_bytes == wanted, used_bytes))
        await begin(third)
        await third.closed()
        assert served.broker.statistics.refused["memory"] == 1
        # A CONNECT that comes in one piece needs no room.
        other = await served.client("other")
        for client in (first, second):
            await client.stream.send_all(LONG[50_000:])
            assert (await client.expect(Connack)).reason_code == ReasonCode.SUCCESS
        assert budget.used_bytes == 0
        await other.silent()


async def test_what_a_client_held_is_free_when_it_has_gone() -> None:
    async with serving(limits=Limits(max_unaccepted_bytes=50_000)) as served:
        services = served.broker._services
        assert services is not None
        for _ in range(3):
            client = served.dial()
            await begin(client)
            await until(lambda: services.connect_budget.used_bytes > 0)
            await client.stream.aclose()
            await until(lambda: services.connect_budget.used_bytes == 0)
        assert not served.broker.statistics.refused["memory"]


async def test_a_complete_connect_counts_until_its_client_is_accepted() -> None:
    """Passwords are checked two at a time: a thousand CONNECTs of half a megabyte could wait for that."""
    may_go_on = trio.Event()

    class Slow(Doorkeeper):
        async def authenticate(
            self, client_id: str, username: str | None, password: bytes | None, peer: str, certificate_name: str = ""
        ) -> Principal | None:
            if client_id == "long":
                await may_go_on.wait()
            return Principal(client_id)

    async with serving(access=Slow(), limits=Limits(max_unaccepted_bytes=100_000)) as served:
        services = served.broker._services
        assert services is not None
        budget = services.connect_budget
        first, second = served.dial(), served.dial()
        await first.stream.send_all(LONG)
        await until(lambda: budget.used_bytes == len(LONG) - FREE_BYTES)
        await second.stream.send_all(LONG)
        await second.closed()
        other = await served.client("other")
        may_go_on.set()
        assert (await first.expect(Connack)).reason_code == ReasonCode.SUCCESS
        await until(lambda: budget.used_bytes == 0)
        await first.silent()
        await other.silent()


def fragment(payload: bytes, *, is_first: bool, is_last: bool = False) -> bytes:
    """A part of a binary message as a client frames it; its mask is 0."""
    return bytes(((2 if is_first else 0) | 0x80 * is_last, 0x80 | 126)) + len(payload).to_bytes(2) + bytes(4) + payload


async def test_fragments_of_messages_count_before_the_message_is_complete() -> None:
    """A message that is never complete is no packet: 20,000 connections could hold 256 KiB each."""
    async with serving(limits=Limits(max_unaccepted_bytes=120_000)) as served:
        services = served.broker._services
        assert services is not None
        budget = services.connect_budget

        async def serve(stream: trio.abc.Stream, peer: Peer) -> None:
            await served.broker.serve_stream(stream, peer=peer.address, transport=peer.transport)

        async with listening(serve, names=["websocket"]) as listeners, AsyncExitStack() as held:
            streams = [await held.enter_async_context(await listeners.connect("websocket")) for _ in range(3)]
            for at, stream in enumerate(streams):
                await held.enter_async_context(websocket_over(stream))
                counted = budget.used_bytes
                for number in range(2):
                    await stream.send_all(fragment(bytes(25_000), is_first=number == 0))
                if at < 2:
                    await until(partial(lambda wanted: budget.used_bytes == wanted, counted + 50_000 - FREE_BYTES))
            await until(lambda: served.broker.statistics.refused["memory"] == 1)
            assert budget.used_bytes == 2 * (50_000 - FREE_BYTES)
        await until(lambda: budget.used_bytes == 0)


async def test_a_connect_in_fragments_is_accepted_and_counts_no_more_then() -> None:
    async with serving(limits=Limits(max_unaccepted_bytes=120_000)) as served:
        services = served.broker._services
        assert services is not None
        budget = services.connect_budget

        async def serve(stream: trio.abc.Stream, peer: Peer) -> None:
            await served.broker.serve_stream(stream, peer=peer.address, transport=peer.transport)

        async with listening(serve, names=["websocket"]) as listeners:
            stream = await listeners.connect("websocket")
            async with websocket_over(stream) as client:
                await stream.send_all(fragment(LONG[:50_000], is_first=True))
                await until(lambda: budget.used_bytes == 50_000 - FREE_BYTES)
                await stream.send_all(fragment(LONG[50_000:], is_first=False, is_last=True))
                with trio.fail_after(PATIENCE_S):
                    answer = await client.get_message()
                assert isinstance(answer, bytes)
                assert answer[3] == ReasonCode.SUCCESS
                assert budget.used_bytes == 0
                await stream.send_all(fragment(bytes(60_000), is_first=True))
                await (await served.client("other")).silent()
                assert budget.used_bytes == 0


def test_a_short_connect_in_parts_does_not_count() -> None:
    budget = ConnectBudget(10)
    assert budget.replace(0, FREE_BYTES) == 0
    assert budget.replace(0, FREE_BYTES + 10) == 10
    assert budget.replace(0, FREE_BYTES) == 0
    assert budget.replace(0, FREE_BYTES + 1) == -1
    assert budget.used_bytes == 10
    assert budget.replace(10, FREE_BYTES + 11) == -1
    assert budget.used_bytes == 0


@pytest.mark.parametrize(
    "connect",
    [
        Connect("c", password=b"sesame", username="u", will=Will("secret/" + "\u00e9" * 30_000)),
        Connect("c", password=b"sesame", username="u", will=Will("$" + "x" * 60_000)),
        Connect("reserved-c", password=b"sesame", username="u" * 60_000),
        Connect("c", properties=Properties(authentication_method="m" * 60_000)),
    ],
    ids=["will", "reserved", "user", "method"],
)
async def test_what_a_client_sent_is_shortened_in_the_log(connect: Connect) -> None:
    """A refused will topic took 224 KB of it."""
    async with serving(access=Doorkeeper()) as served:
        client = served.dial()
        with logged() as entries:
            await client.send(connect)
            assert (await client.expect(Connack)).reason_code >= ReasonCode.UNSPECIFIED_ERROR
            await client.closed()
        assert entries
        assert sum(len(str(entry)) for entry in entries) < 1_000
