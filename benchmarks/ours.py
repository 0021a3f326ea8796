"""The product's server under the cheapest possible generator: frames built before, on a raw socket.

`benchmarks.adapter_load` does the same work through the product's own client.
"""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from benchmarks import load
from benchmarks.load import Chunk, Timing
from benchmarks.processes import Server
from benchmarks.runs import Measurement
from benchmarks.sizes import BATCH_RECORDS, LARGE_BATCH_RECORDS, MANY_SHARDS, VALUE_BYTES
from benchmarks.stage import Stage
from benchmarks.wire import AckCounter, FrameCutter, Wire, fetch_bytes_per_s
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.format.batch import encode_values
from shards.model import Mode, Retention, ShardConfig

WINDOW_APPENDS = 16_384
WINDOW_BYTES = 8 << 20
CHUNK_BYTES = 128 << 10
READ_BYTES = 256 << 20
# More than the journal's budget, so that all of its files exist and have been recycled.
WARM_UP_BYTES = 1 << 30
FETCH_BYTES = 1 << 20
MESSAGES_PER_S = 1000

FILE = ShardConfig(mode=Mode.FILE)
# A memory-mode shard must have a bound; whole segments are dropped beyond it.
MEMORY = ShardConfig(mode=Mode.MEMORY, retention=Retention(max_bytes=256 << 20), segment_bytes=16 << 20)

_names = itertools.count()


def fresh_name(kind: str) -> str:
    """Name of a shard that was never used in this benchmark."""
    return f"bench/{kind}/{next(_names)}"


def batch_of(records: int) -> bytes:
    """An encoded batch of 100-byte values."""
    return encode_values([b"x" * VALUE_BYTES] * records, timestamp_us=1_700_000_000_000_000)


def measurements(stage: Stage) -> list[Measurement]:
    """All measurements of pre-encoded batches."""
    generator = Generator(stage, lambda: Wire(journal(stage).address))
    return [
        Measurement(("batches.file.encoded",), lambda t: {"batches.file.encoded": generator.batches(FILE, t)}),
        Measurement(("batches.memory.encoded",), lambda t: {"batches.memory.encoded": generator.batches(MEMORY, t)}),
        Measurement(("singles.one.encoded",), lambda t: {"singles.one.encoded": generator.singles(t)}),
        Measurement(("singles.many.encoded",), lambda t: {"singles.many.encoded": generator.singles_over_many(t)}),
        Measurement(("large.encoded",), lambda t: {"large.encoded": generator.large(t)}),
        Measurement(("one.encoded",), lambda t: {"one.encoded": generator.one_at_a_time(t)}),
        Measurement(("tail.encoded-p50", "tail.encoded-p99"), generator.tail),
        Measurement(("read.encoded",), lambda t: {"read.encoded": generator.read(t)}),
    ]


def journal(stage: Stage) -> Server:
    """The server under test after a warm-up: its journal files were all written once, and its memory is mapped."""

    def warm() -> Server:
        server = stage.journal()
        warm_up(Wire(server.address))
        return server

    return stage.once("warm journal", warm)


def warm_up(wire: Wire) -> None:
    """Make a server use all of its journal files once, over a connection that is closed afterwards."""
    name = fresh_name("warm-up")
    with wire:
        fill(wire, name, WARM_UP_BYTES)
        wire.delete(name)


@attrs.frozen(slots=True)
class ReadShard:
    """A shard to read back: all its offsets are in closed log segments."""

    name: str
    next_offset: int


def shard_to_read(stage: Stage) -> ReadShard:
    """Fill a shard once with 16 KiB batches and roll its last segment."""

    def make() -> ReadShard:
        name = fresh_name("read")
        with Wire(journal(stage).address) as wire:
            fill(wire, name, READ_BYTES)
            info = wire.request(Op.ROLL, {"name": name})
        return ReadShard(name, int(info["next_offset"]))

    return stage.once("shard to read", make)


def fill(wire: Wire, name: str, size_bytes: int) -> None:
    """Append 16 KiB batches to a file-mode shard until about this many bytes were added and acknowledged."""
    [handle] = wire.open([name], FILE)
    batch = batch_of(BATCH_RECORDS)
    chunk = chunk_of([(handle, batch)] * (CHUNK_BYTES // len(batch)))
    chunks = itertools.repeat(chunk, -(-size_bytes // len(chunk.data)))
    append_all(wire, chunks, window_of(len(batch)) // 2)


def append_all(wire: Wire, chunks: Iterable[Chunk], window: int) -> None:
    """Send chunks of appends in turn, and wait until all are acknowledged.

    Args:
        window: No chunk is begun while so many appends or more are unacknowledged.
    """
    counter = AckCounter()
    buffer = bytearray(1 << 20)
    waiting = iter(chunks)
    chunk = next(waiting, None)
    sent = acknowledged = 0
    while acknowledged < sent or chunk is not None:
        if chunk is not None and sent - acknowledged < window:
            wire.socket.sendall(chunk.data)
            sent += chunk.replies
            chunk = next(waiting, None)
        else:
            received = wire.socket.recv_into(buffer)
            if not received:
                raise load.LoadError("the server closed the connection")
            acknowledged += counter(buffer, received)


def many_shards(stage: Stage) -> list[str]:
    """Names of the shards that the spread row appends to; they are created once."""

    def create() -> list[str]:
        names = [f"bench/many/{number}" for number in range(MANY_SHARDS)]
        with Wire(journal(stage).address) as wire:
            wire.open(names, FILE)
        return names

    return stage.once("many shards", create)


def in_random_order(names: list[str]) -> Callable[[], str]:
    """A function that returns one name after the other without end, in four shuffled rounds that repeat."""
    order = names * 4
    random.Random(1).shuffle(order)
    return itertools.cycle(order).__next__


def window_of(batch_bytes: int) -> int:
    """Number of unacknowledged appends within both the byte limit and the count limit."""
    return max(2, min(WINDOW_APPENDS, WINDOW_BYTES // batch_bytes))


class Generator:
    """Loads a server.

    Args:
        stage: The servers and files of the benchmark.
        connect: Opens a connection to the server.
    """

    def __init__(self, stage: Stage, connect: Callable[[], Wire]) -> None:
        self._stage = stage
        self._connect = connect

    def batches(self, config: ShardConfig, timing: Timing) -> float:
        """Records per second in 16 KiB batches."""
        return self.append_rate(config, batch_of(BATCH_RECORDS), timing) * BATCH_RECORDS

    def large(self, timing: Timing) -> float:
        """Megabytes per second of 128 KiB batches."""
        batch = batch_of(LARGE_BATCH_RECORDS)
        return self.append_rate(FILE, batch, timing) * len(batch) / 1e6

    def singles(self, timing: Timing) -> float:
        """Single-record appends per second to one shard."""
        return self.append_rate(FILE, batch_of(1), timing)

    def singles_over_many(self, timing: Timing) -> float:
        """Single-record appends per second, in random order over many shards."""
        return self.singles_over(many_shards(self._stage), timing)

    def singles_over(self, names: Sequence[str], timing: Timing) -> float:
        """Single-record appends per second, in random order over these shards, which exist."""
        batch = batch_of(1)
        with self._connect() as wire:
            handles = wire.open(names, None) * 4
            random.Random(1).shuffle(handles)
            per_chunk = CHUNK_BYTES // len(batch)
            chunks = [
                chunk_of([(handle, batch) for handle in handles[start : start + per_chunk]])
                for start in range(0, len(handles), per_chunk)
            ]
            return load.pipelined_rate(wire.socket, chunks, AckCounter(), window=window_of(len(batch)), timing=timing)

    def one_at_a_time(self, timing: Timing, records: int = 1) -> float:
        """p50 of one synced append of so many records after the other, in microseconds."""
        return load.percentile(self.round_trips(timing, records), 0.5)

    def round_trips(self, timing: Timing, records: int = 1) -> list[float]:
        """One synced append of so many records after the other to a fresh shard; sorted microseconds."""
        with self._fresh_shard(FILE) as (wire, name, handle):
            wire.socket.settimeout(60.0)
            frame = frames.build_append(0, handle, batch_of(records))
            counter = AckCounter()
            buffer = bytearray(4096)

            def await_reply() -> None:
                acknowledged = 0
                while not acknowledged:
                    received = wire.socket.recv_into(buffer)
                    if not received:
                        raise load.LoadError(f"the server closed the connection that appends to {name}")
                    acknowledged = counter(buffer, received)

            return load.one_at_a_time(lambda: wire.socket.sendall(frame), await_reply, timing)

    def tail(self, timing: Timing) -> Mapping[str, float]:
        """p50 and p99 from append on one connection to push on another, in microseconds."""
        with self._fresh_shard(MEMORY) as (writer, name, handle), self._connect() as reader:
            reader.request(Op.SUBSCRIBE, {"subscription": 1, "shard": name, "start": "latest", "credit_bytes": 8 << 20})
            frame = frames.build_append(0, handle, batch_of(1))
            pushes, acknowledgements = FrameCutter(), FrameCutter()

            def drain(connection: socket.socket) -> int:
                data = connection.recv(65_536)
                if not data:
                    raise load.LoadError("the server closed the connection")
                if connection is writer.socket:
                    for _ in acknowledgements.feed(data):
                        pass
                    return 0
                delivered = 0
                for op, whole in pushes.feed(data):
                    if op == Op.PUSH:
                        *_, first_offset, next_offset = frames.PUSH.unpack_from(whole)
                        delivered += next_offset - first_offset
                return delivered

            latencies_us = load.paced_deliveries(
                lambda: writer.socket.sendall(frame),
                [writer.socket, reader.socket],
                drain,
                rate_per_s=MESSAGES_PER_S,
                timing=timing,
            )
        return {
            "tail.encoded-p50": load.percentile(latencies_us, 0.5),
            "tail.encoded-p99": load.percentile(latencies_us, 0.99),
        }

    def read(self, timing: Timing) -> float:
        """Gigabytes per second of batches read back by offset."""
        shard = shard_to_read(self._stage)
        with self._connect() as wire:
            [handle] = wire.open([shard.name], None)
            rate = fetch_bytes_per_s(wire.socket, [(handle, shard.next_offset)], max_bytes=FETCH_BYTES, timing=timing)
        return rate / 1e9

    def append_rate(self, config: ShardConfig, batch: bytes, timing: Timing) -> float:
        """Acknowledged appends per second of one batch over and over to a fresh shard."""
        with self._fresh_shard(config) as (wire, _, handle):
            chunk = chunk_of([(handle, batch)] * max(1, CHUNK_BYTES // len(batch)))
            return load.pipelined_rate(wire.socket, [chunk], AckCounter(), window=window_of(len(batch)), timing=timing)

    @contextmanager
    def _fresh_shard(self, config: ShardConfig) -> Iterator[tuple[Wire, str, int]]:
        """A connection and a shard of its own, which is deleted afterwards over another connection."""
        name = fresh_name(config.mode)
        with self._connect() as wire:
            [handle] = wire.open([name], config)
            yield wire, name, handle
        with self._connect() as wire:
            wire.delete(name)


def chunk_of(appends: Sequence[tuple[int, bytes]]) -> Chunk:
    """APPEND frames, one after the other; correlation ids repeat in each chunk, because replies are only counted."""
    data = b"".join(frames.build_append(number, handle, batch) for number, (handle, batch) in enumerate(appends))
    return Chunk(data, len(appends))
