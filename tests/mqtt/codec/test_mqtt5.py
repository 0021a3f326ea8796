"""The codec beside `mqtt5`: each reads what the other writes, and what `mqtt5` refuses is refused here too.

It does not distinguish a malformed packet from a protocol error, and it accepts much that the standard forbids: packet
identifier 0, reserved bits, U+0000, values that go on after the property length. So what is refused here is not asked
of it. It knows MQTT 5 only.
"""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import assume, example, given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Version, encode
from broker_adapter.mqtt_codec.packets import Auth, Connect
from tests.mqtt.codec.mqtt5_packets import as_theirs
from tests.mqtt.codec.samples import SAMPLES
from tests.mqtt.codec.strategies import Sender, connects, packets, senders

V5 = Version.V5
CONNECT = 1

# AUTH that says success and no more has no body at all (section 3.15.2.1). `mqtt5` neither writes nor reads that.
SHORT_AUTH = b"\xf0\x00"


def written_by(sender: Sender) -> st.SearchStrategy[tuple[Sender, Packet]]:
    choices = st.one_of(packets(V5, sender), connects(V5)) if sender == "client" else packets(V5, sender)
    return st.tuples(st.just(sender), choices.filter(lambda packet: packet != Auth()))


sides_and_packets = senders.flatmap(written_by)


@st.composite
def nearly_packets(draw: st.DrawFn) -> bytes:
    """Packets of which some bytes are others, are missing or are too many; the remaining length is right."""
    chosen = draw(
        st.sampled_from([sample.data for sample in SAMPLES if sample.version is V5 and sample.data[1] < 0x70])
    )
    first, body = chosen[0], bytearray(chosen[2:])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 1))] = draw(st.binary(max_size=1))
    if draw(st.integers(0, 9)) == 0:
        first ^= 1 << draw(st.integers(0, 3))
    return bytes((first, len(body))) + body


def read(sender: Sender, data: bytes) -> list[Packet]:
    version = None if sender == "client" and data[0] >> 4 == CONNECT else V5
    return Decoder(of=sender, version=version).receive(data)


def read_by_mqtt5(data: bytes) -> Any:
    packet, size_bytes = mqtt5.read(data)  # type: ignore[arg-type]
    assert size_bytes == len(data)
    return packet


@given(sides_and_packets)
def test_it_reads_what_is_written_here(side_and_packet: tuple[Sender, Packet]) -> None:
    _, packet = side_and_packet
    assert read_by_mqtt5(encode(packet, V5)) == as_theirs(packet)


@given(sides_and_packets)
def test_what_it_writes_is_read_here(side_and_packet: tuple[Sender, Packet]) -> None:
    sender, packet = side_and_packet
    [found] = read(sender, as_theirs(packet).write())
    assert type(found) is type(packet)
    assert as_theirs(found) == as_theirs(packet)


@given(nearly_packets(), senders)
@example(bytes.fromhex("40 04 0001 00 00"), "client")
@example(bytes.fromhex("e0 02 00 00"), "server")
def test_what_is_accepted_here_is_accepted_there_and_means_the_same(data: bytes, sender: Sender) -> None:
    assume(data != SHORT_AUTH)
    try:
        [packet] = read(sender, data)
    except MqttProtocolError:
        return
    assume(not (isinstance(packet, Connect) and packet.version is Version.V311))
    assert read_by_mqtt5(data) == as_theirs(packet)
