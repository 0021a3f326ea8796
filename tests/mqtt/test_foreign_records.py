"""Records that others than MQTT clients append: what fits into no packet is dropped by itself, and delays nothing."""

from __future__ import annotations

import pytest
import trio.testing

from broker_adapter.mqtt.delivery.publish_encoding import PublishEncoder
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt_codec import Properties, Version
from broker_adapter.mqtt_codec.packets import Publish
from shards.format.record import Record
from tests.mqtt.serving import Client, Serving, serving

KEPT = Properties(session_expiry_interval=3600)
FAR_FUTURE_US = 1 << 60


async def client_of(served: Serving, version: Version) -> Client:
    properties = KEPT if version is Version.V5 else Properties()
    return await served.client("c", version, clean_start=False, properties=properties)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "headers",
    [
        (("content-type", bytes(70_000)),),
        (("content-type", b"x" * 65_536),),
        (("correlation-data", bytes(65_536)),),
        (("user-property", b"name\0" + b"x" * 65_536),),
        (("user-property", b"name\0a\0b"),),
        (("response-topic", b"a/+"),),
        (("user-property", b"a\0b"),) * 2_000,
    ],
    ids=["zeroes", "too long", "data too long", "property too long", "a zero in a property", "wildcard", "too many"],
)
async def test_one_foreign_record_stops_a_subscriber_for_ever(headers: tuple[tuple[str, bytes], ...], qos: int) -> None:
    """It ended the connection each time it was met, or took those behind it along."""
    async with serving() as served:
        client = await client_of(served, Version.V5)
        await client.subscribe("#", qos=qos)
        await served.adapter.create_shard("a")
        foreign = Record(b"foreign", headers=(("qos", b"2"), *headers))
        good = [Record(b"%d" % number, headers=(("qos", b"2"),)) for number in range(3)]
        await served.adapter.append("a", [good[0], foreign, *good[1:]])
        assert [(await client.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]
        assert served.broker.statistics.dropped["not_encodable"] == 1
        await client.silent()


async def test_a_record_that_never_expires_by_any_measure_of_mqtt_is_sent() -> None:
    async with serving() as served:
        client = await client_of(served, Version.V5)
        await client.subscribe("#", qos=1)
        await served.adapter.create_shard("a")
        await served.adapter.append("a", [Record(b"x", expires_at_us=FAR_FUTURE_US)])
        assert (await client.message()).properties.message_expiry_interval == 0xFFFF_FFFF


async def test_a_folded_record_with_a_topic_that_is_none_is_dropped() -> None:
    encoder_of = PublishEncoder
    for topic in ("", "a/+", "a\0b", "x" * 65_536):
        for version in (Version.V311, Version.V5):
            with pytest.raises(ValueError, match=r"topic|bytes"):
                encoder_of(version, None, 1 << 20).template(Message(topic, b"", 1), 1, False, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "count"), [("template", 3), ("templates", 8), ("packets", 8)], ids=["alone", "together", "assigned"]
)
async def test_messages_behind_a_fault_are_skipped(monkeypatch: pytest.MonkeyPatch, step: str, count: int) -> None:
    """They had been taken when the fault came, so the session's position passed them although they were not sent."""
    async with serving() as served:
        client = await client_of(served, Version.V5)
        await client.subscribe("a", qos=1)
        await served.adapter.create_shard("a")
        broken = True
        sound = getattr(PublishEncoder, step)

        def fail_once(self: PublishEncoder, *arguments: object, **options: object) -> object:
            nonlocal broken
            if broken and getattr(arguments[0], "payload", b"1") == b"1":
                broken = False
                raise ZeroDivisionError("a fault of the broker's own")
            return sound(self, *arguments, **options)

        monkeypatch.setattr(PublishEncoder, step, fail_once)
        await served.adapter.append("a", [Record(b"%d" % number, headers=(("qos", b"1"),)) for number in range(count)])
        found: list[bytes] = []
        with pytest.raises(EOFError):
            while True:
                packet = await client.receive()
                if isinstance(packet, Publish):
                    found.append(packet.payload)
        # Telling the fault holds the loop up: a client that came meanwhile would be sent away.
        await trio.testing.wait_all_tasks_blocked()
        client = await client_of(served, Version.V5)
        wanted = {b"%d" % number for number in range(count)}
        while set(found) != wanted:
            found.append((await client.message()).payload)
        assert not broken
