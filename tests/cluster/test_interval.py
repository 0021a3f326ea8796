"""Slots that are not full are written at intervals: fewer requests, for later acknowledgements."""

from __future__ import annotations

import itertools
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from journal.client import open_client
from journal.engine import Addresses, Engine, SharedLog, open_engine
from journal.logstore.ownership import Member
from journal.logstore.store import Created
from journal.logstore.stores.memory import MemoryLogStore
from journal.settings.values import MIB
from shards.model import Mode, ShardConfig
from tests.cluster.servers import running
from tests.cluster.test_window import CONFIG, SHARD, AtOnce
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient

INTERVAL_S: Final = 0.2
LONG_S: Final = 2 * PATIENCE_S
"""A test that waits for such an interval fails."""


class TimedStore(MemoryLogStore):
    """Notes when slots are created."""

    def __init__(self) -> None:
        super().__init__()
        self.created_at_s: list[float] = []

    def create(self, key: str, data: bytes) -> Created:
        if "/log/" in key:
            self.created_at_s.append(time.perf_counter())
        return super().create(key, data)


@asynccontextmanager
async def owner(store: MemoryLogStore, data: Path, interval_s: float, window: int = 1) -> AsyncIterator[Engine]:
    member = Member("root", b"S" * 16, secrets.token_bytes(16))
    log = SharedLog(store, member, Addresses("host:7420", "host:7422"), AtOnce(), MIB, window, interval_s)
    with trio.fail_after(PATIENCE_S):
        async with open_engine(str(data), CONFIG, log=log) as engine:
            yield engine


windows = pytest.mark.parametrize("window", [1, 4])


@windows
async def test_small_slots_are_an_interval_apart_and_everything_is_acknowledged(tmp_path: Path, window: int) -> None:
    store = TimedStore()
    async with owner(store, tmp_path / "a", INTERVAL_S, window) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        store.created_at_s.clear()
        ends_at, values = trio.current_time() + 5 * INTERVAL_S, []
        async with trio.open_nursery() as nursery:
            while trio.current_time() < ends_at:
                values.append(b"%d" % len(values))
                nursery.start_soon(append, engine, SHARD, values[-1])
                await trio.sleep(0.005)
        assert await values_of(engine, SHARD) == values
    assert len(values) > 2 * len(store.created_at_s)
    # The thread that creates a slot may run late, so two of them can be a little closer.
    for before, after in itertools.pairwise(store.created_at_s):
        assert after - before > INTERVAL_S / 2
    assert 4 <= len(store.created_at_s) <= 8


@windows
@pytest.mark.slow("waits for two seconds")
async def test_appends_in_memory_do_not_wait_for_the_interval(tmp_path: Path, window: int) -> None:
    store = TimedStore()
    async with owner(store, tmp_path / "a", 2.0, window) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.MEMORY))
        # The first one reserves offsets, which is an entry in the log.
        await append(engine, SHARD, b"0")
        creates = len(store.created_at_s)
        for number in range(1, 100):
            await append(engine, SHARD, b"%d" % number)
        assert len(await values_of(engine, SHARD)) == 100
        assert len(store.created_at_s) == creates


@windows
async def test_a_full_slot_is_written_at_once(tmp_path: Path, window: int) -> None:
    store = TimedStore()
    large = b"x" * (300 << 10)
    async with owner(store, tmp_path / "a", LONG_S, window) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        async with trio.open_nursery() as nursery:
            for _ in range(4 * MIB // len(large)):
                nursery.start_soon(append, engine, SHARD, large)
            # The last one is not full.
            with trio.fail_after(PATIENCE_S):
                while len(store.created_at_s) < 4:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@windows
async def test_an_orderly_stop_does_not_wait_for_the_interval(tmp_path: Path, window: int) -> None:
    store = TimedStore()
    async with trio.open_nursery() as nursery, owner(store, tmp_path / "a", LONG_S, window) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        nursery.start_soon(append, engine, SHARD, b"last")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await values_of(engine, SHARD) == []
    async with owner(store, tmp_path / "b", 0.0) as engine:
        assert await values_of(engine, SHARD) == [b"last"]


async def test_what_is_collected_is_written_as_soon_as_the_engine_begins_to_stop(tmp_path: Path) -> None:
    """A conversion waits for its entry in a task that is not cancelled, and a stop waits for that task."""
    async with owner(TimedStore(), tmp_path / "a", LONG_S) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        with trio.fail_after(5.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, engine, SHARD, b"last")
                await trio.testing.wait_all_tasks_blocked(0.05)
                engine.parts.committer.begin_close()
        assert await values_of(engine, SHARD) == [b"last"]


@pytest.mark.slow("starts a server, and waits for an interval")
async def test_clients_do_not_wait_for_each_others_receive_buffers_nor_for_the_interval_at_a_stop(
    tmp_path: Path,
) -> None:
    """Each append that was received alone took a buffer until its slot was written: further clients were not heard."""
    (tmp_path / "store").mkdir()
    settings = ("storage.receive_buffers=4", "storage.receive_buffer_bytes=64 KiB")
    with running(tmp_path, 1, f"file://{tmp_path / 'store'}?interval=10000ms", settings=settings) as cluster:
        server = await cluster.owner()
        async with open_client(server.tcp) as first:
            await first.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        began = trio.current_time()
        acknowledged: list[int] = []

        async def client(number: int) -> None:
            # Without a producer, of which the registration would be an entry, too.
            host, port = server.tcp.split(":")
            raw = RawClient(await trio.open_tcp_stream(host, int(port)))
            async with raw.stream:
                await raw.hello()
                await raw.append_values(await raw.open(SHARD, None), b"%d" % number)
                acknowledged.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(11):
                nursery.start_soon(client, number)
            # All but those that fit into the buffers, and perhaps more.
            with trio.fail_after(PATIENCE_S):
                while len(acknowledged) < 8:
                    await trio.sleep(0.02)
            assert trio.current_time() - began < 8.0
            # The others are acknowledged in the course of the stop.
            server.send(signal.SIGTERM)
        assert len(acknowledged) == 11
        assert server.wait() == 0
        assert trio.current_time() - began < 9.0
