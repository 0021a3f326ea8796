"""Everything at once: many shards, refusals, connections lost at any moment; exactly once all the same."""

from __future__ import annotations

import random

import pytest
import trio

from journal.client import AppendFuture, open_client
from shards.back_off import BackOff
from shards.errors import LimitExceededError, OverloadedError, StorageError
from shards.format.batch import values
from tests.client.fake_server import FakeServer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.trio
SHARDS = ["a", "b", "c"]


@pytest.mark.few_cases(2, "a storm of failures for each setting")
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("seed", range(4))
async def test_appends_are_stored_exactly_once_in_a_storm(seed: int, join: bool) -> None:
    chance = random.Random(seed)

    def fault(shard: str, batch: memoryview) -> StorageError | None:
        roll = chance.random()
        if roll < 0.02:
            return OverloadedError("full")
        return LimitExceededError("refused") if roll < 0.04 else None

    server = FakeServer()
    server.append_fault = fault
    for shard in SHARDS:
        server.create(shard)
    pending: dict[str, list[tuple[bytes, AppendFuture]]] = {shard: [] for shard in SHARDS}
    async with (
        server.running(),
        open_client(server.address, join_appends=join, backoff=BackOff(0.0005, 0.005)) as client,
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def killer() -> None:
            while True:
                await trio.sleep(chance.uniform(0.0, 0.02))
                await server.kill_connections()

        for number in range(1500):
            shard = chance.choice(SHARDS)
            value = b"%d" % number
            pending[shard].append((value, client.append_nowait(shard, [value] * chance.choice([1, 1, 3]))))
            if chance.random() < 0.05:
                await trio.sleep(0.0005)
        with trio.fail_after(PATIENCE_S):
            await client.flush()
        nursery.cancel_scope.cancel()
    assert server.session_count > 2
    for shard in SHARDS:
        content = [value for _, _, batch in server.shards[shard].batches for value in values(batch)]
        acknowledged = 0
        expected: list[bytes] = []
        for value, append in pending[shard]:
            try:
                outcome = append.result_nowait()
            except LimitExceededError:
                continue
            expected += [value] * append.record_count
            assert content[outcome.base_offset : outcome.base_offset + append.record_count] == expected[acknowledged:]
            acknowledged += append.record_count
        assert content == expected
