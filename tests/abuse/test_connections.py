"""Connections that cost the one who opens them nothing: many, silent, slow, and those that send half of something."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journal.protocol import Op
from journal.protocol.frames import HEADER
from journal.settings.values import KIB
from tests.abuse.peers import HELLO, connections, fragment, greeted, is_closed, open_websocket, reason_of_end
from tests.abuse.scene import FRAME_BYTES, POOL_BYTES, Scene, allow_descriptors, scene

pytestmark = [
    pytest.mark.slow("measures latencies in many parts of a second"),
    pytest.mark.own_interpreter("measures the memory of the server"),
]

BYTES_A_CONNECTION = 24 * KIB  # tasks, socket, scopes and what they refer to
HALF_HELLO = HELLO[: len(HELLO) // 2]
SLOW_HEADERS = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def trickling(socks: list[socket.socket], next_byte: Callable[[int], bytes]) -> Iterator[None]:
    """Send a byte a second over each connection, beside the test."""
    over = threading.Event()

    def run() -> None:
        number = 0
        while not over.wait(1.0):
            for sock in socks:
                # Where the server has closed, that is for the test to see.
                with contextlib.suppress(OSError):
                    sock.send(next_byte(number))
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check_half_open(found: Scene, listener: str, count: int, sent: bytes) -> None:
    before = found.descriptors()
    with connections(found.server.ports[listener], count, sent) as made:
        found.check(may_grow_bytes=count * BYTES_A_CONNECTION + POOL_BYTES)
        found.wait_until(lambda: is_closed(made), timeout_s=60)
        found.wait_until(lambda: found.descriptors() <= before + 2)
    if listener == "tcp":
        assert "no HELLO within" in found.log_text()


@pytest.mark.parametrize("sent", [b"", HALF_HELLO], ids=["silent", "half a HELLO"])
def test_half_open_connections_are_closed_in_time_and_hold_little(tmp_path: Path, sent: bytes) -> None:
    allow_descriptors(2000)
    with scene(tmp_path / "data") as found:
        check_half_open(found, "tcp", 500, sent)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sent", [b"", HALF_HELLO], ids=["silent", "half a HELLO"])
def test_ten_thousand_half_open_connections(tmp_path: Path, sent: bytes) -> None:
    allow_descriptors(11_000)
    with scene(tmp_path / "data", "limits.max_connections=10100", "limits.hello_timeout_s=60", strict=True) as found:
        check_half_open(found, "tcp", 10_000, sent)


def test_half_open_websockets_are_closed_in_time_and_hold_little(tmp_path: Path) -> None:
    allow_descriptors(2000)
    with scene(tmp_path / "data") as found:
        check_half_open(found, "websocket", 300, b"GET / HTTP/1.1\r\nUpgrade: webso")


@pytest.mark.parametrize("count", [500, pytest.param(4000, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_http_headers_that_come_a_byte_a_second_end_in_time(tmp_path: Path, count: int) -> None:
    allow_descriptors(2 * count)
    with scene(tmp_path / "data") as found, connections(found.server.ports["http"], count, SLOW_HEADERS) as made:
        with trickling(made, lambda number: b"x: 1\r\n"[number % 6 : number % 6 + 1]):
            found.check(may_grow_bytes=count * BYTES_A_CONNECTION)
            found.wait_until(lambda: is_closed(made), timeout_s=45)
        assert found.server.http("/livez")[0] == 200


def test_a_hello_that_comes_a_byte_a_second_ends_in_time(tmp_path: Path) -> None:
    with scene(tmp_path / "data") as found:
        for listener, whole in (("tcp", HELLO), ("websocket", b"GET / HTTP/1.1\r\nHost: localhost\r\n")):
            with (
                connections(found.server.ports[listener], 20) as made,
                trickling(made, lambda number, whole=whole: whole[number : number + 1]),  # type: ignore[misc]
            ):
                found.check(may_grow_bytes=20 * BYTES_A_CONNECTION + POOL_BYTES)
                found.wait_until(lambda made=made: is_closed(made))  # type: ignore[misc]
        assert "no HELLO within 3 s" in found.log_text()


def test_a_frame_that_comes_a_byte_a_second_holds_no_more_than_came(tmp_path: Path) -> None:
    """100 connections that have each announced the largest frame: what they announced is 200 MiB."""
    begun = HEADER.pack(FRAME_BYTES, Op.APPEND, 0, 5)
    with scene(tmp_path / "data") as found, contextlib.ExitStack() as stack:
        made = [stack.enter_context(greeted(found.server.ports["tcp"])) for _ in range(100)]
        for sock in made:
            sock.sendall(begun)
        sockets = [stack.enter_context(open_websocket(found.server.ports["websocket"])) for _ in range(20)]
        for sock in sockets:
            sock.sendall(fragment(bytes(100_000), opcode=2)[:14])
        with trickling([*made, *sockets], lambda _: b"\0"):
            found.check(may_grow_bytes=120 * BYTES_A_CONNECTION + POOL_BYTES)


def test_frames_over_the_limit_end_the_connection_before_they_are_received(tmp_path: Path) -> None:
    with scene(tmp_path / "data") as found:
        port = found.server.ports["tcp"]
        for length, greet in ((FRAME_BYTES + 1, True), (0xFFFF_FFFF, True), (64 * KIB + 1, False), (1 << 31, False)):
            begun = HEADER.pack(length, Op.APPEND if greet else Op.HELLO, 0, 5)
            with contextlib.ExitStack() as stack:
                made = [stack.enter_context(greeted(port)) for _ in range(20)] if greet else []
                made = made or stack.enter_context(connections(port, 20))
                for sock in made:
                    sock.sendall(begun)
                assert all(f"frame of {length} bytes" in reason_of_end(sock) for sock in made)
        found.check(may_grow_bytes=0)
        assert found.log_text().count("connection closed") <= 80
