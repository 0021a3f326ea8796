"""The product's client with its own encoding, with a full window: appends are queued without waiting for each.

`benchmarks.adapter_load` does the same through the storage adapter, `benchmarks.ours` measures the server alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import trio

from benchmarks import ours
from benchmarks.load import Timing
from benchmarks.pipeline import VALUE, keep_full
from benchmarks.runs import Measurement, UnavailableError
from benchmarks.sizes import BATCH_RECORDS, LARGE_BATCH_RECORDS
from benchmarks.stage import Stage
from benchmarks.wire import Wire
from shards.model import ShardConfig

if TYPE_CHECKING:
    from journal.client import Client


def measurements(stage: Stage) -> list[Measurement]:
    """All measurements through the client."""
    generator = _Generator(stage)
    return [
        Measurement(("batches.file.client",), lambda t: {"batches.file.client": generator.batches(ours.FILE, t)}),
        Measurement(("batches.memory.client",), lambda t: {"batches.memory.client": generator.batches(ours.MEMORY, t)}),
        Measurement(("singles.one.client",), lambda t: {"singles.one.client": generator.singles(t)}),
        Measurement(("singles.many.client",), lambda t: {"singles.many.client": generator.singles_over_many(t)}),
        Measurement(("large.client",), lambda t: {"large.client": generator.large(t)}),
    ]


class _Generator:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def batches(self, config: ShardConfig, timing: Timing) -> float:
        """Records per second, appended 16 KiB at a time."""
        return self._append_rate(config, BATCH_RECORDS, timing, join=False)

    def large(self, timing: Timing) -> float:
        """Megabytes per second, appended 128 KiB at a time."""
        records_per_s = self._append_rate(ours.FILE, LARGE_BATCH_RECORDS, timing, join=False)
        return records_per_s / LARGE_BATCH_RECORDS * len(ours.batch_of(LARGE_BATCH_RECORDS)) / 1e6

    def singles(self, timing: Timing) -> float:
        """Records per second, appended one by one to one shard; the client may join them into batches."""
        return self._append_rate(ours.FILE, 1, timing, join=True)

    def singles_over_many(self, timing: Timing) -> float:
        """Records per second, appended one by one to many shards in random order."""
        names = ours.many_shards(self._stage)
        return self._run(ours.in_random_order(names), 1, timing, join=True, first=names)

    def _append_rate(self, config: ShardConfig, records: int, timing: Timing, *, join: bool) -> float:
        """Acknowledged records per second to a fresh shard that is deleted afterwards."""
        name = ours.fresh_name(f"client-{config.mode}")
        with Wire(ours.journal(self._stage).address) as wire:
            wire.open([name], config)
        rate = self._run(lambda: name, records, timing, join=join, first=[name])
        with Wire(ours.journal(self._stage).address) as wire:
            wire.delete(name)
        return rate

    def _run(
        self, choose: Callable[[], str], records: int, timing: Timing, *, join: bool, first: Sequence[str]
    ) -> float:
        """The rate after one append to each shard of ``first``, so that all are open before measuring starts."""

        async def main() -> float:
            # The client would try for ever to reach a server that has died.
            with trio.fail_after(timing.bound_s):
                async with self._client(join) as client:
                    for name in first:
                        client.append_nowait(name, [VALUE])
                    await client.flush()
                    return await keep_full(client, choose, [VALUE] * records, timing)

        return trio.run(main)

    def _client(self, join: bool) -> AbstractAsyncContextManager[Client]:
        """The client, imported here so that the other rows run where it cannot be imported."""
        try:
            from journal.client import open_client
        except ImportError as error:
            raise UnavailableError(f"failed: no client: {error}") from error
        host, port = ours.journal(self._stage).address
        # Rows that name a batch size must send that size, so only single records are joined.
        return open_client(f"{host}:{port}", join_appends=join)
