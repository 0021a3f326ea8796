"""When a journal server was asked for marked messages, acknowledged them and passed them on. Pure.

Found in captured frames: an append has the marker in its batch, and its reply has the same correlation; what is passed
on has the marker again. Frames of connections that are older than the capture are found as well: a process sends whole
frames, and the first segment that begins with one is where reading begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from journal.protocol import Frame, FrameParser, Op, RemoteProtocolError
from journal.protocol.frames import HEADER, read_acks
from journal.trace.marker import Marker
from journal.trace.streams import Direction, Segment, by_direction, reassemble

_MAX_FRAME_BYTES: Final = 64 << 20
_OPS: Final = frozenset(Op)
_APPENDS: Final = (Op.APPEND, Op.COMMIT)
_DELIVERIES: Final = (Op.PUSH, Op.FETCH, Op.FETCH_INDEXED)

Times = dict[int, int]
"""Nanoseconds, by the number of the message."""


@attrs.frozen(slots=True)
class JournalTimes:
    """Times of the marked messages at a server, each of the first packet that has it.

    Attributes:
        requested: An append was sent to the server.
        replied: The server acknowledged it.
        delivered: The server sent it to a reader; preferably to one that appends none of them.
    """

    requested: Times
    replied: Times
    delivered: Times


def journal_times(segments: list[Segment], port: int, marker: Marker) -> JournalTimes:
    """Times of marked messages in the traffic of the server at this port."""
    directions = by_direction(segments)
    requested: Times = {}
    replied: Times = {}
    to_readers: Times = {}
    to_writers: Times = {}
    for direction, sent in directions.items():
        if direction.receiver.port != port:
            continue
        numbers_of = _requests(sent, marker, requested)
        if numbers_of:
            _replies(directions.get(direction.reverse, []), numbers_of, replied)
        _add_deliveries(directions, direction.reverse, marker, to_writers if numbers_of else to_readers)
    # A reader may send nothing while it is looked at.
    for direction in directions:
        if direction.sender.port == port and direction.reverse not in directions:
            _add_deliveries(directions, direction, marker, to_readers)
    return JournalTimes(requested, replied, to_writers | to_readers)


def _requests(sent: list[Segment], marker: Marker, requested: Times) -> dict[int, list[int]]:
    """Note the times of appends; returns the messages by the correlation of their request."""
    numbers_of: dict[int, list[int]] = {}
    for sent_ns, frame in _frames(sent):
        if frame.op in _APPENDS and (numbers := marker.numbers(frame.body)):
            numbers_of[frame.correlation] = numbers
            _note(requested, numbers, sent_ns)
    return numbers_of


def _replies(sent: list[Segment], numbers_of: dict[int, list[int]], replied: Times) -> None:
    for sent_ns, frame in _frames(sent):
        if frame.status:
            continue
        if frame.op == Op.APPENDED:
            for correlation, *_ in read_acks(frame.body):
                _note(replied, numbers_of.get(correlation, ()), sent_ns)
        elif frame.op == Op.COMMIT:
            _note(replied, numbers_of.get(frame.correlation, ()), sent_ns)


def _add_deliveries(
    directions: dict[Direction, list[Segment]], direction: Direction, marker: Marker, delivered: Times
) -> None:
    for sent_ns, frame in _frames(directions.get(direction, [])):
        if frame.op in _DELIVERIES and not frame.status:
            _note(delivered, marker.numbers(frame.body), sent_ns)


def _note(times: Times, numbers: list[int] | tuple[()], sent_ns: int) -> None:
    for number in numbers:
        times[number] = min(sent_ns, times.get(number, sent_ns))


def _frames(segments: list[Segment]) -> Iterator[tuple[int, Frame]]:
    """The frames of one direction, each with the time at which its last byte was sent."""
    for run in reassemble(segments):
        parser: FrameParser | None = None
        for sent_ns, data in run:
            if parser is None:
                if not _begins_with_frame(data):
                    continue
                parser = FrameParser(_MAX_FRAME_BYTES)
            parser.feed(data)
            try:
                for frame in parser:
                    yield sent_ns, frame
            except RemoteProtocolError:
                # What looked like the begin of a frame was none.
                parser = None


def _begins_with_frame(data: bytes) -> bool:
    if len(data) < HEADER.size:
        return False
    length, op, _, _ = HEADER.unpack_from(data)
    return HEADER.size <= length <= _MAX_FRAME_BYTES and op in _OPS
