"""Records that name a topic which does not map to their shard: they are messages to the topic of their shard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker_adapter.mqtt.model.storage_rules import live_shard_of
from broker_adapter.mqtt_codec import Properties
from broker_adapter.mqtt_codec.packets import Publish
from broker_adapter.topic_mapping import MappingRule, TopicMapping
from shards.format.record import Record
from tests.mqtt.serving import Client, Serving, serving

LASTING = Properties(session_expiry_interval=3600)
MAPPING = TopicMapping([MappingRule("fold/#", prefix="f", shards=1)])
FORGED = Record(b"forged", topic="secret/x")


@asynccontextmanager
async def broker() -> AsyncIterator[Serving]:
    async with serving(mapping=MAPPING) as served:
        for shard in ("open", "f/0"):
            await served.adapter.create_shard(shard)
        yield served


async def forge(served: Serving) -> None:
    """Append a forged record to a shard of its own topic and to a shared one, and then true ones."""
    await served.adapter.append("open", [FORGED, Record(b"true")])
    await served.adapter.append("f/0", [FORGED, Record(b"true", topic="fold/x")])


async def messages(client: Client, count: int) -> list[tuple[str, bytes]]:
    found = [await client.message() for _ in range(count)]
    return sorted((one.topic, one.payload) for one in found)


EVERYTHING = [("f/0", b"forged"), ("fold/x", b"true"), ("open", b"forged"), ("open", b"true")]


async def test_a_live_subscriber_gets_it_under_the_name_of_its_shard() -> None:
    async with broker() as served:
        everything, secret = await served.client("everything"), await served.client("secret")
        await everything.subscribe("#", qos=1)
        await secret.subscribe("secret/#", qos=1)
        await forge(served)
        assert await messages(everything, 4) == EVERYTHING
        await secret.silent()


@pytest.mark.parametrize("topic_filter", ["#", "$replay/earliest/#", "$share/group/#"])
async def test_reads_from_the_store_do_not_believe_it_either(topic_filter: str) -> None:
    async with broker() as served:
        client = await served.client("c", clean_start=False, properties=LASTING)
        secret = await served.client("secret", clean_start=False, properties=LASTING)
        if topic_filter == "#":
            await client.subscribe("#", qos=1)
            await secret.subscribe("secret/#", qos=1)
            await client.leave()
            await secret.leave()
            await forge(served)
            client = await served.client("c", clean_start=False, properties=LASTING)
            secret = await served.client("secret", clean_start=False, properties=LASTING)
        else:
            if topic_filter.startswith("$share"):
                await client.subscribe(topic_filter, qos=1)
                await forge(served)
            else:
                await forge(served)
                await client.subscribe(topic_filter, qos=1)
            await secret.subscribe(topic_filter.replace("#", "secret/#").replace("group", "other"), qos=1)
        assert await messages(client, 4) == EVERYTHING
        await secret.silent()


async def test_a_message_that_is_sent_again_has_the_topic_that_it_had() -> None:
    async with broker() as served:
        client = await served.client("c", clean_start=False, properties=LASTING)
        await client.subscribe("#", qos=1)
        await served.adapter.append("open", [FORGED])
        assert (await client.expect(Publish)).topic == "open"
        await trio.aclose_forcefully(client.stream)
        client = await served.client("c", clean_start=False, properties=LASTING)
        again = await client.expect(Publish)
        assert (again.topic, again.payload, again.dup) == ("open", b"forged", True)


async def test_a_message_that_is_not_kept_has_a_topic_that_maps_to_its_shard() -> None:
    async with broker() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe("#", qos=0)
        await publisher.publish("secret/x", b"true", qos=0)
        assert (await client.message()).topic == "secret/x"
        other = next(topic for topic in "abc" if live_shard_of(topic) != live_shard_of("secret/x"))
        await publisher.publish(other, b"true", qos=0)
        assert (await client.message()).topic == other
        await served.adapter.append(live_shard_of(other), [FORGED, Record(b"true", topic=other)])
        message = await client.message()
        assert (message.topic, message.payload) == (other, b"true")


@pytest.mark.parametrize("topic_filter", ["#", "$share/group/#", "$replay/earliest/#"])
async def test_messages_that_are_not_kept_reach_every_kind_of_subscription(topic_filter: str) -> None:
    async with broker() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe(topic_filter, qos=0)
        await publisher.publish("secret/x", b"true", qos=0)
        assert (await client.message()).topic == "secret/x"
