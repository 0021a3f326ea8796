"""How long a sink that freezes, and answers nothing any more, can hold up anything: the bounds of docs/sinks.md."""

from __future__ import annotations

import fcntl
import importlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.projection import Projection
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import LeaseSettings, QueueLease, QueueSettings, QueueState, ensure_queue, look, names
from broker_adapter.cache_queue.queue import change_queue, purge_queue
from shards.format.record import Record
from tests.bridge.fakes import Shelf
from tests.patience import PATIENCE_S
from tests.sinks.stage import QUEUE_ID, Stage, numbers, open_sink
from tests.sinks.test_contract import STAGES
from tests.steady_clock import SteadyClock

FROZEN: Final = "frozen"
WELL: Final = "well"
TIMEOUT_S: Final = 2
LEASE: Final = LeaseSettings()
SLACK_S: Final = 4.0
"""For a machine that does other things as well."""


@pytest.fixture(params=STAGES)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    module = importlib.import_module(f"tests.sinks.stages.{request.param}")
    async with module.open_stage(tmp_path) as opened:
        yield opened


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


@contextmanager
def frozen(stage: Stage) -> Iterator[None]:
    """A sink that takes what it is sent, and does and says nothing."""
    if stage.proxy is not None:
        stage.proxy.hang()
        yield
        stage.proxy.pass_all()
        return
    # A directory whose lock another process keeps: calls of the system wait, as on a disk that hangs.
    file = os.open(Path(str(stage.settings["directory"])) / f".{QUEUE_ID}.epoch", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def specs(stage: Stage, shelf: Shelf) -> list[BridgeSpec]:
    fields = {"topic": "topic", "n": "offset", "body": "text", "value": "header:none"}
    return [
        BridgeSpec(
            name=FROZEN,
            topics=("#",),
            open_sink=lambda context: open_sink(stage, epoch=context.epoch, timeout_s=TIMEOUT_S),
            projection=Projection(fields),
            batch_records=10,
        ),
        BridgeSpec(name=WELL, topics=("#",), open_sink=shelf.open, batch_records=10),
    ]


async def put(store: StorageAdapter, queue: str, count: int) -> None:
    await ensure_queue(store, queue, QueueSettings())
    await store.append(names.shard_of(queue), [Record(b"x", topic="t") for _ in range(count)])


async def until_state(store: StorageAdapter, state: str) -> QueueState:
    while True:
        found = await look(store, FROZEN)
        if found.status is not None and found.status.state == state:
            return found
        await trio.sleep(0.05)


@pytest.mark.slow("waits for the timeouts of sinks")
async def test_a_frozen_sink_holds_up_its_own_queue_alone_and_its_operator_no_longer_than_documented(
    stage: Stage, store: StorageAdapter, steady_clock: SteadyClock
) -> None:
    shelf = Shelf()
    # It stays frozen until everything has ended.
    with ExitStack() as freezing:
        async with trio.open_nursery() as nursery:
            await nursery.start(Bridges(store, specs(stage, shelf), "here", lease=LEASE).run)
            await put(store, FROZEN, 10)
            with trio.fail_after(PATIENCE_S):
                while (await look(store, FROZEN)).depth.record_count:
                    await trio.sleep(0.05)
            freezing.enter_context(frozen(stage))
            await put(store, FROZEN, 30)
            await put(store, WELL, 30)
            # Another bridge of the same process goes on.
            with trio.fail_after(SLACK_S):
                await shelf.wait_for(30)
            # The sink is said to be out within the time that one call may take.
            with trio.fail_after(PATIENCE_S):
                while not (seen := await look(store, FROZEN)).status or not seen.status.reason:
                    await trio.sleep(0.05)
            await change_queue(store, FROZEN, is_paused=True)
            with trio.fail_after(TIMEOUT_S + 1 + SLACK_S):
                await until_state(store, "paused")
            await change_queue(store, FROZEN, is_paused=False, wake=True)
            # What waits can be thrown away at once, whatever is on its way.
            with trio.fail_after(SLACK_S):
                assert await purge_queue(store, FROZEN) == 30
            # Who asks for the queue has it within three times the interval in which leases are renewed.
            with trio.fail_after(3 * LEASE.renew_interval_s + SLACK_S):
                async with QueueLease(store, FROZEN, "another", LEASE).hold(ask=True):
                    pass
            await put(store, FROZEN, 1)
            await trio.sleep(1)
            # The process ends: what is on its way to the sink is not waited for.
            began_s = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began_s < 3 + SLACK_S


@pytest.mark.slow("waits for the timeouts of sinks")
async def test_what_a_sink_had_under_way_when_it_froze_comes_in_order_when_it_is_back(
    stage: Stage, store: StorageAdapter, steady_clock: SteadyClock
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(Bridges(store, specs(stage, Shelf())[:1], "here", lease=LEASE).run)
        await put(store, FROZEN, 20)
        with trio.fail_after(PATIENCE_S):
            while (await look(store, FROZEN)).depth.record_count:
                await trio.sleep(0.05)
        with frozen(stage):
            await put(store, FROZEN, 30)
            await trio.sleep(TIMEOUT_S + 1)
        with trio.fail_after(PATIENCE_S):
            while (await look(store, FROZEN)).depth.record_count:
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    found = await numbers(stage)
    assert list(dict.fromkeys(found)) == list(range(50))
    if stage.kind in ("files", "postgresql", "redis"):
        assert found == list(range(50))
