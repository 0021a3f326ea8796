"""A small journal server in memory, for tests of the client: real frames over loopback sockets, faults on demand.

It keeps the rules of docs/protocol.md that a client relies on (sequences, acknowledgement in order, credits) and none
of the storage. Run as a program it serves one port until killed, for measuring the client alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from journal.protocol import (
    FrameParser,
    Op,
    RemoteProtocolError,
    decode_request,
    encode,
    encode_error,
    frames,
    messages,
)
from journal.protocol.errors import AuthenticationError, UnknownHandleError, UnknownOperationError
from journal.protocol.frames import build
from shards.errors import (
    OffsetConflictError,
    OffsetOutOfRangeError,
    SequenceGapError,
    ShardNotFoundError,
    StaleEpochError,
    StorageError,
    UnknownProducerError,
)
from shards.format.batch import stamp, verify_body
from shards.format.batch_header import MAX_SEQUENCE, BatchHeader
from shards.model import ProducerIdentity, ShardConfig, ShardInfo
from tests.protocol.append_frames import build_appended, read_append


class FakeShard:
    """Stamped batches by base offset, and the sequences of producers."""

    def __init__(self, name: str, shard_id: int) -> None:
        self.name = name
        self.shard_id = shard_id
        self.batches: list[tuple[int, int, bytes]] = []
        self.next_offset = 0
        self.last_lsn = 0
        # (producer id, epoch) -> (next sequence, offsets by sequence)
        self.producers: dict[tuple[int, int], tuple[int, dict[int, int]]] = {}

    def info(self) -> ShardInfo:
        return ShardInfo(self.name, self.shard_id, ShardConfig(), 1, 0, self.next_offset, self.last_lsn, 0)


class Session:
    """One connection of the fake server."""

    def __init__(self, server: FakeServer, stream: trio.SocketStream, number: int) -> None:
        self.server = server
        self.stream = stream
        self.number = number
        self.handles: dict[int, FakeShard] = {}
        self.out: list[bytes] = []
        self.late: list[bytes] = []
        self.acks: list[tuple[int, int, int, int]] = []
        self.credits: dict[int, int] = {}
        self.subscriptions: dict[int, tuple[messages.SubscribeRequest, dict[str, int]]] = {}
        self.refs: dict[str, int] = {}
        self.greeted = False

    async def run(self) -> None:
        parser = FrameParser(64 << 20)
        while data := await self.stream.receive_some(1 << 20):
            parser.feed(data)
            for frame in parser:
                self.server.seen.append(frame.op) if self.server.keep_seen else None
                self.handle(frame.op, frame.correlation, frame.body)
            self.push()
            await self.flush()

    async def flush(self) -> None:
        if self.acks and not self.server.hold_acks:
            self.out.append(build_appended(self.acks))
            self.acks = []
        out, self.out = self.out, []
        if out:
            await self.stream.send_all(b"".join(out))

    def handle(self, op: int, correlation: int, body: bytes | memoryview) -> None:
        try:
            if not self.greeted and op != Op.HELLO:
                raise RemoteProtocolError("the first frame must be HELLO")
            if op == Op.APPEND:
                self.append(correlation, body)
            elif op == Op.FETCH:
                self.fetch(correlation, body)
            elif op == Op.CREDIT:
                number, size_bytes = frames.read_credit(body)
                if number in self.credits:
                    self.credits[number] += size_bytes
            elif op == Op.ACKNOWLEDGE:
                self.server.acknowledged.append(frames.read_acknowledge(body))
            elif op in (Op.FETCH_INDEXED, Op.STATUS) or op not in REQUESTS:
                raise UnknownOperationError(f"operation {op}")
            else:
                request = decode_request(Op(op), body)
                fault = self.server.fault(op, request)
                if fault is not None:
                    raise fault
                reply = REQUESTS[Op(op)](self, request)
                if op == self.server.answers_late:
                    self.late.append(build(op, correlation, encode(reply)))
                elif reply is not None:
                    self.out.append(build(op, correlation, encode(reply)))
        except StorageError as error:
            self.out.append(encode_error(correlation, op, error))

    def append(self, correlation: int, body: bytes | memoryview) -> None:
        head, batch = read_append(body)
        server = self.server
        server.append_count += 1
        header = verify_body(batch) if server.check_batches else BatchHeader.unpack(batch)
        shard = self.handles.get(head.handle)
        if shard is None or server.shards.get(shard.name) is not shard:
            raise UnknownHandleError(f"handle {head.handle}")
        epoch = server.epochs.get(header.producer_id)
        if epoch is None:
            raise UnknownProducerError(f"producer {header.producer_id}")
        if header.producer_epoch < epoch:
            raise StaleEpochError(f"epoch {header.producer_epoch} of producer {header.producer_id} is over: {epoch}")
        # A newer epoch begins again: its holder does not know the sequences of the one before.
        producer = (header.producer_id, header.producer_epoch)
        expected, offsets = shard.producers.get(producer, (header.sequence, {}))
        behind = (expected - header.sequence) % MAX_SEQUENCE
        if 0 < behind < MAX_SEQUENCE // 2:
            self.acks.append((correlation, 2, frames.ACK_DUPLICATE, offsets.get(header.sequence, -1)))
            return
        fault = server.append_fault(shard.name, batch)
        if fault is not None:
            raise fault
        if behind:
            raise SequenceGapError(f"expected {expected}, got {header.sequence}", expected)
        if head.expected_offset not in (-1, shard.next_offset):
            raise OffsetConflictError(shard.name, head.expected_offset, shard.next_offset)
        base = shard.next_offset
        server.lsn += 1
        stored = bytearray(batch)
        stamp(stored, 0, base, server.lsn, 1)
        shard.next_offset += header.record_count
        shard.last_lsn = server.lsn
        if server.keep_batches:
            shard.batches.append((base, shard.next_offset, bytes(stored)))
            offsets[header.sequence] = base
        shard.producers[producer] = ((header.sequence + header.record_count) % MAX_SEQUENCE, offsets)
        self.acks.append((correlation, head.ack_level or 2, 0, base))

    def fetch(self, correlation: int, body: bytes | memoryview) -> None:
        request = frames.read_fetch(body)
        shard = self.handles.get(request.handle)
        if shard is None:
            raise UnknownHandleError(f"handle {request.handle}")
        if request.offset > shard.next_offset:
            raise OffsetOutOfRangeError(shard.name, request.offset, 0, shard.next_offset)
        wanted = [(start, end, batch) for start, end, batch in shard.batches if end > request.offset]
        size = 0
        taken: list[bytes] = []
        for _, _, batch in wanted:
            if taken and size + len(batch) > request.max_bytes:
                break
            taken.append(batch)
            size += len(batch)
        end = wanted[len(taken) - 1][1] if taken else request.offset
        self.out.append(frames.build_fetch_reply_head(correlation, 0, end, size) + b"".join(taken))

    def push(self) -> None:
        """Send each subscription what its credit allows."""
        for number, (request, positions) in self.subscriptions.items():
            for shard in self.server.matching(request):
                if shard.name not in positions:
                    self.join(number, positions, shard, 0)
                for start, end, batch in shard.batches:
                    if self.credits[number] <= 0:
                        return
                    if end > positions[shard.name]:
                        ref = self.refs[shard.name]
                        first = max(start, positions[shard.name])
                        self.out.append(frames.build_push_head(number, ref, first, end, len(batch)) + batch)
                        self.credits[number] -= len(batch)
                        self.server.pushed_bytes += len(batch)
                        positions[shard.name] = end

    def join(self, number: int, positions: dict[str, int], shard: FakeShard, offset: int) -> None:
        positions[shard.name] = offset
        ref = self.refs.setdefault(shard.name, len(self.refs) + 1)
        event = messages.ShardEvent(number, "added", ref, shard.name, offset, shard.shard_id)
        self.out.append(build(Op.SHARD_EVENT, 0, encode(event)))

    def hello(self, request: messages.HelloRequest) -> object:
        if self.server.token is not None and (request.credentials or {}).get("token") != self.server.token:
            raise AuthenticationError("wrong token")
        self.greeted = True
        return messages.HelloReply(frames.PROTOCOL_VERSION, "fake", "node", 16 << 20, 8 << 20, self.number)

    def open_shard(self, request: messages.OpenShardRequest) -> object:
        shard = self.server.shards.get(request.name)
        if shard is None:
            if request.create is None:
                raise ShardNotFoundError(f"no shard {request.name!r}")
            shard = self.server.create(request.name)
        handle = len(self.handles) + 1
        self.handles[handle] = shard
        return messages.OpenShardReply(handle, shard.info())

    def subscribe(self, request: messages.SubscribeRequest) -> object:
        positions: dict[str, int] = {}
        if request.shard is not None and request.shard not in self.server.shards:
            raise ShardNotFoundError(f"no shard {request.shard!r}")
        self.subscriptions[request.subscription] = (request, positions)
        self.credits[request.subscription] = request.credit_bytes
        self.server.subscribed.append(request)
        for shard in self.server.matching(request):
            self.join(request.subscription, positions, shard, self.start_of(shard, request))
        return messages.SubscribeReply(self.server.lsn)

    def start_of(self, shard: FakeShard, request: messages.SubscribeRequest) -> int:
        if request.start == "latest":
            return shard.next_offset
        if request.start == "offset":
            return request.value
        if request.start == "lsn":
            found = [start for start, _, batch in shard.batches if BatchHeader.unpack(batch).lsn >= request.value]
            return found[0] if found else shard.next_offset
        return 0

    def unsubscribe(self, request: messages.UnsubscribeRequest) -> object:
        self.subscriptions.pop(request.subscription, None)
        return messages.Empty()


class FakeServer:
    """State that outlives connections, and the faults a test asks for."""

    def __init__(self) -> None:
        self.shards: dict[str, FakeShard] = {}
        self.epochs: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.sessions: list[Session] = []
        self.session_count = 0
        self.lsn = 0
        self.append_count = 0
        self.pushed_bytes = 0
        self.seen: list[int] = []
        self.subscribed: list[messages.SubscribeRequest] = []
        self.acknowledged: list[frames.Acknowledge] = []
        self.token: str | None = None
        self.hold_acks = False
        self.answers_late: Op | None = None
        self.keep_batches = True
        self.keep_seen = True
        self.check_batches = True
        self.greeting: bytes | None = None
        self.append_fault: Callable[[str, memoryview], StorageError | None] = lambda shard, batch: None
        self.fault: Callable[[int, Any], StorageError | None] = lambda op, request: None
        self.port = 0

    def create(self, name: str) -> FakeShard:
        shard = self.shards[name] = FakeShard(name, len(self.shards) + 1)
        return shard

    def matching(self, request: messages.SubscribeRequest) -> list[FakeShard]:
        if request.shard is not None:
            return [self.shards[request.shard]] if request.shard in self.shards else []
        prefix = (request.filter or "").removesuffix("#")
        return [shard for name, shard in sorted(self.shards.items()) if name.startswith(prefix)]

    def open_producer(self, name: str) -> ProducerIdentity:
        number = self.names.setdefault(name, len(self.names) + 1)
        self.epochs[number] = self.epochs.get(number, 0) + 1
        return ProducerIdentity(number, self.epochs[number])

    async def serve(self, stream: trio.SocketStream) -> None:
        self.session_count += 1
        session = Session(self, stream, self.session_count)
        self.sessions.append(session)
        try:
            if self.greeting is not None:
                greeting, self.greeting = self.greeting, None
                await stream.send_all(greeting)
            await session.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self.sessions.remove(session)
            await trio.aclose_forcefully(stream)

    async def kill_connections(self) -> None:
        """Close every connection, with whatever is unsent in it."""
        for session in list(self.sessions):
            session.acks.clear()
            await trio.aclose_forcefully(session.stream)

    async def release_acks(self) -> None:
        self.hold_acks = False
        self.answers_late = None
        for session in self.sessions:
            session.out += session.late
            session.late.clear()
        await self.flush()

    async def flush(self) -> None:
        for session in list(self.sessions):
            session.push()
            await session.flush()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, self.serve, listeners)
            yield self
            nursery.cancel_scope.cancel()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


REQUESTS: dict[Op, Callable[[Session, Any], object]] = {
    Op.HELLO: Session.hello,
    Op.PING: lambda session, request: messages.Empty(),
    Op.END_CLIENT: lambda session, request: messages.EndClientReply(0),
    Op.OPEN_SHARD: Session.open_shard,
    Op.LIST_SHARDS: lambda session, request: messages.ListShardsReply(
        [shard.info() for name, shard in sorted(session.server.shards.items()) if name > request.after][
            : request.limit
        ],
        len([name for name in session.server.shards if name > request.after]) > request.limit,
    ),
    Op.CREATE_SHARD: lambda session, request: session.server.create(request.name).info(),
    Op.FIND_OFFSET: lambda session, request: messages.FindOffsetReply(session.handles[request.handle].next_offset),
    Op.SUBSCRIBE: Session.subscribe,
    Op.UNSUBSCRIBE: Session.unsubscribe,
    Op.PRODUCER_OPEN: lambda session, request: session.server.open_producer(request.name),
    Op.STATE_PUT: lambda session, request: None,
}


async def main() -> None:
    server = FakeServer()
    server.keep_batches = server.keep_seen = server.check_batches = False
    for number in range(4000):
        server.create(f"s{number}")
    async with server.running():
        print(server.port, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
