"""DISCONNECT is the last packet to a client, behind the answers to what it had sent before."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt_codec import Packet, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import (
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from tests.mqtt.serving import Client, serving

MALFORMED = b"\x36\x05\0\1a\0\1"
"""A PUBLISH with QoS 3."""


async def everything(client: Client) -> list[Packet]:
    """What comes until the broker closes."""
    found: list[Packet] = []
    while True:
        try:
            found.append(await client.receive())
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Publish("t", b"", 1, packet_id=7), Puback(7)),
        (Publish("t", b"", 2, packet_id=7), Pubrec(7)),
        (Subscribe(7, (SubscriptionRequest("t"),)), Suback(7, (ReasonCode.SUCCESS,))),
    ],
    ids=["QoS 1", "QoS 2", "SUBSCRIBE"],
)
async def test_a_fault_is_told_behind_the_answers_to_what_came_before(packet: Packet, answer: Packet) -> None:
    """PUBREC came behind DISCONNECT, where no client looks for it."""
    async with serving() as served:
        client = await served.client("c")
        await client.stream.send_all(encode(packet, Version.V5) + MALFORMED)
        *answers, last = await everything(client)
        assert isinstance(last, Disconnect)
        assert last.reason_code == ReasonCode.MALFORMED_PACKET
        if not isinstance(packet, Subscribe):
            assert answers == [answer]
        assert answers in ([answer], [])


@pytest.mark.parametrize("data", ["30ffffffffff", "40ffffffff", "c0ffffffff"])
async def test_a_length_without_an_end_is_a_malformed_packet(data: str) -> None:
    """The connection was closed without a word."""
    async with serving() as served:
        client = await served.client("c")
        await client.stream.send_all(bytes.fromhex(data))
        await client.refused(ReasonCode.MALFORMED_PACKET)
