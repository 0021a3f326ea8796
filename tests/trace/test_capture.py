"""Packets of the loopback interface, with the times at which they were sent; and the refusal to capture them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from journal.trace.capture import SMALLEST_RING_BYTES, CaptureError, capturing
from journal.trace.streams import by_direction, reassemble


def refusal() -> str:
    """Why packets cannot be captured here; empty if they can be."""
    try:
        with capturing((1,), ring_bytes=SMALLEST_RING_BYTES):
            return ""
    except CaptureError as error:
        return str(error)


NEEDS_CAPTURE = pytest.mark.skipif(bool(refusal()), reason=f"no packets can be captured: {refusal()}")


@contextmanager
def connection(family: socket.AddressFamily, host: str) -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """A client's end, the server's end and the server's port."""
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            with accepted:
                for end in (client, accepted):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield client, accepted, port


def has_ipv6() -> bool:
    """Whether the loopback interface has an address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@NEEDS_CAPTURE
@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::1", marks=NEEDS_IPV6)],
)
def test_what_is_sent_is_captured_with_a_time_within_the_call_that_sends_it(
    family: socket.AddressFamily, host: str
) -> None:
    with connection(family, host) as (client, server, port), capturing((port,)) as capture:
        within = []
        for number in range(5):
            for end in (client, server):
                before_ns = time.time_ns()
                end.sendall(b"number %d" % number)
                within.append((before_ns, time.time_ns()))
        captured = capture.stop()
        client_port = client.getsockname()[1]
    assert captured.lost == 0
    assert [segment.data for segment in captured.segments] == [b"number %d" % (number // 2) for number in range(10)]
    for segment, (before_ns, after_ns) in zip(captured.segments, within, strict=True):
        assert before_ns <= segment.sent_ns <= after_ns
    assert {segment.direction.sender.port for segment in captured.segments[::2]} == {client_port}
    assert {segment.direction.sender.port for segment in captured.segments[1::2]} == {port}


@NEEDS_CAPTURE
def test_connections_of_other_ports_are_not_captured() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (client, _, _):
        with connection(socket.AF_INET, "127.0.0.1") as (other, _, other_port), capturing((other_port,)) as capture:
            client.sendall(b"not this")
            other.sendall(b"but this")
            captured = capture.stop()
    assert [segment.data for segment in captured.segments] == [b"but this"]


@NEEDS_CAPTURE
def test_a_large_stream_is_captured_whole() -> None:
    data = bytes(range(256)) * 8192
    with connection(socket.AF_INET, "127.0.0.1") as (client, server, port), capturing((port,)) as capture:
        for begin in range(0, len(data), 65_536):
            client.sendall(data[begin : begin + 65_536])
            left = 65_536
            while left:
                left -= len(server.recv(left))
        captured = capture.stop()
    (sent,) = by_direction(captured.segments).values()
    assert captured.lost == 0
    assert [b"".join(part.data for part in run) for run in reassemble(sent)] == [data]


@NEEDS_CAPTURE
def test_packets_that_the_ring_has_no_room_for_are_counted() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (client, server, port):
        with capturing((port,), ring_bytes=SMALLEST_RING_BYTES) as capture:
            for _ in range(100):
                client.sendall(bytes(30_000))
                left = 30_000
                while left:
                    left -= len(server.recv(left))
            captured = capture.stop()
    assert captured.lost > 0
    assert captured.segments


@pytest.mark.slow("starts the command")
@pytest.mark.parametrize(
    "command",
    [
        ["journal.cli.main", "bench", "trace", "--server", "127.0.0.1:1"],
        ["broker_adapter.mqtt.cli.main", "bench", "trace", "--publish-to", "127.0.0.1:1"],
    ],
)
def test_without_the_capability_the_command_is_refused_in_one_line_with_the_way_out(command: list[str]) -> None:
    argv = [sys.executable, "-m", *command]
    if not refusal():
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv, which takes the capability away, is not installed")
        argv = ["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "CAP_NET_RAW" in done.stderr
    assert "--ends-only" in done.stderr
