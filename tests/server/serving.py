"""A server in the test's own process, and a raw client that speaks frames and nothing more."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from journal.engine import Engine, open_engine
from journal.protocol import Frame, FrameParser, Op, decode_error, decode_reply, encode, frames
from journal.protocol.messages import HelloRequest, OpenShardRequest
from journal.server import Server
from journal.settings.access import AccessRuleTable, AccessSection, TlsSection
from journal.settings.server import (
    ConversionConfig,
    LimitsConfig,
    ListenConfig,
    ServerConfig,
    ShardsConfig,
    StorageConfig,
)
from journal.settings.values import KIB, MIB, Permission
from shards.format.batch import encode_values, read_records
from shards.format.record import Gap, StoredRecord
from shards.model import Mode, ShardConfig
from tests.patience import PATIENCE_S
from tests.protocol.append_frames import Ack, acks_of

MEMORY = ShardConfig(mode=Mode.MEMORY)
FILE = ShardConfig()


EVERYTHING = AccessRuleTable(Permission.ALLOW, ("#", "$mqtt/#", "$queue/#", "$state/#", "$metrics"))


@attrs.define
class Served:
    """A running server.

    Attributes:
        unexpected: Exceptions that the server met and did not expect. The fixture fails the test if there are any.
        ports: Of its listeners, by name.
    """

    engine: Engine
    server: Server
    ports: dict[str, int]
    unexpected: list[Exception] = attrs.Factory(list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['tcp']}"

    @asynccontextmanager
    async def client(self, *, receive_buffer_bytes: int = 0, **credentials: str) -> AsyncIterator[RawClient]:
        """A connection that has said HELLO."""
        async with self.stream(receive_buffer_bytes=receive_buffer_bytes) as stream:
            client = RawClient(stream)
            await client.hello(**credentials)
            yield client

    @asynccontextmanager
    async def stream(self, *, receive_buffer_bytes: int = 0) -> AsyncIterator[trio.SocketStream]:
        """A bare connection; a small receive buffer makes a client that does not read noticed early."""
        with trio.socket.socket() as sock:
            if receive_buffer_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            await sock.connect(("127.0.0.1", self.ports["tcp"]))
            async with trio.SocketStream(sock) as stream:
                yield stream


def small_config(**changes: Any) -> ServerConfig:
    """Small files, so that a test starts and stops quickly. Changes by dotted name with `__` for the dot."""
    sections: dict[str, Any] = {
        "storage": StorageConfig(
            journal_file_bytes=2 * MIB,
            journal_budget_bytes=8 * MIB,
            segment_bytes=1 * MIB,
            tail_budget_bytes=4 * MIB,
            memory_segment_bytes=256 * KIB,
            memory_budget_bytes=16 * MIB,
            disk_reserve_bytes=0,
            flush_interval_ms=50,
        ),
        "limits": LimitsConfig(
            max_batch_bytes=1 * MIB,
            max_frame_bytes=2 * MIB,
            max_inflight_bytes_per_connection=2 * MIB,
            max_output_bytes_per_connection=2 * MIB,
        ),
        "shards": ShardsConfig(),
        "conversion": ConversionConfig(),
        "listen": ListenConfig(),
        "tls": TlsSection(),
        "access": AccessSection(),
    }
    for name, value in changes.items():
        if name == "quotas":
            sections[name] = value
            continue
        section, _, key = name.partition("__")
        sections[section] = attrs.evolve(sections[section], **{key: value})
    access = sections["access"]
    if not access.rules and (access.users_file or access.tokens_file or sections["tls"].client_ca_file):
        # Most tests with users have no rules, since they are about something else: the users may do everything.
        sections["access"] = attrs.evolve(access, rules=(EVERYTHING,))
    return ServerConfig(**sections)


@asynccontextmanager
async def serving(
    path: Path,
    *,
    socket_buffer_bytes: int = 0,
    ports: dict[str, int] | None = None,
    within_s: float = 2 * PATIENCE_S,
    **changes: Any,
) -> AsyncIterator[Served]:
    """Serve a data directory for the length of the block; fails if the server met what it did not expect.

    Small socket buffers keep the kernel from hiding how much the server takes in. With the ports of one that has ended,
    it comes back where it was.
    """
    ports = ports or {}
    sockets = {name: _bound(socket_buffer_bytes, ports.get(name, 0)) for name in ("tcp", "websocket", "http")}
    try:
        async with open_engine(str(path / "data"), small_config(**changes)) as engine:
            served = Served(engine, Server(engine), {name: sock.getsockname()[1] for name, sock in sockets.items()})
            served.server._report = lambda error, number: served.unexpected.append(error)  # type: ignore[method-assign]
            with trio.fail_after(within_s):
                async with trio.open_nursery() as nursery:
                    await nursery.start(served.server.run, sockets)
                    yield served
                    served.server.stopping.set()
        assert not served.unexpected, served.unexpected
    finally:
        for sock in sockets.values():
            sock.close()


def _bound(buffer_bytes: int, port: int) -> socket.socket:
    sock = socket.socket()
    if buffer_bytes:
        # What is accepted inherits them.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


class RawClient:
    """Frames out, frames in. What comes while a reply is awaited is kept in ``others``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.others: list[Frame] = []
        self._parser = FrameParser(64 << 20)
        self._received: list[Frame] = []
        self._correlation = 0
        self.connection_id = 0

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    async def send(self, *parts: bytes) -> None:
        await self.stream.send_all(b"".join(parts))

    def send_nowait(self, data: bytes) -> None:
        """Send a few bytes over TCP before any other task runs."""
        assert isinstance(self.stream, trio.SocketStream)
        assert os.write(self.stream.socket.fileno(), data) == len(data)

    async def receive(self, wanted: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The next frame that is wanted, also out of ``others``.

        Raises:
            EOFError: The server closed the connection.
        """
        for at, frame in enumerate(self.others):
            if wanted(frame):
                return self.others.pop(at)
        with trio.fail_after(PATIENCE_S):
            while True:
                while self._received:
                    frame = self._received.pop(0)
                    if wanted(frame):
                        return frame
                    self.others.append(frame)
                data = await self.stream.receive_some(65536)
                if not data:
                    raise EOFError("the server closed the connection")
                self._parser.feed(data)
                self._received.extend(self._parser)

    async def hello(self, **credentials: str) -> None:
        reply = await self.call(Op.HELLO, HelloRequest(frames.PROTOCOL_VERSION, "test", credentials or None))
        self.connection_id = reply.connection_id

    def start(self, op: Op, message: object | None = None) -> tuple[int, bytes]:
        """Correlation and frame of a request."""
        correlation = self.next_correlation()
        return correlation, frames.build(op, correlation, b"" if message is None else encode(message))

    async def call(self, op: Op, message: object | None = None) -> Any:
        """Request and reply.

        Raises:
            StorageError: What the server answered.
        """
        correlation, frame = self.start(op, message)
        await self.send(frame)
        return await self.reply_to(op, correlation)

    async def reply_to(self, op: Op, correlation: int) -> Any:
        reply = await self.receive(lambda frame: frame.correlation == correlation and frame.op == op)
        if reply.status:
            raise decode_error(reply.status, reply.body)
        return decode_reply(op, reply.body)

    async def open(self, name: str, config: ShardConfig | None = FILE) -> int:
        """Handle of a shard, which is made if need be (unless ``config`` is None)."""
        return (await self.call(Op.OPEN_SHARD, OpenShardRequest(name, config))).handle

    async def append(self, handle: int, batch: bytes, *, ack: int = 0, expected_offset: int = -1) -> Ack:
        """Append one batch and wait for its acknowledgement.

        Raises:
            StorageError: It was refused.
        """
        correlation = self.next_correlation()
        await self.send(frames.build_append(correlation, handle, batch, ack_level=ack, expected_offset=expected_offset))
        return (await self.acks([correlation]))[correlation]

    async def append_values(self, handle: int, *values: bytes, ack: int = 0) -> Ack:
        return await self.append(handle, batch_of(*values), ack=ack)

    async def acks(self, correlations: list[int]) -> dict[int, Ack]:
        """Acknowledgements of appends, however they are combined."""
        missing = set(correlations)
        found: dict[int, Ack] = {}
        while missing:
            frame = await self.receive(
                lambda frame: frame.op == Op.APPENDED or (frame.op == Op.APPEND and frame.correlation in missing)
            )
            if frame.status:
                raise decode_error(frame.status, frame.body)
            for ack in acks_in(frame):
                found[ack.correlation] = ack
                missing.discard(ack.correlation)
        return found

    async def fetch(
        self, handle: int, offset: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0
    ) -> frames.FetchReply:
        """One fetch.

        Raises:
            StorageError: What the server answered.
        """
        correlation = self.next_correlation()
        await self.send(frames.build_fetch(correlation, handle, offset, max_bytes, max_wait_ms))
        return await self.fetched(correlation)

    async def fetched(self, correlation: int) -> frames.FetchReply:
        reply = await self.receive(lambda frame: frame.correlation == correlation)
        if reply.status:
            raise decode_error(reply.status, reply.body)
        return frames.read_fetch_reply(reply.body)

    async def read_values(self, handle: int, offset: int = 0) -> list[bytes]:
        """All values from an offset on; gaps are left out."""
        values: list[bytes] = []
        while True:
            reply = await self.fetch(handle, offset)
            if not len(reply.batches):
                return values
            values.extend(values_of(reply.batches, offset))
            offset = reply.next_offset

    async def push(self) -> frames.Push:
        return frames.read_push((await self.receive(lambda frame: frame.op == Op.PUSH)).body)

    async def event(self) -> Any:
        return decode_reply(Op.SHARD_EVENT, (await self.receive(lambda frame: frame.op == Op.SHARD_EVENT)).body)

    async def receive_until_closed(self) -> list[Frame]:
        """Everything until the server closes."""
        found = []
        try:
            while True:
                found.append(await self.receive())
        except (EOFError, trio.BrokenResourceError):
            return found


def acks_in(frame: Frame) -> Iterator[Ack]:
    return acks_of(frame.body)


def batch_of(*values: bytes, timestamp_us: int = 1_000, **producer: int) -> bytes:
    return encode_values(values, timestamp_us=timestamp_us, **producer)


def records_of(batches: bytes | memoryview, offset: int = 0) -> list[StoredRecord | Gap]:
    return read_records(batches, start_offset=offset)


def values_of(batches: bytes | memoryview, offset: int = 0) -> list[bytes]:
    return [record.value for record in records_of(batches, offset) if isinstance(record, StoredRecord)]
