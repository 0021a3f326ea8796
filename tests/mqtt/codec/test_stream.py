"""Cutting a stream into packets: any bytes, in any pieces, give the same outcome, and little is held."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import NamedTuple, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from broker_adapter.mqtt_codec.property_section import MAX_USER_PROPERTIES
from broker_adapter.mqtt_codec.subscription_bodies import MAX_FILTERS
from tests.mqtt.codec.samples import SAMPLES, Sample
from tests.mqtt.codec.strategies import Sender, connects, packets, senders, versions

LIMIT = 300
HELLO = encode(Connect(), Version.V5)
PING = encode(Pingreq(), Version.V5)

SHORT_SAMPLES = [sample for sample in SAMPLES if len(sample.data) < LIMIT]
IDS = [f"{sample.version.name}-{sample.written[:30]}" for sample in SHORT_SAMPLES]

# Bytes that look like packets get further into the decoder than noise does.
near_packets = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([sample.data for sample in SHORT_SAMPLES]),
    st.builds(lambda first, body: bytes([first, len(body)]) + body, st.integers(0, 255), st.binary(max_size=30)),
)
streams = st.lists(near_packets, max_size=5).map(b"".join)
cut_places = st.lists(st.integers(0, 400), max_size=4)


class Outcome(NamedTuple):
    """All that a decoder made of a stream."""

    packets: list[Packet]
    fault: tuple[ReasonCode, str, bytes] | None
    version: Version | None
    is_empty: bool


def outcome(decoder: Decoder, pieces: list[bytes]) -> Outcome:
    seen: list[Packet] = []
    fault = None
    for piece in pieces:
        try:
            seen += decoder.receive(piece)
        except MqttProtocolError as error:
            seen += error.packets
            fault = (error.reason_code, str(error), error.answer)
            break
    return Outcome(seen, fault, decoder.version, decoder.is_empty)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def single_bytes(stream: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in stream]


def decoder_for(sample: Sample, sender: str) -> Decoder:
    version = None if isinstance(sample.packet, Connect) else sample.version
    return Decoder(of=cast(Sender, sender), version=version)


@given(streams, senders, versions, st.booleans(), cut_places)
@example(HELLO + b"\x30\x80\x80\x80\x80", "client", Version.V5, True, [14, 16])
@example(HELLO + b"\x30\xff\xff\xff\x7f", "client", Version.V5, True, [16])
@example(b"\xc0\x80\x00", "client", Version.V5, False, [2])
def test_any_bytes_give_packets_or_the_one_error_however_they_are_cut(
    stream: bytes, sender: Sender, version: Version, begins: bool, places: list[int]
) -> None:
    def made() -> Decoder:
        known = None if begins and sender == "client" else version
        return Decoder(of=sender, version=known, max_packet_bytes=LIMIT)

    whole = outcome(made(), [stream])
    assert outcome(made(), single_bytes(stream)) == whole
    assert outcome(made(), cut(stream, places)) == whole


@given(versions, st.data(), cut_places)
def test_a_conversation_is_the_same_however_it_is_cut(version: Version, data: st.DataObject, places: list[int]) -> None:
    # AUTH is refused where CONNECT named no method.
    following = packets(version, "client").filter(lambda packet: not isinstance(packet, Auth))
    sent = [data.draw(connects(version)), *data.draw(st.lists(following, max_size=3))]
    stream = b"".join(encode(packet, version) for packet in sent)
    assert outcome(Decoder(), cut(stream, places)) == Outcome(sent, None, version, True)


@pytest.mark.parametrize("sample", SHORT_SAMPLES, ids=IDS)
def test_a_packet_split_at_every_byte_is_the_same_packet(sample: Sample) -> None:
    for sender, at in itertools.product(sample.senders, range(1, len(sample.data))):
        decoder = decoder_for(sample, sender)
        assert decoder.receive(sample.data[:at]) == []
        assert not decoder.is_empty
        assert decoder.receive(sample.data[at:]) == [sample.packet]
        assert decoder.is_empty


@pytest.mark.parametrize("sample", SHORT_SAMPLES, ids=IDS)
def test_a_packet_cut_short_is_read_or_refused(sample: Sample) -> None:
    body = sample.data[2 if sample.data[1] < 0x80 else 3 :]
    for size, sender in itertools.product(range(min(len(body), 0x80)), sample.senders):
        short = outcome(decoder_for(sample, sender), [bytes((sample.data[0], size)) + body[:size]])
        assert len(short.packets) + (short.fault is not None) == 1
        assert short.is_empty


@pytest.mark.parametrize("sample", SHORT_SAMPLES, ids=IDS)
def test_a_packet_with_a_wrong_bit_is_read_or_refused(sample: Sample) -> None:
    for bit, sender in itertools.product(range(len(sample.data) * 8), sample.senders):
        flipped = bytearray(sample.data)
        flipped[bit // 8] ^= 1 << bit % 8
        whole = outcome(decoder_for(sample, sender), [bytes(flipped)])
        assert outcome(decoder_for(sample, sender), single_bytes(bytes(flipped))) == whole
        assert whole.packets or whole.fault or not whole.is_empty


def test_packets_before_a_fault_are_returned_with_it() -> None:
    decoder = Decoder()
    assert decoder.receive(HELLO + PING[:1]) == [Connect()]
    with pytest.raises(MqttProtocolError) as caught:
        decoder.receive(PING[1:] + PING + b"\x41\x02\x00\x01" + PING)
    assert caught.value.packets == [Pingreq(), Pingreq()]
    assert caught.value.reason_code is ReasonCode.MALFORMED_PACKET


def test_nothing_is_decoded_after_a_fault() -> None:
    decoder = Decoder()
    with pytest.raises(MqttProtocolError):
        decoder.receive(PING)
    with pytest.raises(MqttProtocolError, match="after an earlier fault") as caught:
        decoder.receive(HELLO)
    assert caught.value.reason_code is ReasonCode.PROTOCOL_ERROR
    assert caught.value.packets == []
    assert caught.value.answer == b""


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_the_callers_buffer_is_free_again_at_once(make: type[bytes]) -> None:
    buffer = bytearray(HELLO + encode(Publish("a", b"payload"), Version.V5) + b"\x30\x0a\x00")
    decoder = Decoder()
    found = decoder.receive(make(buffer))
    buffer[:] = bytes(len(buffer))
    assert found == [Connect(), Publish("a", b"payload")]
    assert decoder.receive(b"\x01b\x00123456") == [Publish("b", b"123456")]


def test_a_packet_of_the_greatest_length_is_taken_and_a_longer_one_refused_by_its_header() -> None:
    packet = Publish("a", bytes(200))
    written = encode(packet, Version.V5)
    assert Decoder(version=Version.V5, max_packet_bytes=len(written)).receive(written) == [packet]
    decoder = Decoder(version=Version.V5, max_packet_bytes=len(written) - 1)
    assert decoder.receive(written[:2]) == []
    with pytest.raises(MqttProtocolError, match="packet has 207 bytes, it must have at most 206") as caught:
        decoder.receive(written[2:3])
    assert caught.value.reason_code is ReasonCode.PACKET_TOO_LARGE
    assert caught.value.answer.hex() == "e00195"


def test_the_limit_may_change_between_packets() -> None:
    decoder = Decoder(max_packet_bytes=len(HELLO))
    assert decoder.receive(HELLO) == [Connect()]
    decoder.max_packet_bytes = 1000
    assert decoder.receive(encode(Publish("a", bytes(500)), Version.V5)) == [Publish("a", bytes(500))]


def test_before_connect_a_peer_may_send_less_at_a_time_than_a_client() -> None:
    decoder = Decoder(max_packet_bytes=1000, max_connect_bytes=len(HELLO))
    large = Publish("a", bytes(500))
    assert decoder.receive(HELLO + encode(large, Version.V5)) == [Connect(), large]
    stranger = Decoder(max_packet_bytes=1000, max_connect_bytes=len(HELLO) - 1)
    with pytest.raises(MqttProtocolError, match=f"packet has {len(HELLO)} bytes, it must have at most"):
        stranger.receive(HELLO[:2])


def test_a_length_that_is_only_announced_takes_no_memory() -> None:
    decoder = Decoder(version=Version.V5)
    tracemalloc.start()
    try:
        assert decoder.receive(b"\x30\xf0\xff\xff\x7f") == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000


def test_no_more_is_held_than_one_packet_and_a_chunk() -> None:
    size_bytes, chunk_bytes = 2_000_000, 65_536
    written = encode(Publish("a", bytes(size_bytes)), Version.V5) + PING * 3
    decoder = Decoder(version=Version.V5)
    found: list[Packet] = []
    tracemalloc.start()
    try:
        for at in range(0, len(written), chunk_bytes):
            found += decoder.receive(written[at : at + chunk_bytes])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [Publish("a", bytes(size_bytes)), Pingreq(), Pingreq(), Pingreq()]
    # While it is decoded, a packet is there as received, as one piece and as its payload.
    assert peak_bytes < 4 * size_bytes


def test_a_packet_full_of_properties_is_refused_before_all_of_them_are_read() -> None:
    """They took so long that all other clients waited."""
    most = Publish("a", properties=Properties(user_properties=(("", ""),) * MAX_USER_PROPERTIES))
    assert Decoder(version=Version.V5).receive(encode(most, Version.V5)) == [most]
    full = encode(Publish("a", properties=Properties(user_properties=(("", ""),) * 400_000)), Version.V5)
    # What follows the properties that are allowed is not looked at.
    spoilt = full[:-100_000] + bytes(100_000)
    with pytest.raises(MqttProtocolError, match="more than 1000 user properties") as caught:
        Decoder(version=Version.V5).receive(spoilt)
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert caught.value.answer == encode(Disconnect(ReasonCode.QUOTA_EXCEEDED), Version.V5)


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("count", [MAX_FILTERS, MAX_FILTERS + 1])
def test_a_packet_full_of_filters_is_refused_before_all_of_them_are_read(count: int, version: Version) -> None:
    """A million of them stopped the broker for seconds."""
    full: list[Packet] = [Subscribe(1, (SubscriptionRequest("a", 0),) * count), Unsubscribe(1, ("a",) * count)]
    for packet in full:
        decoder, data = Decoder(version=version), encode(packet, version)
        if count == MAX_FILTERS:
            assert decoder.receive(data) == [packet]
            continue
        with pytest.raises(MqttProtocolError, match="more than 10000 topic filters") as caught:
            decoder.receive(data)
        assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED


def test_small_packets_at_the_edges_of_chunks_are_not_lost() -> None:
    stream = b"".join(encode(Puback(number), Version.V5) for number in range(1, 2001))
    for chunk_bytes in (1, 3, 5, 4093):
        decoder = Decoder(version=Version.V5)
        pieces = [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]
        assert [packet for piece in pieces for packet in decoder.receive(piece)] == list(map(Puback, range(1, 2001)))
