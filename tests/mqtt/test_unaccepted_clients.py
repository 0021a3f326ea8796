"""What clients can do before they are accepted: their memory is bounded for all of them together, and so is the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.connection.services import FREE_BYTES, ConnectBudget
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect, Will
from tests.mqtt.edges.listening import logged
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
