"""Segments become the stream that was sent, whatever was repeated, reordered or lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.trace.streams import End, Segment, by_direction, read_segment, reassemble
from tests.trace.packets import CLIENT, SERVER, TO_SERVER, packet, segments

CUTS = st.lists(st.integers(0, 300), max_size=20)
BEGINS = st.sampled_from([0, 1, (1 << 31) - 50, (1 << 32) - 100, (1 << 32) - 1])


def joined(run: list[tuple[int, bytes]]) -> bytes:
    return b"".join(data for _, data in run)


@given(st.binary(min_size=1, max_size=300), CUTS, BEGINS, st.data())
def test_repeated_and_reordered_segments_give_each_byte_once(
    data: bytes, cuts: list[int], begin: int, choice: st.DataObject
) -> None:
    sent = segments(data, cuts, sequence=begin)
    again = [
        Segment(TO_SERVER, (begin + at) % (1 << 32), 10**9, data[at : at + size])
        for at, size in choice.draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(1, 100)), max_size=5))
    ]
    runs = reassemble(choice.draw(st.permutations([*sent, *again])))
    assert [joined(run) for run in runs] == [data]


@given(st.binary(min_size=1, max_size=300), CUTS)
def test_each_part_has_the_time_at_which_it_was_sent(data: bytes, cuts: list[int]) -> None:
    sent = segments(data, cuts)
    (run,) = reassemble(sent)
    assert run == [(segment.sent_ns, segment.data) for segment in sent]


@given(st.binary(min_size=3, max_size=300), CUTS, st.data())
def test_a_lost_segment_divides_the_stream_and_nothing_is_joined_over_the_hole(
    data: bytes, cuts: list[int], choice: st.DataObject
) -> None:
    sent = segments(data, [1, 2, *cuts])
    lost = choice.draw(st.integers(1, len(sent) - 2)) if len(sent) > 2 else 0
    runs = reassemble(sent[:lost] + sent[lost + 1 :])
    at = sent[lost].sequence
    assert [joined(run) for run in runs] == [data[:at], data[at + len(sent[lost].data) :]]


def test_no_segments_are_no_stream() -> None:
    assert reassemble([]) == []


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tcp_options", [b"", bytes(12)])
def test_a_packet_is_read_with_its_ports_sequence_and_data(version: int, tcp_options: bytes) -> None:
    segment = read_segment(packet(b"data", version=version, sequence=7, tcp_options=tcp_options), 5)
    assert segment is not None
    assert (segment.direction.sender.port, segment.direction.receiver.port) == (CLIENT.port, SERVER.port)
    assert (segment.sequence, segment.sent_ns, segment.data) == (7, 5, b"data")


def test_options_of_the_network_header_are_skipped() -> None:
    segment = read_segment(packet(b"data", ip_options=bytes(8)), 0)
    assert segment is not None
    assert segment.data == b"data"


@pytest.mark.parametrize("version", [4, 6])
def test_what_is_no_tcp_data_is_no_segment(version: int) -> None:
    assert read_segment(packet(b"", version=version), 0) is None
    assert read_segment(packet(b"data", version=version, protocol=17), 0) is None
    assert read_segment(packet(b"data", version=version)[:-1], 0) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_a_segment_or_none(data: bytes) -> None:
    segment = read_segment(data, 0)
    assert segment is None or segment.data


def test_the_directions_of_a_connection_are_apart() -> None:
    there = Segment(TO_SERVER, 0, 1, b"there")
    back = Segment(TO_SERVER.reverse, 0, 2, b"back")
    other = Segment(TO_SERVER._replace(sender=End(CLIENT.address, 50_001)), 0, 3, b"other")
    assert by_direction([there, back, other]) == {
        there.direction: [there],
        back.direction: [back],
        other.direction: [other],
    }
