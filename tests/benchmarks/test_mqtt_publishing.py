"""The publishing loop against a broker of a few lines: it must neither pass its window nor miss what is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.load import Chunk, LoadError, Timing
from benchmarks.mqtt import drain, packets, publishing

PAYLOAD = b"x" * 50
SIZE = len(packets.publish("t", PAYLOAD, packet_id=1))


class FakeBroker:
    """Acknowledges publishes of one size; it stops to after some, or closes.

    Attributes:
        most_waiting: Publishes that were there at a time before it acknowledged any of them.
    """

    def __init__(self, *, answers: int | None = None, closes: bool = False) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.most_waiting = 0
        self.taken = 0
        self._answers = answers
        self._closes = closes
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[socket.socket]:
        self._thread.start()
        with self.ours:
            yield self.ours
        self._thread.join()

    def _run(self) -> None:
        unread = b""
        with self._theirs:
            while data := self._theirs.recv(1 << 16):
                unread += data
                count = len(unread) // SIZE
                self.most_waiting = max(self.most_waiting, count)
                ids = [unread[at * SIZE + SIZE - len(PAYLOAD) - 2 :][:2] for at in range(count)]
                unread = unread[count * SIZE :]
                if self._answers is not None:
                    ids = ids[: max(0, self._answers - self.taken)]
                self.taken += count
                try:
                    self._theirs.sendall(b"".join(b"\x40\x02" + each for each in ids))
                except (BrokenPipeError, ConnectionResetError):
                    return
                if self._closes:
                    return


def lane(connection: socket.socket, *, window: int = 40, total: int | None = None) -> publishing.Lane:
    ring = packets.publish_ring("t", PAYLOAD, window=window, per_chunk=10)
    return publishing.Lane(connection, ring, window, total=total)


def test_the_rate_counts_what_was_acknowledged_within_the_window() -> None:
    broker = FakeBroker()
    with broker.running() as connection:
        load = lane(connection)
        rate = publishing.publish_rate([load], Timing(0.02, 0.1))
    assert load.is_done
    assert load.answered == load.sent == broker.taken
    # On a busy machine the warm-up ends late: what was measured is shorter than planned, and the rate is of that.
    assert rate > 0
    assert broker.most_waiting <= 40


def test_all_lanes_are_served_to_their_end() -> None:
    one, two = FakeBroker(), FakeBroker()
    with one.running() as first, two.running() as second:
        publishing.publish_all([lane(first, total=200), lane(second, total=100)], timeout_s=10)
    assert (one.taken, two.taken) == (200, 100)


def test_a_lost_acknowledgement_fails_the_run() -> None:
    with FakeBroker(answers=35).running() as connection:
        with pytest.raises(LoadError, match="35 publishes were not acknowledged"):
            publishing.publish_all([lane(connection, total=70)], timeout_s=0.3)


def test_a_broker_that_closes_fails_the_run() -> None:
    with FakeBroker(closes=True).running() as connection:
        with pytest.raises(LoadError, match="closed the connection under load"):
            publishing.publish_all([lane(connection, total=1000)], timeout_s=10)


@pytest.mark.parametrize("count", [1, 249, 250, 251, 1000])
def test_numbered_publishes_carry_each_number_once(count: int) -> None:
    chunks: list[Chunk] = drain.numbered(count)
    assert sum(chunk.replies for chunk in chunks) == count
    cutter = packets.DeliveryCutter(drain.TOPIC, drain.PAYLOAD_BYTES)
    delivered = cutter.feed(b"".join(chunk.data for chunk in chunks))
    assert delivered.numbers == b"".join(map(packets.NUMBER.pack, range(count)))
