"""The store in memory: what it holds is what its shards keep."""

from __future__ import annotations

import gc
import tracemalloc

from broker_adapter import open_adapter

VALUE = bytes(120_000)
COUNT = 200


async def test_the_memory_of_trimmed_records_is_free() -> None:
    async with open_adapter("memory:") as adapter:
        await adapter.create_shard("s")
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(COUNT):
                await adapter.append("s", [VALUE])
            assert tracemalloc.get_traced_memory()[0] > COUNT * len(VALUE)
            await adapter.roll("s")
            await adapter.trim("s", COUNT)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < COUNT * len(VALUE) // 10
        finally:
            tracemalloc.stop()
