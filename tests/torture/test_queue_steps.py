"""Random steps with a queue hold; with a defect of the queue put back, the checker of what they did names it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import broker_adapter.cache_queue.drain as drain_module
import broker_adapter.cache_queue.progress as progress_module
import broker_adapter.cache_queue.queue as queue_module
from broker_adapter.cache_queue import QueueDrain, QueueMode
from broker_adapter.cache_queue.stored import Counts, Progress
from shards.model import Mode
from tests.restores.restorable_server import RestorableServer
from tests.torture.deliveries.checker import check
from tests.torture.queue_steps import QueueSteps, run_steps

Patch = pytest.MonkeyPatch
Script = Callable[[QueueSteps], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestorableServer]:
    server = RestorableServer(tmp_path_factory.mktemp("store"))
    server.process.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def steps_of(
    server: RestorableServer, queue: str, mode: QueueMode, *, ends_at_restore: bool = True
) -> AsyncIterator[QueueSteps]:
    async with trio.open_nursery() as nursery:
        steps = QueueSteps(server, random.Random(queue), queue=queue, mode=mode, ends_at_restore=ends_at_restore)
        await steps.begin(nursery)
        yield steps
        nursery.cancel_scope.cancel()


@pytest.mark.slow("starts servers and a queue")
def test_random_steps_hold(tmp_path: Path) -> None:
    """A server of its own, which is killed now and then: most of the time is its starts."""
    server = RestorableServer(tmp_path)
    server.process.start()
    try:
        steps = trio.run(run_steps, server, random.Random(5), 0)
    finally:
        server.kill()
    assert [str(anomaly) for anomaly in check(steps.history)] == []
    assert steps.history.arrivals
    assert steps.counts["purge"]
    assert steps.counts["change mode"]


async def fill_and_drain(steps: QueueSteps) -> None:
    for _ in range(3):
        await steps.put()
    await steps.drain_to_end()
    await steps.kill_the_driver()
    await steps.put()
    await steps.drain_to_end()


async def fill_and_purge(steps: QueueSteps) -> None:
    await steps.put()
    await steps.purge()


async def change_to_file_and_die(steps: QueueSteps) -> None:
    await steps.change_mode(QueueMode.FILE)
    await steps.have_writers_look()
    await steps.put()
    await steps.kill_the_store()


async def die_in_memory(steps: QueueSteps) -> None:
    await steps.put()
    await steps.drain_to_end()
    await steps.put()
    await steps.kill_the_store()
    await steps.drain_to_end()


async def drain_and_purge(steps: QueueSteps) -> None:
    """The driver has read before the purge, and is there afterwards."""
    await steps.put()
    await steps.drain()
    await steps.put()
    await steps.purge()
    await steps.put()


async def restore_under_a_driver(steps: QueueSteps) -> None:
    """The cursor has not moved since the backup, so its version is the one that the driver knows."""
    await steps.put()
    await steps.drain_to_end()
    await steps.back_the_store_up()
    await steps.put()
    await steps.restore_the_store()


async def no_settings(*_: object) -> None:
    """A change of the mode is written down and not carried out."""


def no_other_mode(_: object, mode: Mode, *__: object) -> Mode:
    """Nor do writers see to it."""
    return mode


def no_unused(*_: object) -> list[tuple[int, int]]:
    """Every offset of a gap was a record."""
    return []


def twice(first: Counts, second: Counts) -> Counts:
    """What is purged is counted twice."""
    return progress_module.added(progress_module.added(first, second), Counts(purged=second.purged))


async def confirm_one_more(self: QueueDrain, next_offset: int, outcome: Counts, size_bytes: int) -> None:
    """The queue is moved past a record that was not brought to the sink, the first time."""
    more = 0 if self.offset else 1
    await CONFIRM(self, next_offset + more, progress_module.added(outcome, Counts(confirmed=more)), size_bytes)


async def keep_no_letter(self: QueueDrain, progress: Progress, letters: object) -> int:
    """A refused record is noted as a dead letter, and is none."""
    return await PUT(self, progress, ())


async def forget_progress(adapter: Any, queue: str, shard_id: int) -> tuple[Progress, int]:
    """A driver that takes over begins where the queue began."""
    found, version = await progress_module.read_progress(adapter, queue, shard_id)
    return msgspec.structs.replace(found, offset=0, counts=Counts()), version


CONFIRM, PUT = QueueDrain.confirm, QueueDrain._put

Change = tuple[object, str, object]

SABOTAGES: dict[str, tuple[Sequence[Change], QueueMode, Script, str]] = {
    "mode": (
        ((queue_module, "_apply_settings", no_settings), (queue_module, "_next_mode", no_other_mode)),
        QueueMode.MEMORY,
        change_to_file_and_die,
        "lost",
    ),
    "gap": (
        ((progress_module, "unused_in", no_unused), (drain_module, "unused_in", no_unused)),
        QueueMode.MEMORY,
        die_in_memory,
        "wrong count",
    ),
    "purge": (((queue_module, "added", twice),), QueueMode.FILE, fill_and_purge, "wrong count"),
    "confirm": (((QueueDrain, "confirm", confirm_one_more),), QueueMode.FILE, fill_and_drain, "lost"),
    "letters": (((QueueDrain, "_put", keep_no_letter),), QueueMode.FILE, fill_and_drain, "lost"),
    "progress": (((drain_module, "read_progress", forget_progress),), QueueMode.FILE, fill_and_drain, "doubled"),
}
"""Queue by queue: how the defect is put back, the mode to begin with, what is done, and which anomaly shows it."""


@pytest.mark.slow("starts servers and a queue")
async def test_a_driver_that_continues_after_a_restore_is_named(server: RestorableServer) -> None:
    async with steps_of(server, "restore", QueueMode.FILE, ends_at_restore=False) as steps:
        await restore_under_a_driver(steps)
        await steps.end(writers_look_s=0)
    assert "lost" in {anomaly.kind for anomaly in check(steps.history)}


SCRIPTS = {
    "mode": change_to_file_and_die,
    "gap": die_in_memory,
    "purge": fill_and_purge,
    "drain": fill_and_drain,
    "drain-and-purge": drain_and_purge,
    "restore": restore_under_a_driver,
}


@pytest.mark.slow("starts servers and a queue")
@pytest.mark.parametrize("queue", SABOTAGES)
async def test_a_defect_that_is_put_back_is_named(server: RestorableServer, monkeypatch: Patch, queue: str) -> None:
    changes, mode, script, kind = SABOTAGES[queue]
    async with steps_of(server, queue, mode) as steps:
        for place, name, broken in changes:
            monkeypatch.setattr(place, name, broken)
        await script(steps)
        monkeypatch.undo()
        await steps.end(writers_look_s=0)
    assert kind in {anomaly.kind for anomaly in check(steps.history)}


@pytest.mark.slow("starts servers and a queue")
@pytest.mark.parametrize("queue", SCRIPTS)
async def test_the_same_steps_hold_without_a_defect(server: RestorableServer, queue: str) -> None:
    mode = QueueMode.MEMORY if queue in {"mode", "gap"} else QueueMode.FILE
    async with steps_of(server, f"sound-{queue}", mode) as steps:
        await SCRIPTS[queue](steps)
        await steps.end(writers_look_s=0)
    assert [str(anomaly) for anomaly in check(steps.history)] == []
