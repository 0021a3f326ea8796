"""A blocking client of the journal protocol with only the requests that the benchmark makes, and counters of replies.

Not the product's client on purpose: rows called "encoded" measure the server with the cheapest possible generator, rows
called "adapter" measure the product's client.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from benchmarks import load
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.model import ShardConfig

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Wire:
    """One connection. Requests are blocking and in order; hot paths use `socket` directly.

    Args:
        address: Address of the server.
        timeout_s: Limit of each wait, in seconds.
        tls: TLS context; None for no TLS.
        credentials: Credentials; None for none.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        timeout_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self.socket = load.connect(address, timeout_s=timeout_s)
        if tls is not None:
            tls.sslsocket_class = _Encrypted
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])
        self.request(Op.HELLO, {"version": frames.PROTOCOL_VERSION, "client": "benchmark", "credentials": credentials})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def request(self, op: Op, body: Any) -> dict[str, Any]:
        """Send one MessagePack request and wait for its reply."""
        return self.requests(op, [body])[0]

    def requests(self, op: Op, bodies: Sequence[Any]) -> list[dict[str, Any]]:
        """Send many requests of one kind at once; returns the replies in the order of the requests."""
        self.socket.sendall(b"".join(frames.build(op, number, _encode(body)) for number, body in enumerate(bodies)))
        replies: dict[int, dict[str, Any]] = {}
        while len(replies) < len(bodies):
            found, correlation, body = self.receive()
            if found == op:
                replies[correlation] = _decode(body) if body else {}
        return [replies[number] for number in range(len(bodies))]

    def receive(self) -> tuple[int, int, bytes]:
        """Wait for one frame: op, correlation, body. Raises `load.LoadError` for an error reply."""
        length, op, status, correlation = frames.HEADER.unpack(self._exactly(frames.HEADER.size))
        body = self._exactly(length - frames.HEADER.size)
        if status:
            refusal = _decode(body)
            raise load.LoadError(f"{_name(op)} refused: {refusal['code']}: {refusal['message']}")
        return op, correlation, body

    def open(self, names: Sequence[str], create: ShardConfig | None) -> list[int]:
        """Open shards, creating missing ones; returns their handles."""
        handles: list[int] = []
        for start in range(0, len(names), 500):
            bodies = [{"name": name, "create": create} for name in names[start : start + 500]]
            handles += [int(reply["handle"]) for reply in self.requests(Op.OPEN_SHARD, bodies)]
        return handles

    def delete(self, name: str) -> None:
        """Delete a shard."""
        self.request(Op.DELETE_SHARD, {"name": name})

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self.socket.recv(size)
            if not part:
                raise load.LoadError("the server closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Encrypted(ssl.SSLSocket):
    """A TLS socket that raises the same error as a plain one when it would block."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None


class AckCounter:
    """Counts acknowledged appends in a byte stream, reading only frame headers."""

    def __init__(self) -> None:
        self._rest = 0
        self._head = b""

    def __call__(self, buffer: bytearray, received: int) -> int:
        acknowledged = at = 0
        while at < received:
            if self._rest:
                step = min(self._rest, received - at)
                self._rest -= step
                at += step
                continue
            missing = frames.HEADER.size - len(self._head)
            self._head += bytes(buffer[at : min(at + missing, received)])
            at += missing
            if len(self._head) < frames.HEADER.size:
                break
            length, op, status, _ = frames.HEADER.unpack(self._head)
            self._head = b""
            if status or op != Op.APPENDED:
                raise load.LoadError(
                    f"{_name(op)} with status {status}: {bytes(buffer[at : min(at + 300, received)])!r}"
                )
            acknowledged += (length - frames.APPENDED_HEAD.size) // frames.ACK.size
            self._rest = length - frames.HEADER.size
        return acknowledged


class FrameCutter:
    """Cuts a byte stream of low rate into whole frames."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Op and whole frame (header included) of each frame that is now complete."""
        self._unread += data
        at = 0
        while len(self._unread) - at >= frames.HEADER.size:
            length, op, status, _ = frames.HEADER.unpack_from(self._unread, at)
            if len(self._unread) - at < length:
                break
            if status:
                raise load.LoadError(f"{_name(op)} refused: {self._unread[at : at + 300]!r}")
            yield op, self._unread[at : at + length]
            at += length
        self._unread = self._unread[at:]


def fetch_bytes_per_s(
    connection: socket.socket, shards: Sequence[tuple[int, int]], *, max_bytes: int, timing: load.Timing
) -> float:
    """Read shards repeatedly by offset; the next request is sent before the body of the last reply is received.

    Args:
        shards: Handle and next offset of each; they are read from offset 0 on, one after the other.

    Returns:
        Batch bytes received per second.
    """
    connection.settimeout(60.0)
    buffer = memoryview(bytearray(max_bytes + (4 << 20)))
    total = 0
    clock = load.RateClock(timing)
    turns = itertools.cycle(shards)
    handle, end_offset = next(turns)
    connection.sendall(frames.build_fetch(0, handle, 0, max_bytes, 0))
    while True:
        _fill(connection, buffer[: frames.HEADER.size])
        length, op, status, _ = frames.HEADER.unpack_from(buffer)
        if status or op != Op.FETCH or length > len(buffer):
            raise load.LoadError(f"{_name(op)} with status {status} and {length} bytes")
        _fill(connection, buffer[frames.HEADER.size : frames.FETCH_REPLY.size])
        next_offset = frames.FETCH_REPLY.unpack_from(buffer)[-1]
        done = clock.ended(total)
        if not done:
            if next_offset >= end_offset:
                handle, end_offset = next(turns)
                next_offset = 0
            connection.sendall(frames.build_fetch(0, handle, next_offset, max_bytes, 0))
        size = length - frames.FETCH_REPLY.size
        if not size:
            raise load.LoadError(f"an empty fetch reply, next offset {next_offset} of {end_offset}")
        _fill(connection, buffer[:size])
        total += size
        if done:
            return clock.rate()


def _fill(connection: socket.socket, target: memoryview) -> None:
    while target:
        received = connection.recv_into(target, len(target), socket.MSG_WAITALL)
        if not received:
            raise load.LoadError("the server closed the connection")
        target = target[received:]


def _name(op: int) -> str:
    try:
        return Op(op).name
    except ValueError:
        return f"op {op}"
