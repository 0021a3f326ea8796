"""The product as brokers use it: the storage adapter's journal engine, with its encoding and its client.

Appends are queued without waiting for each, as a broker does with many messages; the client may join appends to the
same shard. One row has tasks that each wait instead. `benchmarks.client_load` measures the client without the adapter,
`benchmarks.ours` the server without either.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

import trio

from benchmarks import load, ours
from benchmarks.load import RateClock, Timing
from benchmarks.pipeline import VALUE, keep_full
from benchmarks.runs import Measurement, UnavailableError
from benchmarks.sizes import BATCH_RECORDS, LARGE_BATCH_RECORDS, WAITING_TASKS
from benchmarks.stage import Stage
from shards.model import ShardConfig
from shards.position import Start

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter

T = TypeVar("T")


def measurements(stage: Stage) -> list[Measurement]:
    """All measurements through the adapter."""
    generator = _Generator(stage)
    return [
        Measurement(("batches.file.adapter",), lambda t: {"batches.file.adapter": generator.batches(ours.FILE, t)}),
        Measurement(
            ("batches.memory.adapter",), lambda t: {"batches.memory.adapter": generator.batches(ours.MEMORY, t)}
        ),
        Measurement(("singles.one.adapter",), lambda t: {"singles.one.adapter": generator.singles(t)}),
        Measurement(("singles.one.waiting",), lambda t: {"singles.one.waiting": generator.waiting_singles(t)}),
        Measurement(("singles.many.adapter",), lambda t: {"singles.many.adapter": generator.singles_over_many(t)}),
        Measurement(("large.adapter",), lambda t: {"large.adapter": generator.large(t)}),
        Measurement(("one.adapter",), lambda t: {"one.adapter": generator.one_at_a_time(t)}),
        Measurement(("tail.adapter-p50", "tail.adapter-p99"), generator.tail),
        Measurement(("read.adapter",), lambda t: {"read.adapter": generator.read(t)}),
    ]


class _Generator:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def batches(self, config: ShardConfig, timing: Timing) -> float:
        """Records per second, appended 16 KiB at a time."""
        return self._append_rate(config, BATCH_RECORDS, timing)

    def large(self, timing: Timing) -> float:
        """Megabytes per second, appended 128 KiB at a time."""
        records_per_s = self._append_rate(ours.FILE, LARGE_BATCH_RECORDS, timing)
        return records_per_s / LARGE_BATCH_RECORDS * len(ours.batch_of(LARGE_BATCH_RECORDS)) / 1e6

    def singles(self, timing: Timing) -> float:
        """Records per second, appended one by one to one shard."""
        return self._append_rate(ours.FILE, 1, timing)

    def waiting_singles(self, timing: Timing) -> float:
        """Records per second from many tasks that each append, wait for the acknowledgement and append again."""

        async def work(adapter: StorageAdapter, name: str) -> float:
            return await _append_loop(adapter, name, timing)

        return self._with_shard(ours.FILE, work, timing)

    def singles_over_many(self, timing: Timing) -> float:
        """Records per second, appended one by one to many shards in random order."""
        names = ours.many_shards(self._stage)

        async def work(adapter: StorageAdapter) -> float:
            async with trio.open_nursery() as nursery:
                # One append to each, so that all are open before measuring starts.
                for name in names:
                    nursery.start_soon(adapter.append, name, [VALUE])
            return await keep_full(adapter, ours.in_random_order(names), [VALUE], timing)

        return self._with_adapter(work, timing)

    def one_at_a_time(self, timing: Timing) -> float:
        """p50 of one append after the other, in microseconds."""

        async def work(adapter: StorageAdapter, name: str) -> float:
            latencies_us: list[float] = []
            begun_at = time.perf_counter()
            while (before := time.perf_counter()) < begun_at + timing.total_s:
                await adapter.append(name, [VALUE])
                if before >= begun_at + timing.warm_up_s:
                    latencies_us.append((time.perf_counter() - before) * 1e6)
            return load.percentile(sorted(latencies_us), 0.5)

        return self._with_shard(ours.FILE, work, timing)

    def tail(self, timing: Timing) -> Mapping[str, float]:
        """p50 and p99 from the call of append to the delivery to a second adapter's subscription, in microseconds."""
        total = int(timing.total_s * ours.MESSAGES_PER_S)
        skipped = int(timing.warm_up_s * ours.MESSAGES_PER_S)

        async def work(adapter: StorageAdapter, name: str) -> list[float]:
            published_at: list[float] = []
            latencies_us: list[float] = []

            async def publish(nursery: trio.Nursery) -> None:
                begun_at = time.perf_counter()
                for number in range(total):
                    await trio.sleep(max(0.0, begun_at + number / ours.MESSAGES_PER_S - time.perf_counter()))
                    published_at.append(time.perf_counter())
                    nursery.start_soon(adapter.append, name, [VALUE])

            async with (
                self._adapter() as reader,
                reader.subscribe(name, Start.latest()) as subscription,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(publish, nursery)
                while len(latencies_us) < total:
                    delivery = await anext(subscription)
                    now = time.perf_counter()
                    for _ in delivery.records:
                        latencies_us.append((now - published_at[len(latencies_us)]) * 1e6)
            return sorted(latencies_us[skipped:])

        latencies_us = self._with_shard(ours.MEMORY, work, timing)
        return {
            "tail.adapter-p50": load.percentile(latencies_us, 0.5),
            "tail.adapter-p99": load.percentile(latencies_us, 0.99),
        }

    def read(self, timing: Timing) -> float:
        """Records per second read back by offset and decoded."""
        shard = ours.shard_to_read(self._stage)

        async def work(adapter: StorageAdapter) -> float:
            clock = RateClock(timing)
            total = offset = 0
            while not clock.ended(total):
                result = await adapter.read(shard.name, offset, max_bytes=ours.FETCH_BYTES)
                total += len(result.records)
                offset = 0 if result.next_offset >= shard.next_offset else result.next_offset
            return clock.rate()

        return self._with_adapter(work, timing)

    def _append_rate(self, config: ShardConfig, records: int, timing: Timing) -> float:
        """Acknowledged records per second to a fresh shard."""
        values = [VALUE] * records

        async def work(adapter: StorageAdapter, name: str) -> float:
            return await keep_full(adapter, lambda: name, values, timing)

        return self._with_shard(config, work, timing)

    def _with_adapter(self, work: Callable[[StorageAdapter], Awaitable[T]], timing: Timing) -> T:
        async def main() -> T:
            # The client would try for ever to reach a server that has died.
            with trio.fail_after(timing.bound_s):
                async with self._adapter() as adapter:
                    return await work(adapter)

        return trio.run(main)

    def _with_shard(
        self, config: ShardConfig, work: Callable[[StorageAdapter, str], Awaitable[T]], timing: Timing
    ) -> T:
        async def main(adapter: StorageAdapter) -> T:
            name = ours.fresh_name(f"adapter-{config.mode}")
            await adapter.create_shard(name, config)
            result = await work(adapter, name)
            await adapter.delete_shard(name)
            return result

        return self._with_adapter(main, timing)

    def _adapter(self) -> AbstractAsyncContextManager[StorageAdapter]:
        """The adapter, imported here so that the other rows run where it cannot be imported."""
        try:
            from broker_adapter.opening import open_adapter
        except ImportError as error:
            raise UnavailableError(f"failed: no adapter: {error}") from error
        host, port = ours.journal(self._stage).address
        return open_adapter(f"journal://{host}:{port}")


async def _append_loop(adapter: StorageAdapter, name: str, timing: Timing) -> float:
    """Keep a number of waiting tasks and return acknowledged records per second."""
    acknowledged = 0
    clock = RateClock(timing)

    async def appender() -> None:
        nonlocal acknowledged
        while not clock.ended(acknowledged):
            await adapter.append(name, [VALUE])
            acknowledged += 1

    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_TASKS):
            nursery.start_soon(appender)
    return clock.rate()
