"""PUBLISH from clients: acknowledged after the store, refused when it refuses, delivered as it was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker_adapter import open_adapter
from broker_adapter.mqtt_codec import EMPTY, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from journal.protocol.errors import ConnectionLostError
from shards.errors import DiskFullError, StorageError
from shards.position import Start
from tests.mqtt.serving import serving
from tests.mqtt.test_connect import Doorkeeper
from tests.mqtt.waiting_calls import call_after

BOTH = [Version.V311, Version.V5]
KEPT = Properties(session_expiry_interval=100)


class Refused:
    """An append that the store refused at once."""

    is_done = True

    def __init__(self, error: StorageError) -> None:
        self._error = error

    async def wait(self) -> Any:
        await trio.lowlevel.checkpoint()
        raise self._error

    def call_when_done(self, call: Callable[[], None]) -> None:
        call()

    def result_nowait(self) -> Any:
        raise self._error


class Held:
    """An append whose outcome is not known before the gate is open."""

    def __init__(self, pending: Any, gate: trio.Event) -> None:
        self._pending = pending
        self._gate = gate

    @property
    def is_done(self) -> bool:
        return self._gate.is_set() and self._pending.is_done

    async def wait(self) -> Any:
        await self._gate.wait()
        return await self._pending.wait()

    def call_when_done(self, call: Callable[[], None]) -> None:
        trio.lowlevel.spawn_system_task(call_after, self.wait, call)

    def result_nowait(self) -> Any:
        return self._pending.result_nowait()


class Wrapped:
    """A store whose appends and commits go wrong or take long, for some shards."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self.error: StorageError | None = None
        self.gate = trio.Event()
        self.gate.set()
        self.is_lost = False
        self.losses = 0

    async def create_shard(self, *arguments: Any, **options: Any) -> Any:
        await self._pass()
        return await self._adapter.create_shard(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def append_nowait(self, shard: str, records: Sequence[Any], **options: Any) -> Any:
        if self.error is not None and shard == "a":
            return Refused(self.error)
        return Held(self._adapter.append_nowait(shard, records, **options), self.gate)

    async def commit(self, changes: Any) -> Any:
        if self.error is not None and any(shard == "a" for shard, _ in changes.appends):
            await trio.lowlevel.checkpoint()
            raise self.error
        await self.gate.wait()
        await self._pass()
        return await self._adapter.commit(changes)

    async def _pass(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_lost:
            self.losses += 1
            raise ConnectionLostError("the connection is lost")


async def values(adapter: Any, shard: str) -> list[bytes]:
    return [record.value for record in (await adapter.read(shard, Start.earliest())).records]


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_is_acknowledged_only_after_the_store_has_it(version: Version, qos: int) -> None:
    async with open_adapter("memory:") as adapter:
        store = Wrapped(adapter)
        async with serving(store) as served:  # type: ignore[arg-type]
            client = await served.client("c", version)
            store.gate = trio.Event()
            await client.send(Publish("a", b"x", qos, packet_id=7))
            await wait_all_tasks_blocked(0.01)
            await client.silent()
            store.gate.set()
            assert (await client.expect(Puback if qos == 1 else Pubrec)).packet_id == 7
            assert await values(adapter, "a") == [b"x"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
async def test_a_refusal_of_the_store_reaches_the_publisher(qos: int, retain: bool) -> None:
    async with open_adapter("memory:") as adapter:
        store = Wrapped(adapter)
        async with serving(store) as served:  # type: ignore[arg-type]
            client = await served.client()
            store.error = DiskFullError("the disk is full")
            assert await client.publish("a", b"x", qos, retain=retain) == ReasonCode.QUOTA_EXCEEDED
            assert await client.publish("b", b"y", qos, retain=retain) == ReasonCode.SUCCESS
            store.error = None
            assert await client.publish("a", b"z", qos, retain=retain) == ReasonCode.SUCCESS
            assert await values(adapter, "a") == [b"z"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_3_gets_no_acknowledgement_of_what_the_store_refused(qos: int) -> None:
    async with open_adapter("memory:") as adapter:
        store = Wrapped(adapter)
        async with serving(store) as served:  # type: ignore[arg-type]
            client = await served.client("c", Version.V311)
            store.error = DiskFullError("the disk is full")
            await client.send(Publish("a", b"x", qos, packet_id=7))
            await client.closed()
            store.error = None
            client = await served.client("c", Version.V311)
            assert await client.publish("a", b"x", qos) == ReasonCode.SUCCESS


@pytest.mark.parametrize("version", BOTH)
async def test_while_the_store_is_lost_clients_stay_and_their_publishes_wait(version: Version) -> None:
    async with open_adapter("memory:") as adapter:
        store = Wrapped(adapter)
        async with serving(store) as served:  # type: ignore[arg-type]
            client = await served.client("c", version, clean_start=False, properties=KEPT if version == 5 else EMPTY)
            store.is_lost = True
            await client.send(
                Publish("new", b"1", 1, packet_id=1),
                Publish("new", b"2", 2, packet_id=2),
                Publish("new", b"3", 1, retain=True, packet_id=3),
                Publish("new", b"4", 1, packet_id=4),
            )
            while store.losses < 3:
                await client.silent()
            store.is_lost = False
            assert [(await client.receive()) for _ in range(4)] == [Puback(1), Pubrec(2), Puback(3), Puback(4)]
            assert await values(adapter, "new") == [b"1", b"2", b"3", b"4"]


async def test_a_subscription_that_waits_for_the_store_does_not_hold_up_the_connection() -> None:
    async with open_adapter("memory:") as adapter:
        store = Wrapped(adapter)
        async with serving(store) as served:  # type: ignore[arg-type]
            client = await served.client("c", properties=KEPT)
            store.gate = trio.Event()
            await client.send(Subscribe(5, (SubscriptionRequest("a"),)))
            await wait_all_tasks_blocked(0.01)
            await client.silent()
            store.gate.set()
            assert (await client.expect(Suback)).packet_id == 5


@pytest.mark.parametrize("version", BOTH)
async def test_a_message_of_qos_2_that_comes_again_is_stored_once(version: Version) -> None:
    async with serving() as served:
        client = await served.client("c", version)
        message = Publish("a", b"x", 2, packet_id=5)
        for dup in (False, True):
            message.dup = dup
            await client.send(message)
            assert await client.expect(Pubrec) == Pubrec(5)
        await client.send(message, message)
        assert [await client.expect(Pubrec) for _ in range(2)] == [Pubrec(5)] * 2
        await client.send(Pubrel(5), Pubrel(5))
        assert [await client.expect(Pubcomp) for _ in range(2)] == [Pubcomp(5)] * 2
        assert await values(served.adapter, "a") == [b"x"]
        # The identifier is free again.
        await client.send(Publish("a", b"y", 2, packet_id=5))
        await client.expect(Pubrec)
        assert await values(served.adapter, "a") == [b"x", b"y"]


@pytest.mark.parametrize("dup", [True, False])
async def test_a_message_of_qos_2_that_comes_twice_in_one_receive_is_stored_once(dup: bool) -> None:
    """A broker that was frozen finds both in its receive buffer: some clients repeat on the same connection."""
    message = Publish("a", b"x", 2, packet_id=5)
    async with serving() as served:
        client = await served.client("c")
        await client.send(Publish("a", b"w", 2, packet_id=4), message, msgspec.structs.replace(message, dup=dup))
        assert [await client.expect(Pubrec) for _ in range(3)] == [Pubrec(4), Pubrec(5), Pubrec(5)]
        assert await values(served.adapter, "a") == [b"w", b"x"]


@pytest.mark.parametrize("dup", [True, False])
async def test_a_message_of_qos_2_is_stored_once_over_two_connections(dup: bool) -> None:
    """Some clients forget DUP when they send again: paho does after a second attempt to connect that failed."""
    async with serving() as served:
        kept = Properties(session_expiry_interval=100)
        client = await served.client("c", properties=kept)
        message = Publish("a", b"x", 2, packet_id=5)
        await client.send(message)
        await client.expect(Pubrec)
        await client.stream.aclose()
        client = await served.client("c", clean_start=False, properties=kept)
        message.dup = dup
        await client.send(message)
        await client.expect(Pubrec)
        await client.send(Pubrel(5))
        await client.expect(Pubcomp)
        assert await values(served.adapter, "a") == [b"x"]


@pytest.mark.parametrize("change", [{"topic": "b"}, {"payload": b"y"}])
async def test_another_message_of_qos_2_under_an_identifier_that_is_not_released_is_stored(
    change: dict[str, Any],
) -> None:
    """Its client has forgotten the first one. With DUP it would be a repetition of that, whatever it says."""
    kept = Properties(session_expiry_interval=100)
    first = Publish("a", b"x", 2, packet_id=5)
    async with serving() as served:
        client = await served.client("c", properties=kept)
        await client.send(first)
        await client.expect(Pubrec)
        await client.stream.aclose()
        client = await served.client("c", clean_start=False, properties=kept)
        other = msgspec.structs.replace(first, **change)
        await client.send(msgspec.structs.replace(other, dup=True), other)
        assert [await client.expect(Pubrec) for _ in range(2)] == [Pubrec(5)] * 2
        assert await values(served.adapter, other.topic) == ([b"x"] * (other.topic == "a") + [other.payload])


@pytest.mark.parametrize(
    ("topic", "reason_code"),
    [
        ("secret/a", ReasonCode.NOT_AUTHORIZED),
        ("$SYS/broker/uptime", ReasonCode.NOT_AUTHORIZED),
        ("$mqtt/live/0", ReasonCode.NOT_AUTHORIZED),
        ("$delayed/5/secret/a", ReasonCode.NOT_AUTHORIZED),
        ("$delayed/soon/a", ReasonCode.TOPIC_NAME_INVALID),
    ],
)
async def test_topics_that_a_client_may_not_publish_to(topic: str, reason_code: ReasonCode) -> None:
    async with serving(access=Doorkeeper()) as served:
        client = await served.client("c", password=b"sesame")
        for qos in (1, 2):
            assert await client.publish(topic, b"x", qos) == reason_code
        await client.publish(topic, b"x", 0)
        await client.silent()
        # MQTT 3.1.1 has no word for a refusal: it is acknowledged and dropped, as that standard has it.
        old = await served.client("old", Version.V311, username="u", password=b"sesame")
        for qos in (0, 1, 2):
            await old.publish(topic, b"x", qos)
        assert [shard.name for shard in await served.adapter.list_shards("secret/#")] == []


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
async def test_a_message_arrives_with_the_lower_qos(version: Version, published: int, subscribed: int) -> None:
    async with serving() as served:
        client = await served.client("c", version)
        assert await client.subscribe("a/+", qos=subscribed) == (ReasonCode(subscribed),)
        publisher = await served.client("p", version)
        await publisher.publish("a/b", b"x", published)
        message = await client.message()
        assert (message.topic, message.payload, message.qos) == ("a/b", b"x", min(published, subscribed))
        await client.silent()


async def test_properties_go_from_end_to_end() -> None:
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        user_properties=(("a", "1"), ("a", "2"), ("", "")),
    )
    async with serving() as served:
        client, old = await served.client("c"), await served.client("old", Version.V311)
        for one in (client, old):
            await one.subscribe("a", qos=1)
        publisher = await served.client("p")
        for qos in (0, 1, 2):
            await publisher.publish("a", b"x", qos, properties=properties)
            assert (await client.message()).properties == properties
            assert (await old.message()).properties == EMPTY


async def test_aliases_save_the_publisher_the_topic() -> None:
    async with serving() as served:
        client = await served.client("c")
        await client.subscribe("#")
        publisher = await served.client("p")
        alias = Properties(topic_alias=1)
        for topic in ("a", "", "b", ""):
            await publisher.send(Publish(topic, topic.encode(), properties=alias))
        assert [(await client.message()).topic for _ in range(4)] == ["a", "a", "b", "b"]


async def test_order_is_kept_by_topic_and_qos() -> None:
    async with serving() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe("#", qos=2)
        expected: dict[tuple[str, int], list[bytes]] = {}
        batch: list[Publish] = []
        for number in range(300):
            topic, qos = f"t/{number % 3}", number % 2 + 1
            payload = b"%d" % number
            batch.append(Publish(topic, payload, qos, retain=number % 7 == 0, packet_id=number + 1))
            expected.setdefault((topic, qos), []).append(payload)
        await publisher.send(*batch)
        found: dict[tuple[str, int], list[bytes]] = {}
        for _ in batch:
            message = await client.message()
            found.setdefault((message.topic, message.qos), []).append(message.payload)
        assert found == expected


@pytest.mark.parametrize(
    "ending", [lambda client: client.leave(), lambda client: client.stream.aclose()], ids=["leave", "close"]
)
async def test_what_was_published_right_before_the_end_is_stored(ending: Callable[[Any], Any]) -> None:
    async with serving() as served:
        client = await served.client("c")
        await client.subscribe("#")
        publisher = await served.client("p")
        await publisher.send(*(Publish(f"new/{number}", b"x") for number in range(20)))
        await ending(publisher)
        assert {(await client.message()).topic for _ in range(20)} == {f"new/{number}" for number in range(20)}


async def test_a_long_topic_finds_its_subscribers() -> None:
    topic = "long/" + "x" * 3000
    async with serving() as served:
        client = await served.client("c")
        await client.subscribe("long/#", qos=1)
        await (await served.client("p")).publish(topic, b"x", 1)
        assert (await client.message()).topic == topic
