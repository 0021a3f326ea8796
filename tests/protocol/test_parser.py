"""Cutting a stream into frames: any bytes, in any pieces, give the same outcome."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.protocol import Frame, FrameParser, RemoteProtocolError
from journal.protocol.frames import HEADER, build

LIMIT = 200

frames = st.builds(
    build, st.integers(0, 65535), st.integers(0, 2**32 - 1), st.binary(max_size=60), status=st.integers(0, 65535)
)
garbage = st.binary(max_size=80)
small_lengths = st.integers(0, LIMIT + 20).map(lambda n: HEADER.pack(n, 1, 0, 1))
streams = st.lists(st.one_of(frames, frames, small_lengths, garbage), max_size=8).map(b"".join)


def outcome(pieces: list[bytes], limit: int = LIMIT) -> tuple[list[tuple[int, int, int, bytes]], str | None]:
    parser = FrameParser(limit)
    seen: list[tuple[int, int, int, bytes]] = []
    for piece in pieces:
        parser.feed(piece)
        try:
            seen.extend((f.op, f.status, f.correlation, bytes(f.body)) for f in parser)
        except RemoteProtocolError as error:
            return seen, str(error)
    return seen, None


@given(streams)
def test_whole_and_byte_by_byte_are_the_same(stream: bytes) -> None:
    assert outcome([stream]) == outcome([bytes([byte]) for byte in stream])


@given(streams, st.lists(st.integers(0, 400), max_size=5))
def test_any_cuts_are_the_same(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert outcome([stream]) == outcome(pieces)


@given(st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=100)), max_size=6))
def test_frames_come_back_as_they_were_built(made: list[tuple[int, bytes]]) -> None:
    seen, error = outcome([b"".join(build(op, 7, body) for op, body in made)])
    assert error is None
    assert seen == [(op, 0, 7, body) for op, body in made]


@pytest.mark.parametrize("length", [0, 11, LIMIT + 1, 0xFFFFFFFF])
def test_impossible_length_is_the_peers_fault_after_the_good_frames(length: int) -> None:
    parser = FrameParser(LIMIT)
    parser.feed(build(2, 5) + HEADER.pack(length, 1, 0, 1) + build(2, 6))
    frames_seen: list[Frame] = []
    with pytest.raises(RemoteProtocolError, match=str(length)):
        frames_seen.extend(parser)
    parser.feed(build(2, 7))
    with pytest.raises(RemoteProtocolError):
        list(parser)


def test_large_frame_is_received_into_its_own_buffer() -> None:
    frame = build(32, 9, bytes(range(256)) * 2000)
    parser = FrameParser(1 << 20)
    parser.feed(frame[:100])
    rest = parser.missing()
    assert rest is not None
    assert len(rest) == len(frame) - 100
    rest[:1000] = frame[100:1100]
    parser.filled(1000)
    assert list(parser) == []
    parser.feed(frame[1100:] + build(2, 10))
    assert [(f.op, bytes(f.body)) for f in parser] == [(32, frame[12:]), (2, b"")]
    assert parser.missing() is None


def test_a_kept_body_survives_the_next_feed() -> None:
    parser = FrameParser(LIMIT)
    buffer = bytearray(build(1, 1, b"first"))
    parser.feed(buffer)
    (frame,) = parser
    buffer[:] = build(1, 2, b"later")
    parser.feed(buffer)
    assert frame.body == b"first"
