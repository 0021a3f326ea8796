"""The times of messages in the traffic of a journal server, however its frames are cut into segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.protocol import Op
from journal.protocol.frames import ACK, APPENDED_HEAD, HEADER, build, build_append, build_credit, build_push_head
from journal.trace.journal_frames import journal_times
from journal.trace.marker import MIN_BYTES, Marker
from journal.trace.streams import Direction, End, Segment
from shards.format.batch import encode_values
from tests.trace.packets import CLIENT, SERVER, TO_SERVER, segments

READER = End(CLIENT.address, 50_001)
TO_READER = Direction(SERVER, READER)
# A process sends whole frames, so the first segment has at least the header of one.
CUTS = st.lists(st.integers(HEADER.size, 5000), max_size=40)


def append(marker: Marker, numbers: list[int], correlation: int) -> bytes:
    return build_append(correlation, 0, encode_values([marker.payload(n, 100) for n in numbers], timestamp_us=1))


def appended(*correlations: int) -> bytes:
    acks = b"".join(ACK.pack(correlation, 2, 0, 0, 0) for correlation in correlations)
    return APPENDED_HEAD.pack(APPENDED_HEAD.size + len(acks), Op.APPENDED, 0, 0) + acks


def push(marker: Marker, numbers: list[int]) -> bytes:
    batch = encode_values([marker.payload(n, 100) for n in numbers], timestamp_us=1)
    return build_push_head(1, 1, 0, len(numbers), len(batch)) + batch


def last_byte_sent_ns(sent: list[Segment], end: int) -> int:
    """When the byte before this place of the stream was sent."""
    return next(each.sent_ns for each in sent if each.sequence < end <= each.sequence + len(each.data))


@given(CUTS, CUTS, CUTS)
def test_a_message_is_found_at_the_end_of_its_frame_at_every_point(
    request_cuts: list[int], reply_cuts: list[int], push_cuts: list[int]
) -> None:
    marker = Marker()
    appends = [append(marker, [0], 7), append(marker, [1, 2], 8), append(marker, [3], 9)]
    replies = [appended(7), appended(8, 9)]
    pushes = [push(marker, [0]), push(marker, [1, 2, 3])]
    to_server = segments(b"".join(appends), request_cuts)
    to_client = segments(b"".join(replies), reply_cuts, direction=TO_SERVER.reverse, begin_ns=10**6)
    to_reader = segments(b"".join(pushes), push_cuts, direction=TO_READER, begin_ns=2 * 10**6)
    found = journal_times([*to_server, *to_client, *to_reader], SERVER.port, marker)
    ends = [sum(map(len, appends[: count + 1])) for count in range(3)]
    assert found.requested == {
        number: last_byte_sent_ns(to_server, ends[frame]) for number, frame in ((0, 0), (1, 1), (2, 1), (3, 2))
    }
    first, both = len(replies[0]), len(replies[0]) + len(replies[1])
    assert found.replied == {
        number: last_byte_sent_ns(to_client, first if number == 0 else both) for number in range(4)
    }
    first, both = len(pushes[0]), len(pushes[0]) + len(pushes[1])
    assert found.delivered == {
        number: last_byte_sent_ns(to_reader, first if number == 0 else both) for number in range(4)
    }


def test_the_same_correlation_on_another_connection_acknowledges_nothing() -> None:
    marker = Marker()
    other = Direction(SERVER, READER)
    sent = [
        Segment(TO_SERVER, 0, 1, append(marker, [0], 7)),
        Segment(other, 0, 2, appended(7)),
        Segment(TO_SERVER.reverse, 0, 3, appended(7)),
    ]
    assert journal_times(sent, SERVER.port, marker).replied == {0: 3}


def test_a_refused_append_is_not_acknowledged() -> None:
    marker = Marker()
    sent = [
        Segment(TO_SERVER, 0, 1, append(marker, [0], 7)),
        Segment(TO_SERVER.reverse, 0, 2, build(Op.COMMIT, 7, b"", status=5)),
    ]
    assert journal_times(sent, SERVER.port, marker).replied == {}


def test_a_commit_with_messages_is_acknowledged_by_its_reply() -> None:
    marker = Marker()
    sent = [
        Segment(TO_SERVER, 0, 1, build(Op.COMMIT, 7, b"before" + marker.payload(3, 100))),
        Segment(TO_SERVER.reverse, 0, 2, build(Op.COMMIT, 7, b"done")),
    ]
    found = journal_times(sent, SERVER.port, marker)
    assert (found.requested, found.replied) == ({3: 1}, {3: 2})


def test_a_capture_that_begins_in_the_middle_of_a_frame_finds_the_frames_after_it() -> None:
    marker = Marker()
    first, second = append(marker, [0], 7), append(marker, [1], 8)
    rest = first[50:]
    sent = [Segment(TO_SERVER, 50, 1, rest), Segment(TO_SERVER, 50 + len(rest), 2, second)]
    assert journal_times(sent, SERVER.port, marker).requested == {1: 2}


def test_messages_of_another_run_are_not_found() -> None:
    sent = [Segment(TO_SERVER, 0, 1, append(Marker(), [0], 7)), Segment(TO_READER, 0, 2, push(Marker(), [0]))]
    found = journal_times(sent, SERVER.port, Marker())
    assert (found.requested, found.delivered) == ({}, {})


def test_a_reader_that_appends_nothing_decides_when_a_message_was_passed_on() -> None:
    marker = Marker()
    sent = [
        Segment(TO_SERVER, 0, 1, append(marker, [0], 7)),
        Segment(TO_SERVER.reverse, 0, 2, push(marker, [0])),
        Segment(TO_READER, 0, 3, push(marker, [0])),
        Segment(TO_READER.reverse, 0, 4, build_credit(1, 100)),
    ]
    assert journal_times(sent, SERVER.port, marker).delivered == {0: 3}
    # One broker for publisher and subscriber has one connection.
    assert journal_times(sent[:2], SERVER.port, marker).delivered == {0: 2}


@given(st.binary(max_size=500), CUTS)
def test_bytes_that_are_no_frames_are_no_error(data: bytes, cuts: list[int]) -> None:
    found = journal_times(segments(data, cuts), SERVER.port, Marker())
    assert found.requested == {}


@given(st.integers(0, 10**9 - 1), st.integers(MIN_BYTES, 500), st.binary(max_size=50), st.binary(max_size=50))
def test_a_payload_has_its_size_and_its_number_is_found_among_other_bytes(
    number: int, size_bytes: int, before: bytes, after: bytes
) -> None:
    marker = Marker()
    payload = marker.payload(number, size_bytes)
    assert len(payload) == size_bytes
    assert marker.numbers(before + payload + after) == [number]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_markers_are_found_in_any_buffer(kind: type) -> None:
    marker = Marker()
    assert marker.numbers(kind(marker.payload(1, 50) + marker.payload(2, 50))) == [1, 2]
