"""The native protocol: cutting frames, what a server reads of a client, what a client reads of a server."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from journal.client.connection import Connection
from journal.client.receiver import Receiver
from journal.client.transport import Transport
from journal.protocol import (
    OPERATIONS,
    FrameParser,
    Op,
    RemoteProtocolError,
    decode_error,
    decode_reply,
    decode_request,
    encode,
    encode_error,
    frames,
)
from journal.protocol.frames import HEADER
from journal.protocol.messages import ShardEvent, SubscribeReply
from shards.errors import StorageError
from shards.position import Start
from tests.fuzz.target import Target
from tests.protocol.append_frames import read_append

_GOLDEN = Path(__file__).parents[2] / "golden" / f"v{frames.PROTOCOL_VERSION}" / "frames"
_LIMIT_BYTES = 96 * 1024
_Outcome = tuple[list[tuple[int, int, int, bytes]], str | None, bool]


def _parse(pieces: Iterator[bytes]) -> _Outcome:
    parser = FrameParser(_LIMIT_BYTES)
    seen: list[tuple[int, int, int, bytes]] = []
    for piece in pieces:
        direct = parser.missing()
        if direct is not None and len(piece) <= len(direct):
            direct[: len(piece)] = piece
            parser.filled(len(piece))
        else:
            del direct
            parser.feed(piece)
        try:
            seen.extend((frame.op, frame.status, frame.correlation, bytes(frame.body)) for frame in parser)
        except RemoteProtocolError as error:
            return seen, str(error), False
    return seen, None, parser.is_empty


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def run_frames(data: bytes) -> None:
    """A stream gives the same frames and the same fault whole, byte by byte and in uneven pieces.

    The only error is RemoteProtocolError. Frames that parse build the same bytes again. Of an unfinished frame no more
    memory is taken than the limit.
    """
    whole = _parse(iter((data,)))
    for size in (1, 13, 1021):
        assert _parse(_pieces(data, size)) == whole
    seen, _, is_empty = whole
    built = b"".join(frames.build(op, correlation, body, status=status) for op, status, correlation, body in seen)
    assert data.startswith(built)
    assert not is_empty or built == data


def _with_right_lengths(data: bytes) -> bytes:
    """Make the length of each frame that it is cut into fit what is there."""
    fixed = bytearray(data)
    at = 0
    while len(fixed) - at >= HEADER.size:
        length = struct.unpack_from("<I", fixed, at)[0]
        left = len(fixed) - at
        if not HEADER.size <= length <= left:
            length = max(HEADER.size, left if left < 200 or not length else length % left)
            struct.pack_into("<I", fixed, at, length)
        at += length
    return bytes(fixed)


def _golden(*kinds: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(_GOLDEN.iterdir()) if path.name.split(".")[1].endswith(kinds)]
    assert found
    return found


def _frame_seeds() -> list[bytes]:
    golden = _golden("request", "reply", "error")
    large = frames.build(Op.FETCH, 9, bytes(70_000))
    return [*golden, b"".join(golden[:5]), large[:100], large[:1000]]


def _frames_of(data: bytes) -> list[tuple[int, int, int, bytes]]:
    return _parse(iter((data,)))[0]


_REQUEST_READERS: dict[int, tuple[Callable[[bytes], Any], Callable[..., bytes]]] = {
    Op.FETCH: (frames.read_fetch, lambda handle, most, offset, wait: frames.build_fetch(0, handle, offset, most, wait)),
    Op.CREDIT: (frames.read_credit, frames.build_credit),
    Op.ACKNOWLEDGE: (frames.read_acknowledge, frames.build_acknowledge),
}


def run_requests(data: bytes) -> None:
    """The body of each frame is read as a request: a value, RemoteProtocolError, or struct.error of a fixed body.

    A value encodes, and decodes to the same value again.
    """
    for op, _, _, body in _frames_of(data):
        if op in _REQUEST_READERS:
            read, build = _REQUEST_READERS[op]
            try:
                value = read(body)
            except struct.error:
                continue
            assert read(build(*value)[HEADER.size :]) == value
        elif op == Op.APPEND:
            try:
                head, batch = read_append(body)
            except struct.error:
                continue
            built = frames.build_append(
                7, head.handle, bytes(batch), ack_level=head.ack_level, expected_offset=head.expected_offset
            )
            assert read_append(built[HEADER.size :]) == (head, batch)
        elif op in OPERATIONS:
            _check_round_trip(partial(decode_request, Op(op)), body)


def _check_round_trip(decode: Callable[[bytes], Any], body: bytes) -> None:
    try:
        value = decode(body)
    except RemoteProtocolError:
        return
    again = decode(encode(value))
    assert again == value or _holds_nan(value)


def _holds_nan(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, dict):
        return any(map(_holds_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_nan, value))
    return isinstance(value, ShardEvent) and _holds_nan(value.details)


class _Listener:
    """Hands what the server sends to subscriptions of each kind."""

    def __init__(self) -> None:
        def receiver(**options: Any) -> Receiver:
            given: dict[str, Any] = {"shard": None, "topic_filter": None, "group": None, "until_lsn": None}
            made = Receiver(9, Start.latest(), credit_bytes=65536, **{**given, **options})
            made.request(self._sent)
            made.established(SubscribeReply(5))
            return made

        self.sent_bytes = 0
        self.receivers = (receiver(shard="s"), receiver(topic_filter="#"), receiver(topic_filter="#", group="g"))

    def _sent(self, frame: bytes) -> None:
        self.sent_bytes += len(frame)

    def appended(self, acks: Iterator[tuple[int, int, int, int, int]]) -> None:
        for _ in acks:
            pass

    def append_refused(self, correlation: int, error: StorageError) -> None:
        assert isinstance(error, StorageError)

    def pushed(self, push: frames.Push) -> None:
        for receiver in self.receivers:
            receiver.pushed(push)

    def shard_event(self, event: ShardEvent) -> None:
        for receiver in self.receivers:
            receiver.shard_event(event)

    def fill(self, parts: list[bytes], limit_bytes: int) -> None:
        """It sends nothing."""


_NUMBERS = ("offset", "start_offset", "next_offset", "expected_offset", "expected_version", "found_version", "position")


def run_replies(data: bytes) -> None:
    """What a server sends leads to StorageErrors alone, in the session, its calls and its subscriptions.

    Replies and events that decode encode to the same again. An error that a reply carries is an error again with the
    same class, message and attributes when it is sent on, and its numbers are numbers.
    """
    listener = _Listener()
    connection = Connection(cast("Transport", None), listener)
    for frame in _frames_of(data):
        op, status, correlation, body = frame
        outcome: list[StorageError | None] = []
        # The call that the reply belongs to, for most frames.
        connection._calls[correlation] = (op, lambda error, _: outcome.append(error))  # noqa: B023 used at once
        with contextlib.suppress(StorageError):
            connection._dispatch(cast("Any", frame))
        if op in OPERATIONS and OPERATIONS[Op(op)].reply is not None:
            _check_round_trip(partial(decode_reply, Op(op)), body)
        if op in (Op.FETCH, Op.FETCH_INDEXED) and not status:
            with contextlib.suppress(struct.error):
                frames.read_fetch_reply(body)
        if status:
            _check_error(status, body)


def _check_error(status: int, body: bytes) -> None:
    error = decode_error(status, body)
    assert isinstance(error, StorageError)
    for name in _NUMBERS:
        assert isinstance(getattr(error, name, 0), int | None)
    sent_on = encode_error(1, Op.PING, error)
    again = decode_error(HEADER.unpack_from(sent_on)[2], sent_on[HEADER.size :])
    if not isinstance(error, RemoteProtocolError) and type(error) in _LISTED:
        assert type(again) is type(error)
        assert str(again) == str(error)


def _listed() -> frozenset[type]:
    from journal.protocol.errors import ERROR_NUMBERS

    return frozenset(ERROR_NUMBERS)


_LISTED = _listed()


def _error_seeds() -> list[bytes]:
    from shards import errors

    made = (
        errors.OffsetOutOfRangeError("s", 5, 6, 7),
        errors.OffsetConflictError("s", 1, 2),
        errors.VersionConflictError("state", 1, 2),
        errors.CorruptionError("/p", 3, "bad"),
        errors.SequenceGapError("gap", 9),
        errors.OverloadedError("full"),
    )
    return [encode_error(3, Op.APPEND, error) for error in made]


_FIELDS = (
    *tuple(
        name.encode()
        for name in (
            "details",
            "code",
            "message",
            "shard",
            "name",
            "lsn",
            "offset",
            "event",
            "added",
            "removed",
            "progress",
        )
    ),
    b"end",
    b"error",
    b"\xc0",
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 1200,
    b"\xa1\xff",
)

TARGETS = (
    Target("frames", run_frames, _frame_seeds, _with_right_lengths, max_input_bytes=1200),
    Target("requests", run_requests, lambda: _golden("request"), _with_right_lengths, _FIELDS),
    Target("replies", run_replies, lambda: [*_golden("reply", "error"), *_error_seeds()], _with_right_lengths, _FIELDS),
)
