"""The MQTT load counts packets by columns of bytes; a miscount would show a rate that no broker ever reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import LoadError
from benchmarks.mqtt import packets

TOPIC = "bench/x"
PAYLOAD_BYTES = 20
packet_ids = st.integers(min_value=1, max_value=65_535)
pieces = st.integers(min_value=1, max_value=100)


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def numbered(number: int, packet_id: int, *, dup: bool = False) -> bytes:
    whole = packets.publish(TOPIC, packets.NUMBER.pack(number).ljust(PAYLOAD_BYTES, b"."), packet_id=packet_id)
    return bytes((whole[0] | (8 if dup else 0),)) + whole[1:]


@given(st.lists(packet_ids), pieces)
def test_acknowledgements_are_counted_in_any_pieces(ids: list[int], piece: int) -> None:
    stream = b"".join(map(puback, ids))
    counter = packets.PubackCounter()
    counted = 0
    for start in range(0, len(stream), piece):
        received = stream[start : start + piece]
        # The buffer is longer than what was received into it, as in use.
        counted += counter(bytearray(received + b"\x40\x02\x00\x01"), len(received))
    assert counted == len(ids)


@pytest.mark.parametrize(
    "other", [b"\xd0\x00\xd0\x00", b"\x50\x02\x00\x01", b"\x40\x03\x00\x01\x87", b"\xe0\x00\x40\x02"]
)
def test_anything_else_than_an_acknowledgement_fails_the_run(other: bytes) -> None:
    stream = puback(1) + other
    with pytest.raises(LoadError, match="other packets than PUBACKs"):
        packets.PubackCounter()(bytearray(stream), len(stream))


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), packet_ids, st.booleans(), st.booleans())), pieces)
def test_deliveries_are_cut_from_any_pieces(messages: list[tuple[int, int, bool, bool]], piece: int) -> None:
    stream = b"".join(
        numbered(number, packet_id, dup=dup) + (packets.PINGRESP if ping else b"")
        for number, packet_id, dup, ping in messages
    )
    cutter = packets.DeliveryCutter(TOPIC, PAYLOAD_BYTES)
    found = [cutter.feed(stream[at : at + piece]) for at in range(0, len(stream), piece)]
    assert sum(each.count for each in found) == len(messages)
    assert b"".join(each.acknowledgements for each in found) == b"".join(puback(each[1]) for each in messages)
    assert b"".join(each.numbers for each in found) == b"".join(packets.NUMBER.pack(each[0]) for each in messages)


@pytest.mark.parametrize(
    "wrong",
    [
        packets.publish("bench/y", bytes(PAYLOAD_BYTES), packet_id=1),
        packets.publish(TOPIC, bytes(PAYLOAD_BYTES), packet_id=0) + b"..",
        packets.publish(TOPIC, bytes(PAYLOAD_BYTES + 1), packet_id=1),
    ],
)
def test_another_topic_size_or_qos_fails_the_run(wrong: bytes) -> None:
    cutter = packets.DeliveryCutter(TOPIC, PAYLOAD_BYTES)
    assert cutter.feed(numbered(1, 1)).count == 1
    with pytest.raises(LoadError):
        cutter.feed(wrong)


@given(st.integers(1, 3000), st.integers(1, 700))
def test_no_packet_id_is_used_twice_within_a_window(window: int, per_chunk: int) -> None:
    if per_chunk > window:
        with pytest.raises(ValueError, match="must rise"):
            packets.publish_ring(TOPIC, b"", window=window, per_chunk=per_chunk)
        return
    ring = packets.publish_ring(TOPIC, b"", window=window, per_chunk=per_chunk)
    size = len(packets.publish(TOPIC, b"", packet_id=1))
    ids = [
        int.from_bytes(chunk.data[at + size - 2 : at + size], "big")
        for chunk in ring
        for at in range(0, len(chunk.data), size)
    ]
    assert [chunk.replies for chunk in ring] == [per_chunk] * len(ring)
    assert len(ids) >= window
    assert len(set(ids)) == len(ids)
    assert min(ids) > 0


def test_the_largest_window_still_has_ids_of_its_own() -> None:
    ring = packets.publish_ring(TOPIC, b"", window=65_000, per_chunk=1000)
    assert sum(chunk.replies for chunk in ring) >= 65_000


@pytest.mark.parametrize(
    ("size", "encoded"),
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (16_383, b"\xff\x7f"), (16_384, b"\x80\x80\x01")],
)
def test_remaining_length_is_as_the_standard_has_it(size: int, encoded: bytes) -> None:
    assert packets.remaining_length(size) == encoded


def test_a_connection_that_is_refused_is_not_measured() -> None:
    assert packets.expect_connack(b"\x20\x02\x01\x00") is True
    assert packets.expect_connack(b"\x20\x02\x00\x00") is False
    with pytest.raises(LoadError, match="refused the connection"):
        packets.expect_connack(b"\x20\x02\x00\x05")
    packets.expect_suback(b"\x90\x03\x00\x01\x01", 1)
    with pytest.raises(LoadError, match="refused the subscription"):
        packets.expect_suback(b"\x90\x03\x00\x01\x80", 1)
