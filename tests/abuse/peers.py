"""Peers that do not keep to the rules: plain sockets and the bytes that go over them."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator, Sequence

from journal.protocol import FrameParser, Op, decode_error, encode, frames, messages
from tests.patience import PATIENCE_S

HELLO = frames.build(Op.HELLO, 1, encode(messages.HelloRequest(frames.PROTOCOL_VERSION, "abuser")))
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
_AT_ONCE = 500


def connect(port: int, sent: bytes = b"") -> socket.socket:
    """A connection over which this was sent."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    if sent:
        sock.sendall(sent)
    return sock


@contextlib.contextmanager
def connections(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Many of them, closed at the end. They come in parts, so that the backlog holds each."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            made.append(stack.enter_context(connect(port, sent)))
            if number % _AT_ONCE == _AT_ONCE - 1:
                _wait_accepted(port)
        yield made


def _wait_accepted(port: int) -> None:
    """Return when the server has accepted all that came before: it answers or closes this one."""
    with contextlib.suppress(ConnectionResetError), connect(port, b"GET / HTTP/1.1\r\n\r\n") as last:
        last.recv(1)


def greeted(port: int) -> socket.socket:
    """A connection whose HELLO was accepted."""
    sock = connect(port, HELLO)
    assert sock.recv(4096)
    return sock


def fragment(data: bytes, *, opcode: int, final: bool = False, compressed: bool = False) -> bytes:
    """A frame of a WebSocket client, masked with nothing."""
    first = bytes([0x80 * final | 0x40 * compressed | opcode])
    size = len(data)
    if size < 126:
        return first + bytes([0x80 | size]) + bytes(4) + data
    if size < 65536:
        return first + b"\xfe" + size.to_bytes(2, "big") + bytes(4) + data
    return first + b"\xff" + size.to_bytes(8, "big") + bytes(4) + data


def upgraded(port: int, subprotocol: str = "") -> socket.socket:
    """A WebSocket that has offered compression, and said nothing yet."""
    offer = f"Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n" if subprotocol else "\r\n"
    sock = connect(port, UPGRADE[:-2] + offer.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += sock.recv(4096)
    assert b" 101 " in answer
    assert subprotocol.encode() in answer
    assert b"permessage-deflate" not in answer, "the server agreed to be sent compressed messages"
    return sock


def open_websocket(port: int) -> socket.socket:
    """The same that has said HELLO."""
    sock = upgraded(port)
    sock.sendall(fragment(HELLO, opcode=2, final=True))
    assert sock.recv(4096)
    return sock


def flood(sock: socket.socket, part: bytes, most_bytes: int, *, patience_s: float = 2.0) -> int:
    """Send the same bytes until the server takes no more or closes; gives how many went."""
    sent = 0
    sock.setblocking(False)
    try:
        while sent < most_bytes and select.select([], [sock], [], patience_s)[1]:
            sent += sock.send(part)
    except ConnectionError:
        pass
    finally:
        sock.setblocking(True)
        sock.settimeout(PATIENCE_S)
    return sent


def reason_of_end(sock: socket.socket) -> str:
    """The error that the server sends before it closes; empty if it only closes."""
    parser = FrameParser(64 << 20)
    reason = ""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            parser.feed(data)
            for frame in parser:
                if frame.status:
                    reason = str(decode_error(frame.status, bytes(frame.body)))
    return reason


def is_closed(socks: Sequence[socket.socket]) -> bool:
    """Whether the server has closed each of them; waits for none."""
    for sock in socks:
        sock.setblocking(False)
        try:
            while sock.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            continue
    return True
