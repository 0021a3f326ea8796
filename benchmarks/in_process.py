"""The adapters that run the engine in this process: ``memory:`` and ``embedded:``. Rows and measurements.

Generator and engine share the process and its event loop, as a broker on its own does: the figures include the cost of
the generator. `benchmarks.adapter_load` does the same work with a server.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import trio

from benchmarks import load, ours
from benchmarks.load import RateClock, Timing
from benchmarks.pipeline import VALUE, keep_full
from benchmarks.runs import Measurement, Row
from benchmarks.sizes import BATCH_RECORDS, BATCHED_STORED_MB
from benchmarks.stage import Stage
from broker_adapter.adapter import StorageAdapter
from broker_adapter.opening import open_adapter
from shards.model import Retention, ShardConfig
from shards.position import Start

T = TypeVar("T")

STORES: Final = {"memory": "memory", "embedded": "fsync"}
"""By store: what has happened before an acknowledgement."""

READ_BYTES: Final = 32 << 20
_FILLED_AT_ONCE: Final = 64
# File mode, the default of a broker. With a bound, so that a store in memory does not grow for the whole run.
SHARD: Final = ShardConfig(retention=Retention(max_bytes=256 << 20))


def rows() -> list[Row]:
    """All rows. Those of ``embedded`` are compared to those of ``memory``: the ratio is the cost of the disk."""
    return [row for store, promise in STORES.items() for row in _rows_of(store, promise)]


def _rows_of(store: str, promise: str) -> list[Row]:
    on_disk = store != "memory"

    def row(name: str, title: str, unit: str, promise: str = "", limit: str = "", limit_scale: float = 1.0) -> Row:
        return Row(
            f"{store}.{name}",
            f"`{store}:`, {title}",
            unit,
            promise,
            peer=f"memory.{name}" if on_disk else "",
            limit=limit if on_disk else "",
            limit_scale=limit_scale,
        )

    return [
        row("one", "100 B one at a time, p50", "us", promise, "limit.sync-one"),
        row("singles", "100 B records one by one, pipelined", "records/s", promise),
        row("batches", "100 B records in 16 KiB batches", "records/s", promise, "limit.sync-1m", BATCHED_STORED_MB),
        row("read", "16 KiB batches read back, 1 MiB a read, decoded to records", "records/s"),
        row("subscribe", "100 B records one by one to a subscription", "records/s", promise),
        row("open", "opening it, p50", "ms"),
    ]


def measurements(stage: Stage, *, read_bytes: int = READ_BYTES) -> list[Measurement]:
    """All measurements.

    Args:
        read_bytes: About as many bytes of records are read back, again and again.
    """
    return [
        measurement
        for store in STORES
        for measurement in _Generator(stage, store, read_bytes=read_bytes).measurements()
    ]


class _Generator:
    """Measures one store."""

    def __init__(self, stage: Stage, store: str, *, read_bytes: int) -> None:
        self._stage = stage
        self._store = store
        self._read_batches = max(1, read_bytes // len(ours.batch_of(BATCH_RECORDS)))

    def measurements(self) -> list[Measurement]:
        by_name: dict[str, Callable[[Timing], float]] = {
            "one": self.one_at_a_time,
            "singles": lambda timing: self.append_rate(1, timing),
            "batches": lambda timing: self.append_rate(BATCH_RECORDS, timing),
            "read": self.read,
            "subscribe": self.subscribe,
            "open": self.open,
        }

        def measurement(key: str, figure: Callable[[Timing], float]) -> Measurement:
            def run(timing: Timing) -> Mapping[str, float]:
                return {key: figure(timing)}

            return Measurement((key,), run)

        return [measurement(f"{self._store}.{name}", figure) for name, figure in by_name.items()]

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

        return self._with_shard(work, timing)

    def append_rate(self, records: int, timing: Timing) -> float:
        """Acknowledged records per second, so many to an append."""

        async def work(adapter: StorageAdapter, name: str) -> float:
            return await keep_full(adapter, lambda: name, [VALUE] * records, timing)

        return self._with_shard(work, timing)

    def read(self, timing: Timing) -> float:
        """Records per second read back by offset and decoded."""

        async def work(adapter: StorageAdapter, name: str) -> float:
            await _fill(adapter, name, self._read_batches)
            clock = RateClock(timing)
            total = offset = 0
            while not clock.ended(total):
                result = await adapter.read(name, offset, max_bytes=ours.FETCH_BYTES)
                total += len(result.records)
                offset = result.next_offset if result.records else 0
            return clock.rate()

        return self._with_shard(work, timing)

    def subscribe(self, timing: Timing) -> float:
        """Records per second that a subscription receives, while another task appends them one by one."""

        async def work(adapter: StorageAdapter, name: str) -> float:
            received = 0
            clock = RateClock(timing)
            async with adapter.subscribe(name, Start.earliest()) as subscription, trio.open_nursery() as nursery:
                nursery.start_soon(keep_full, adapter, lambda: name, [VALUE], timing)
                while not clock.ended(received):
                    received += len((await anext(subscription)).records)
                nursery.cancel_scope.cancel()
            return clock.rate()

        return self._with_shard(work, timing)

    def open(self, timing: Timing) -> float:
        """p50 of opening it, in milliseconds; a directory has been opened, used and closed before."""

        async def main() -> float:
            latencies_ms: list[float] = []
            with trio.fail_after(timing.bound_s):
                async with self._adapter("-open") as adapter:
                    await adapter.create_shard("bench", SHARD, exist_ok=True)
                    await adapter.append("bench", [VALUE])
                begun_at = time.perf_counter()
                while not latencies_ms or time.perf_counter() < begun_at + timing.total_s:
                    before = time.perf_counter()
                    async with self._adapter("-open"):
                        latencies_ms.append((time.perf_counter() - before) * 1e3)
            return statistics.median(latencies_ms)

        return trio.run(main)

    def _with_shard(self, work: Callable[[StorageAdapter, str], Awaitable[T]], timing: Timing) -> T:
        async def main() -> T:
            with trio.fail_after(timing.bound_s):
                async with self._adapter() as adapter:
                    name = ours.fresh_name(self._store)
                    await adapter.create_shard(name, SHARD)
                    result = await work(adapter, name)
                    await adapter.delete_shard(name)
                    return result

        return trio.run(main)

    def _adapter(self, suffix: str = "") -> AbstractAsyncContextManager[StorageAdapter]:
        directory = (self._stage.directory / f"{self._store}{suffix}").resolve()
        return open_adapter("memory:" if self._store == "memory" else f"{self._store}:{directory}")


async def _fill(adapter: StorageAdapter, name: str, batches: int) -> None:
    """Append so many batches of 16 KiB."""
    values = [VALUE] * BATCH_RECORDS
    for begin in range(0, batches, _FILLED_AT_ONCE):
        appends = [adapter.append_nowait(name, values) for _ in range(begin, min(batches, begin + _FILLED_AT_ONCE))]
        for append in appends:
            await append.wait()
