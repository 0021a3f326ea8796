"""One broker: a process of its own that publishes this machine's telemetry and receives what the other one publishes.

It talks to the store through the adapter alone and to whoever started it through lines of JSON: commands come in on
stdin (`Stop`, then `Finish`; the end of stdin is the end of the broker), news go out on stdout. A lost server is no
event here: the adapter connects again by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import trio

from broker_adapter import StorageAdapter, open_adapter
from demo.ledger import Acknowledged, Ledger, Line, Published, Received, ReceivedGap, digest_of
from demo.telemetry import Reading, Source, available_sources
from shards.model import AckLevel, Mode, ShardConfig
from shards.position import Start
from shards.record import Gap, Record

ROOT: Final = "host"
MEMORY_TOPICS: Final = frozenset({"network", "load"})
"""Topics whose shards begin in memory mode: fast, and gone with the server. The others are in file mode."""

_QUEUED_READINGS = 4096
_BATCH_RECORDS = 64
_NEWS_INTERVAL_S = 0.1
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.005, 1.0
_COMMAND_BYTES = 65536


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Sample no more; publish what was sampled; say `Stopped` when everything is acknowledged."""


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Receive on until these offsets are reached, by shard, and end."""

    next_offsets: dict[str, int]


class News(msgspec.Struct, frozen=True, tag="news"):
    """Counts since the start, several times a second. ``acknowledged_at_us`` is when the last one came."""

    published: int
    durable: int
    memory: int
    received: int
    acknowledged_at_us: int


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Every record is acknowledged. ``seconds`` passed from the first sample to the last acknowledgement."""

    seconds: float


Command = Stop | Finish
Message = News | Stopped

_COMMANDS: Final = msgspec.json.Decoder(Command)


class Broker:
    """Publishes, receives and keeps the ledger."""

    def __init__(self, name: str, adapter: StorageAdapter, ledger: Ledger, rate: float) -> None:
        self._name = name
        self._adapter = adapter
        self._ledger = ledger
        self._rate = rate
        self._counts = {AckLevel.DURABLE: 0, AckLevel.MEMORY: 0}
        self._published = 0
        self._received = 0
        self._acknowledged_at_us = 0
        self._positions: dict[str, int] = {}
        self._moved = trio.Event()

    async def run(self, commands: AsyncIterator[Command], say: Callable[[Message], None]) -> None:
        """Work until the commands end or say so."""
        sources = available_sources()
        for source in sources:
            mode = Mode.MEMORY if source.topic in MEMORY_TOPICS else Mode.FILE
            await self._adapter.create_shard(self._shard(source), ShardConfig(mode), exist_ok=True)
        sampling = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            nursery.start_soon(self._tell_news, say)
            nursery.start_soon(self._publish, sources, sampling, say)
            async for command in commands:
                if isinstance(command, Stop):
                    sampling.cancel()
                else:
                    await self._wait_received(command.next_offsets)
                    say(self._news())
                    break
            nursery.cancel_scope.cancel()

    async def _publish(
        self, sources: dict[Source, int], sampling: trio.CancelScope, say: Callable[[Message], None]
    ) -> None:
        """Sample until told to stop, then wait until all of it is acknowledged."""
        begun_at = time.monotonic()
        interval_s = min(max(sum(sources.values()) / self._rate, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
        async with trio.open_nursery() as nursery:
            queues: dict[Source, trio.MemorySendChannel[Reading]] = {}
            for source in sources:
                queues[source], readings = trio.open_memory_channel[Reading](_QUEUED_READINGS)
                nursery.start_soon(self._publish_topic, self._shard(source), source.metric, readings)
            with sampling:
                while True:
                    next_at = trio.current_time() + interval_s
                    for source, queue in queues.items():
                        for reading in source.sample():
                            await queue.send({"time_us": _now_us(), **reading})
                    await trio.sleep_until(next_at)
            for queue in queues.values():
                queue.close()
        say(self._news())
        say(Stopped(time.monotonic() - begun_at))

    async def _publish_topic(self, shard: str, metric: str, readings: trio.MemoryReceiveChannel[Reading]) -> None:
        """Append the readings of one topic in their order, as many at a time as have come together."""
        sequence = 0
        async for reading in readings:
            together = [reading]
            while len(together) < _BATCH_RECORDS:
                try:
                    together.append(readings.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            await self._append(shard, metric, sequence, together)
            sequence += len(together)

    async def _append(self, shard: str, metric: str, sequence: int, readings: list[Reading]) -> None:
        """Append records and enter them in the ledger, before and after."""
        values = [
            msgspec.json.encode({"broker": self._name, "sequence": at, **reading})
            for at, reading in enumerate(readings, sequence)
        ]
        digests = [digest_of(value) for value in values]
        self._ledger.write(
            Published(shard, at, digest, len(value), number_of(reading.get(metric)))
            for at, (digest, value, reading) in enumerate(zip(digests, values, readings, strict=True), sequence)
        )
        self._published += len(values)
        begun_at = time.perf_counter()
        appended = await self._adapter.append(shard, [Record(value, timestamp_us=_now_us()) for value in values])
        latency_us = round((time.perf_counter() - begun_at) * 1e6)
        at_us = _now_us()
        is_known = appended.base_offset >= 0
        self._ledger.write(
            Acknowledged(
                shard,
                sequence + at,
                digest,
                appended.base_offset + at if is_known else -1,
                appended.level,
                latency_us,
                at_us,
            )
            for at, digest in enumerate(digests)
        )
        self._counts[appended.level] += len(values)
        self._acknowledged_at_us = at_us

    async def _receive(self) -> None:
        """Enter everything that other brokers publish in the ledger; what is our own we know already."""
        own = f"{ROOT}/{self._name}/"
        async with self._adapter.subscribe(f"{ROOT}/#", Start.earliest()) as subscription:
            async for delivery in subscription:
                if delivery.shard.startswith(own):
                    continue
                now_us = _now_us()
                lines: list[Line] = []
                for record in delivery.records:
                    if isinstance(record, Gap):
                        lines.append(ReceivedGap(delivery.shard, record.first_offset, record.next_offset))
                    else:
                        digest = digest_of(record.value)
                        lines.append(Received(delivery.shard, record.offset, digest, now_us - record.append_time_us))
                        self._received += 1
                self._ledger.write(lines)
                self._positions[delivery.shard] = delivery.next_offset
                self._moved.set()
                self._moved = trio.Event()

    async def _wait_received(self, next_offsets: dict[str, int]) -> None:
        while any(self._positions.get(shard, 0) < offset for shard, offset in next_offsets.items()):
            await self._moved.wait()

    async def _tell_news(self, say: Callable[[Message], None]) -> None:
        while True:
            say(self._news())
            await trio.sleep(_NEWS_INTERVAL_S)

    def _news(self) -> News:
        durable, memory = self._counts[AckLevel.DURABLE], self._counts[AckLevel.MEMORY]
        return News(self._published, durable, memory, self._received, self._acknowledged_at_us)

    def _shard(self, source: Source) -> str:
        return f"{ROOT}/{self._name}/{source.topic}"


async def read_commands(stream: trio.abc.ReceiveStream) -> AsyncGenerator[Command, None]:
    """The commands on a stream, a line each, until it ends."""
    pending = b""
    while data := await stream.receive_some(_COMMAND_BYTES):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield _COMMANDS.decode(line)


async def run_broker(name: str, url: str, ledger_path: Path, rate: float) -> None:
    """Run one broker between stdin and stdout."""

    def say(message: Message) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    with Ledger(ledger_path) as ledger:
        async with (
            trio.lowlevel.FdStream(os.dup(0)) as stdin,
            open_adapter(url) as adapter,
            aclosing(read_commands(stdin)) as commands,
        ):
            await Broker(name, adapter, ledger, rate).run(commands, say)


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--url", required=True, help="store to open, like journal://127.0.0.1:7420")
    parser.add_argument("--ledger", required=True, type=Path)
    parser.add_argument("--rate", required=True, type=float, help="records a second to sample")
    given = parser.parse_args()
    trio.run(run_broker, given.name, given.url, given.ledger, given.rate)


def number_of(value: str | float | None) -> float | None:
    """What a reading says of a metric, if that is a number."""
    return float(value) if isinstance(value, int | float) else None


def _now_us() -> int:
    return time.time_ns() // 1000


if __name__ == "__main__":
    main()
