"""A well-behaved client in a process of its own: appends and tails one shard, and says how long both take.

Run as ``python -m tests.abuse.bystander NAME WINDOW_S``; the first line of standard input is the port. It writes a line
of JSON for every window: the latencies of its appends up to the acknowledgement, and up to the push, in milliseconds,
and when it began on the monotonic clock, in seconds. It ends when standard input does.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from journal.protocol import Op, frames, messages
from shards.format.batch import encode_values
from shards.model import ShardConfig
from tests.faults.processes import Client

_PAUSE_S = 0.004


def run(port: int, name: str, window_s: float) -> None:
    """Append and tail until standard input ends; a line of what was met after each window."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(sock)
        handle = client.open(name, ShardConfig())
        client.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, shard=name, credit_bytes=1 << 31))
        began_s = time.monotonic()
        acks_ms: list[float] = []
        pushes_ms: list[float] = []
        # A pause on standard input costs no sleep: it ends at once when the test does.
        while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            acked_ms, pushed_ms = _round(client, handle)
            acks_ms.append(acked_ms)
            pushes_ms.append(pushed_ms)
            if time.monotonic() >= began_s + window_s:
                window = {"began_s": began_s, "acks_ms": acks_ms, "pushes_ms": pushes_ms}
                sys.stdout.write(json.dumps(window) + "\n")
                sys.stdout.flush()
                acks_ms, pushes_ms = [], []
                began_s = time.monotonic()


def _round(client: Client, handle: int) -> tuple[float, float]:
    """Append one record; the milliseconds until it was acknowledged and until it was pushed."""
    correlation = client.next_correlation()
    began = time.monotonic()
    client.sock.sendall(frames.build_append(correlation, handle, encode_values([bytes(200)], timestamp_us=1_000)))
    acked = pushed = 0.0
    while not (acked and pushed):
        op = client.receive()[0]
        if op == Op.APPENDED:
            acked = time.monotonic()
        elif op == Op.PUSH:
            pushed = time.monotonic()
    return (acked - began) * 1000, (pushed - began) * 1000


if __name__ == "__main__":
    run(int(sys.stdin.readline()), sys.argv[1], float(sys.argv[2]))
