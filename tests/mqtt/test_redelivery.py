"""Messages that are read again by their place: the ones that were sent, or none."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.mqtt.delivery.redelivery import fetch_messages
from broker_adapter.mqtt.session import Retained
from broker_adapter.mqtt_codec import Properties, ReasonCode
from broker_adapter.mqtt_codec.packets import Publish
from broker_adapter.topic_mapping import TopicMapping
from shards.format.record import Record
from shards.seams.clock import SystemClock
from tests.mqtt.serving import serving

LASTING = Properties(session_expiry_interval=3600)


async def places_in(adapter: StorageAdapter, shard: str) -> list[tuple[str, int, int]]:
    result = await adapter.read(shard, 0)
    return [(shard, record.offset, record.lsn) for record in result.records]


async def test_messages_are_found_by_place_across_shards() -> None:
    async with open_adapter("memory:") as adapter:
        for shard in ("a", "b"):
            await adapter.create_shard(shard)
            for number in range(600):
                await adapter.append(shard, [b"%d" % number])
        places = [(shard, at, lsn) for shard in "ab" for _, at, lsn in await places_in(adapter, shard) if not at % 7]
        places += [("missing", 0, 1), ("a", 10_000, 1)]
        found = await fetch_messages(
            adapter, Retained(adapter, clock=SystemClock()), reversed(places), TopicMapping().topic_of
        )
        assert sorted(found) == places[:-2]
        assert all(message.payload == b"%d" % offset for (_, offset, _), message in found.items())


async def test_the_successor_of_a_deleted_shard_gives_no_message_of_the_one_before() -> None:
    async with open_adapter("memory:") as adapter:
        await adapter.create_shard("a")
        await adapter.append("a", [Record(b"first"), Record(b"second")])
        before = await places_in(adapter, "a")
        await adapter.delete_shard("a")
        await adapter.create_shard("a")
        await adapter.append("a", [Record(b"other")])
        retained = Retained(adapter, clock=SystemClock())
        topic_of = TopicMapping().topic_of
        assert await fetch_messages(adapter, retained, before, topic_of) == {}
        after = await places_in(adapter, "a")
        assert after[0][1] == before[0][1], "the offset alone tells nothing"
        found = await fetch_messages(adapter, retained, after, topic_of)
        assert [message.payload for message in found.values()] == [b"other"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_client_is_not_sent_another_message_in_place_of_one_that_is_gone(qos: int) -> None:
    async with serving() as served:
        client = await served.client("c", clean_start=False, properties=LASTING)
        assert await client.subscribe("t", qos=qos) == (qos,)
        publisher = await served.client("p")
        await publisher.publish("t", b"first", qos=qos)
        first = await client.expect(Publish)
        assert first.payload == b"first"
        await trio.aclose_forcefully(client.stream)
        await served.adapter.delete_shard("t")
        assert await publisher.publish("t", b"other", qos=qos) < ReasonCode.UNSPECIFIED_ERROR

        client = await served.client("c", clean_start=False, properties=LASTING)
        while not isinstance(packet := await client.receive(), Publish):
            pass
        assert (packet.payload, packet.dup) == (b"other", False)
        if qos == 2:
            assert packet.packet_id != first.packet_id
        await trio.aclose_forcefully(client.stream)
        await publisher.leave()
