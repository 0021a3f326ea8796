"""Clients of other protocols at a listener of MQTT: each gets an answer that it understands, and the log says why."""

from __future__ import annotations

import re

import pytest
import trio

from broker_adapter.mqtt.connection.misdirected import misdirected
from broker_adapter.mqtt_codec import ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connect
from journal.net.protocol_sniffing import SniffedProtocol, spoken_in
from journal.protocol import Op, frames
from journal.protocol.message_codec import encode as encode_message
from journal.protocol.messages import HelloRequest
from tests.mqtt.edges.listening import logged
from tests.mqtt.edges.test_session_users import access_control
from tests.mqtt.serving import serving
from tests.patience import PATIENCE_S

HELLO = frames.build(Op.HELLO, 1, encode_message(HelloRequest(frames.PROTOCOL_VERSION, "c")))


@pytest.mark.parametrize(
    ("first", "answered", "told"),
    [
        (HELLO, SniffedProtocol.MQTT, "a client of the journal server .* listen.tcp"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", SniffedProtocol.HTTP, "uses TLS.* listen.mqtts"),
        (b"GET /metrics HTTP/1.1\r\n", SniffedProtocol.HTTP, "uses HTTP; health and metrics are at listen.http"),
    ],
)
async def test_a_client_of_another_protocol_is_answered_at_once(
    first: bytes, answered: SniffedProtocol, told: str
) -> None:
    async with serving() as served:
        client = served.dial()
        with logged() as entries, trio.fail_after(PATIENCE_S):
            await client.stream.send_all(first)
            answer = b"".join([piece async for piece in client.stream])
        assert spoken_in(answer) is answered
        (line,) = [entry for entry in entries if entry["event"] == "refused"]
        assert re.search(told, line["error"])
        assert "client" not in line
        assert served.broker.statistics.refused["protocol"] == 1


@pytest.mark.parametrize("version", Version)
def test_a_connect_is_not_taken_for_something_else(version: Version) -> None:
    assert misdirected(encode(Connect("c", version=version), version)) is None


async def test_a_refused_connect_is_logged_with_its_client_identifier() -> None:
    async with serving(access=access_control()) as served:
        client = served.dial()
        with logged() as entries:
            answer = await client.connect("pump", username="anna", password=b"wrong")
            assert answer.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
            await client.closed()
        (line,) = [entry for entry in entries if entry["event"] == "refused"]
        assert (line["client"], line["reason"]) == ("pump", "BAD_USER_NAME_OR_PASSWORD")
        # People type passwords there.
        assert "anna" not in str(line)


async def test_a_refused_connect_without_a_client_identifier_has_none_in_the_log() -> None:
    async with serving(access=access_control()) as served:
        client = served.dial()
        with logged() as entries:
            await client.connect("", username="anna", password=b"wrong")
            await client.closed()
        (line,) = [entry for entry in entries if entry["event"] == "refused"]
        assert "client" not in line
