"""When a client connects again: failures before a session was established do not delay a reconnect after it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from journal.client.connection import Connection
from journal.client.session_keeper import SessionTimes, keep_session
from journal.protocol import Frame, FrameParser, Op, encode, encode_error, frames, messages
from journal.protocol.errors import AuthenticationError, ConnectionLostError
from journal.protocol.messages import HelloReply
from shards.back_off import BackOff
from shards.errors import FormatVersionError, StorageError

BACK_OFF = BackOff(0.05, 2.0)
TIMES = SessionTimes(ping_interval_s=1000.0)
DOWN = -1.0


class ScriptedTransport:
    """Answers HELLO, and nothing else; it ends after a time."""

    def __init__(self, lasts_s: float, version: int = frames.PROTOCOL_VERSION) -> None:
        self._version = version
        self._ends_at_s = trio.current_time() + lasts_s
        self._parser = FrameParser(1 << 20)
        self._answers, self._answered = trio.open_memory_channel[bytes](10)

    async def receive_into(self, buffer: memoryview) -> int:
        with trio.move_on_at(self._ends_at_s):
            data = await self._answered.receive()
            buffer[: len(data)] = data
            return len(data)
        return 0

    async def send(self, parts: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self._parser.feed(b"".join(parts))
        for frame in self._parser:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.op == Op.HELLO:
            reply = messages.HelloReply(self._version, "scripted", "node", 1 << 20, 1 << 20, 1)
            self._answers.send_nowait(frames.build(Op.HELLO, frame.correlation, encode(reply)))

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class RefusingTransport(ScriptedTransport):
    """Refuses HELLO, and has the end of the stream at hand right behind the refusal."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self._has_ended = False

    async def receive_into(self, buffer: memoryview) -> int:
        if self._has_ended:
            return 0
        size_bytes = await super().receive_into(buffer)
        self._has_ended = True
        return size_bytes

    def _take(self, frame: Frame) -> None:
        if frame.op == Op.HELLO:
            refusal = AuthenticationError("the token expired")
            self._answers.send_nowait(encode_error(frame.correlation, frame.op, refusal))


@attrs.define
class Owner:
    """Notes when sessions end, and the error after which none is opened any more."""

    ended_s: list[float] = attrs.Factory(list)
    refusal: StorageError | None = None

    async def prepare_session(self, connection: Connection, hello: HelloReply) -> None:
        await trio.lowlevel.checkpoint()

    def session_began(self, connection: Connection) -> None:
        pass

    def session_ended(self, reason: StorageError) -> None:
        self.ended_s.append(trio.current_time())

    def session_refused(self, error: StorageError) -> None:
        self.refusal = error

    def appended(self, acks: Iterator[tuple[int, int, int, int, int]]) -> None:
        raise AssertionError

    def append_refused(self, correlation: int, error: StorageError) -> None:
        raise AssertionError

    def pushed(self, push: frames.Push) -> None:
        raise AssertionError

    def shard_event(self, event: messages.ShardEvent) -> None:
        raise AssertionError

    def fill(self, parts: list[bytes], limit_bytes: int) -> None:
        pass


async def delays_of(script: Sequence[float]) -> list[float]:
    """Keep a session through what each attempt meets; the delays before the attempts but for the first.

    Args:
        script: For each attempt how long its session lasts, or `DOWN`.
    """
    owner = Owner()
    tried_s: list[float] = []
    failed_s: list[float] = []
    is_over = trio.Event()

    async def connect(_nursery: trio.Nursery) -> ScriptedTransport:
        await trio.lowlevel.checkpoint()
        tried_s.append(trio.current_time())
        if len(tried_s) > len(script):
            is_over.set()
            await trio.sleep_forever()
        lasts_s = script[len(tried_s) - 1]
        if lasts_s == DOWN:
            failed_s.append(trio.current_time())
            raise ConnectionLostError("refused")
        return ScriptedTransport(lasts_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: keep_session(owner, connect, name="c", backoff=BACK_OFF, times=TIMES))
        await is_over.wait()
        nursery.cancel_scope.cancel()
    assert owner.refusal is None
    ends = sorted([*failed_s, *owner.ended_s])
    return [tried - end for end, tried in zip(ends, tried_s[1:], strict=True)]


async def test_the_first_delay_after_a_session_is_short_however_long_the_outage_before_it_was(
    autojump_clock: MockClock,
) -> None:
    """A broker whose connection was ended by END_CLIENT soon after an outage held its publishers up for up to 5 s."""
    delays = await delays_of([DOWN] * 12 + [1.0, 1.0, 1.0])
    assert delays[11] >= BACK_OFF.longest_s / 2
    assert max(delays[12:]) <= BACK_OFF.first_s


async def test_delays_double_while_the_server_is_away(autojump_clock: MockClock) -> None:
    delays = await delays_of([100.0] + [DOWN] * 12)
    for attempt, delay_s in enumerate(delays):
        assert BACK_OFF.longest_delay_s(attempt) / 2 <= delay_s <= BACK_OFF.longest_delay_s(attempt)
    assert delays[-1] <= BACK_OFF.longest_s


@pytest.mark.parametrize("before", [[], [DOWN] * 12])
async def test_sessions_that_end_at_once_are_failures(autojump_clock: MockClock, before: list[float]) -> None:
    """A server that takes a client and ends its session for some reason is not asked without a pause."""
    delays = (await delays_of([*before, *[0.001] * 10]))[len(before) :]
    assert delays[0] <= 2 * BACK_OFF.first_s
    assert delays[-1] >= BACK_OFF.longest_s / 2


async def test_a_refusal_is_the_reason_also_if_the_server_has_closed_the_connection_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """A command with an expired token reported now and then that the server does not answer."""

    async def connect(_nursery: trio.Nursery) -> RefusingTransport:
        await trio.lowlevel.checkpoint()
        return RefusingTransport()

    owner = Owner()
    with trio.fail_after(100.0):
        await keep_session(owner, connect, name="c", backoff=BACK_OFF, times=TIMES)
    assert isinstance(owner.refusal, AuthenticationError)


@pytest.mark.parametrize(
    ("version", "older"),
    [(frames.PROTOCOL_VERSION - 1, r"the server \(scripted\)"), (frames.PROTOCOL_VERSION + 1, "this client")],
)
async def test_a_server_of_another_protocol_version_is_refused_at_once(
    autojump_clock: MockClock, version: int, older: str
) -> None:
    async def connect(_nursery: trio.Nursery) -> ScriptedTransport:
        await trio.lowlevel.checkpoint()
        return ScriptedTransport(1000.0, version)

    owner = Owner()
    with trio.fail_after(1.0):
        await keep_session(owner, connect, name="c", backoff=BACK_OFF, times=TIMES)
    assert isinstance(owner.refusal, FormatVersionError)
    assert re.match(
        rf"the server \(scripted\) uses protocol version {version} and this client uses version "
        rf"{frames.PROTOCOL_VERSION}; update {older}:",
        str(owner.refusal),
    )
