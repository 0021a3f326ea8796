"""Messages that a bridge takes: they are in its queue before their publisher has an acknowledgement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import Overflow, QueueSettings, look, names
from broker_adapter.mqtt.model.storage_rules import Storage, StorageRule, StorageRules
from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Puback, Publish, Will
from broker_adapter.sinks import Sink, SinkContext
from shards.errors import ShardNotFoundError
from shards.format.record import StoredRecord
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

SHARD = names.shard_of("warehouse")


@asynccontextmanager
async def no_sink(_context: SinkContext) -> AsyncIterator[Sink]:
    raise AssertionError("no process drives this bridge")
    yield


def bridge(settings: QueueSettings, *topics: str, name: str = "warehouse") -> BridgeSpec:
    return BridgeSpec(name=name, topics=topics or ("plant/#",), open_sink=no_sink, queue=settings, drive=False)


@asynccontextmanager
async def bridged(*specs: BridgeSpec, rules: StorageRules | None = None) -> AsyncIterator[Serving]:
    async with open_adapter("memory:") as adapter, trio.open_nursery() as nursery:
        bridges = Bridges(adapter, specs or (bridge(QueueSettings()),), "one")
        await nursery.start(bridges.run)
        async with serving(adapter, queue_routing=bridges.queue_routing, rules=rules) as served:
            yield served
        nursery.cancel_scope.cancel()


async def stored(adapter: StorageAdapter, shard: str = SHARD) -> list[tuple[str, bytes]]:
    """Topic and value of all records of a shard."""
    try:
        found = await adapter.read(shard, 0)
    except ShardNotFoundError:
        return []
    return [(record.topic, record.value) for record in found.records if isinstance(record, StoredRecord)]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_is_in_the_queue_and_in_its_shard_when_it_is_acknowledged(qos: int) -> None:
    async with bridged() as served:
        client = await served.client()
        assert await client.publish("plant/a", b"1", qos) < ReasonCode.UNSPECIFIED_ERROR
        await client.silent()
        assert await stored(served.adapter) == [("plant/a", b"1")]
        if qos:
            assert await stored(served.adapter, "plant/a") == [("", b"1")]


async def test_only_the_topics_of_the_bridge_go_into_its_queue_and_several_may_take_the_same() -> None:
    both = bridge(QueueSettings()), bridge(QueueSettings(), "+/b", "plant/c", name="other")
    async with bridged(*both) as served:
        client = await served.client()
        for topic in ("plant/a", "plant/b", "office/b", "plant/c", "office/x"):
            await client.publish(topic, b"x", 1)
        assert [topic for topic, _ in await stored(served.adapter)] == ["plant/a", "plant/b", "plant/c"]
        others = await stored(served.adapter, names.shard_of("other"))
        assert [topic for topic, _ in others] == ["plant/b", "office/b", "plant/c"]


async def test_many_messages_at_once_keep_their_order_over_all_topics() -> None:
    async with bridged() as served:
        client = await served.client()
        messages = [Publish(f"plant/{number % 7}", b"%d" % number, 1, packet_id=number + 1) for number in range(500)]
        await client.send(*messages)
        for number in range(500):
            assert (await client.expect(Puback)).packet_id == number + 1
        assert [value for _, value in await stored(served.adapter)] == [b"%d" % number for number in range(500)]


async def test_messages_that_are_not_stored_go_into_the_queue_too() -> None:
    rules = StorageRules([StorageRule("plant/#", Storage.NONE, (0, 1, 2))])
    async with bridged(rules=rules) as served:
        client = await served.client()
        await client.publish("plant/a", b"1", 1)
        assert await stored(served.adapter) == [("plant/a", b"1")]
        assert await stored(served.adapter, "plant/a") == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
async def test_a_publish_to_a_full_queue_is_refused_and_nothing_of_it_is_stored(qos: int, retain: bool) -> None:
    async with bridged(bridge(QueueSettings(max_records=2))) as served:
        client = await served.client()
        codes = [await client.publish("plant/a", b"%d" % number, qos, retain=retain) for number in range(3)]
        assert [code < ReasonCode.UNSPECIFIED_ERROR for code in codes] == [True, True, False]
        assert codes[2] == ReasonCode.QUOTA_EXCEEDED
        assert await client.publish("office/a", b"others are taken", qos) < ReasonCode.UNSPECIFIED_ERROR
        assert [value for _, value in await stored(served.adapter)] == [b"0", b"1"]
        assert [value for _, value in await stored(served.adapter, "plant/a")] == [b"0", b"1"]


async def publish_at_once(client: Client, *topics: str) -> list[ReasonCode]:
    """Messages in one write, each with its number as value; the reason codes of their acknowledgements."""
    await client.send(*(Publish(topic, b"%d" % number, 1, packet_id=number + 1) for number, topic in enumerate(topics)))
    answers = [await client.expect(Puback) for _ in topics]
    assert [answer.packet_id for answer in answers] == list(range(1, len(topics) + 1))
    return [answer.reason_code for answer in answers]


@pytest.mark.parametrize("is_new", [True, False], ids=["new topics", "known topics"])
async def test_of_many_publishes_at_once_those_that_a_full_queue_refuses_are_stored_nowhere(is_new: bool) -> None:
    """All were looked at before any was counted: refused ones were in their topics, and in the queues of others."""
    both = bridge(QueueSettings(max_records=10)), bridge(QueueSettings(), name="all")
    async with bridged(*both) as served:
        client = await served.client()
        before = 0 if is_new else 3
        for number in range(before):
            await client.publish(f"plant/{number}", b"before", 1)
        codes = await publish_at_once(client, *(f"plant/{number % 3}" for number in range(30)))
        taken = [number for number, code in enumerate(codes) if code < ReasonCode.UNSPECIFIED_ERROR]
        assert taken == list(range(10 - before))
        assert set(codes[len(taken) :]) == {ReasonCode.QUOTA_EXCEEDED}
        for shard in (SHARD, names.shard_of("all")):
            values = [value for _, value in await stored(served.adapter, shard)]
            assert values == [b"before"] * before + [b"%d" % number for number in taken]
        in_topics = [value for topic in range(3) for _, value in await stored(served.adapter, f"plant/{topic}")]
        assert sorted(in_topics) == sorted([b"before"] * before + [b"%d" % number for number in taken])


async def test_the_bytes_of_publishes_at_once_are_counted_one_by_one() -> None:
    async with bridged(bridge(QueueSettings(max_bytes=1000))) as served:
        client = await served.client()
        codes = await publish_at_once(client, *["plant/a"] * 30)
        taken_count = sum(code < ReasonCode.UNSPECIFIED_ERROR for code in codes)
        # As many as a thousand bytes have room for, by the estimate for each record.
        assert taken_count == 10
        assert len(await stored(served.adapter)) == taken_count


async def test_of_many_publishes_at_once_a_queue_that_drops_the_newest_takes_as_many_as_it_has_room_for() -> None:
    settings = QueueSettings(max_records=10, overflow=Overflow.DROP_NEWEST)
    async with bridged(bridge(settings)) as served:
        client = await served.client()
        codes = await publish_at_once(client, *["plant/a"] * 30)
        assert all(code < ReasonCode.UNSPECIFIED_ERROR for code in codes)
        assert [value for _, value in await stored(served.adapter)] == [b"%d" % number for number in range(10)]
        assert len(await stored(served.adapter, "plant/a")) == 30
        with trio.fail_after(PATIENCE_S):
            while not (state := await look(served.adapter, "warehouse")).writers:
                await trio.sleep(0.05)
        assert state.writers["one"].dropped_newest == 20


async def test_an_older_client_gets_no_acknowledgement_for_what_a_full_queue_does_not_take() -> None:
    async with bridged(bridge(QueueSettings(max_records=1))) as served:
        client = await served.client(version=Version.V311)
        assert await client.publish("plant/a", b"0", 1) == ReasonCode.SUCCESS
        await client.send(Publish("plant/a", b"1", 1, packet_id=9))
        await client.closed()
        assert [value for _, value in await stored(served.adapter)] == [b"0"]


async def test_a_queue_that_drops_the_newest_refuses_no_publisher_and_counts_it() -> None:
    settings = QueueSettings(max_records=2, overflow=Overflow.DROP_NEWEST)
    async with bridged(bridge(settings)) as served:
        client = await served.client()
        for number in range(4):
            assert await client.publish("plant/a", b"%d" % number, 1) < ReasonCode.UNSPECIFIED_ERROR
        assert [value for _, value in await stored(served.adapter)] == [b"0", b"1"]
        assert len(await stored(served.adapter, "plant/a")) == 4
        with trio.fail_after(PATIENCE_S):
            while not (state := await look(served.adapter, "warehouse")).writers:
                await trio.sleep(0.05)
        assert state.writers["one"].dropped_newest == 2


async def test_a_queue_that_drops_what_is_oldest_holds_the_newest() -> None:
    settings = QueueSettings(max_records=3, overflow=Overflow.DROP_OLDEST)
    async with bridged(bridge(settings)) as served:
        client = await served.client()
        for number in range(10):
            assert await client.publish("plant/a", b"%d" % number, 1) < ReasonCode.UNSPECIFIED_ERROR
        with trio.fail_after(PATIENCE_S):
            while (state := await look(served.adapter, "warehouse")).depth.record_count > 3:
                await trio.sleep(0.05)
        assert state.depth.first_offset == 7


async def test_a_will_and_a_delayed_message_are_bridged_when_they_are_published() -> None:
    async with bridged() as served:
        client = await served.client(will=Will("plant/will", b"gone", 1, False))
        await client.publish("$delayed/1/plant/later", b"later", 1)
        assert await stored(served.adapter) == []
        await client.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while len(await stored(served.adapter)) < 2:
                await trio.sleep(0.05)
        assert sorted(await stored(served.adapter)) == [("plant/later", b"later"), ("plant/will", b"gone")]


async def test_clients_can_neither_publish_nor_subscribe_where_queues_lie() -> None:
    async with bridged() as served:
        client = await served.client()
        assert await client.publish("$queue/warehouse", b"x", 1) == ReasonCode.NOT_AUTHORIZED
        assert await client.subscribe("$queue/#") == (ReasonCode.NOT_AUTHORIZED,)
