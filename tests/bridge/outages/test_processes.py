"""What happens to the bridge's own side, a case each: its driver, the store behind it, the disk below that."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.bridge.outages.disk import RESERVE_BYTES, SETTINGS, filled, small_disk
from tests.bridge.outages.world import World, open_world
from tests.patience import PATIENCE_S

MESSAGES = 60


async def kill_driver(world: World) -> None:
    """The broker that drives the bridge is killed; what is under way then was not confirmed."""
    driver = world.driver_in(await world.look())
    assert driver is not None
    await trio.to_thread.run_sync(driver.end, signal.SIGKILL)
    await world.wait_queue(lambda state: world.driver_in(state) not in (None, driver))
    await world.publish(MESSAGES)
    await trio.to_thread.run_sync(driver.start)


async def kill_server(world: World) -> None:
    """The journal server is killed, and started again where it was."""
    await trio.to_thread.run_sync(world.server.end, signal.SIGKILL)
    await trio.to_thread.run_sync(world.server.start)


@pytest.mark.slow("kills brokers")
@pytest.mark.parametrize("sink", ["http", "postgresql", "mqtt_mosquitto"])
async def test_another_broker_takes_over_from_one_that_was_killed(sink: str, tmp_path: Path) -> None:
    async with open_world(tmp_path, sink, brokers=2) as world:
        await world.wait_driven()
        with trio.fail_after(PATIENCE_S):
            await kill_driver(world)
        await world.publish(MESSAGES)
        await world.check()


@pytest.mark.slow("kills servers")
@pytest.mark.parametrize("sink", ["http", "postgresql", "mqtt_mosquitto"])
async def test_the_journal_server_is_killed_under_way(sink: str, tmp_path: Path) -> None:
    async with open_world(tmp_path, sink) as world:
        await world.wait_driven()
        for _ in range(2):
            await kill_server(world)
            with trio.fail_after(PATIENCE_S):
                await world.publish(MESSAGES)
        await world.check()


@pytest.mark.slow("kills servers and brokers")
async def test_all_are_killed_while_the_sink_is_out(tmp_path: Path) -> None:
    async with open_world(tmp_path, "postgresql") as world:
        await world.wait_driven()
        world.proxy.refuse()
        await world.wait_out()
        await world.publish(MESSAGES)
        for process in (world.brokers[0], world.server):
            await trio.to_thread.run_sync(process.end, signal.SIGKILL)
        for process in (world.server, world.brokers[0]):
            await trio.to_thread.run_sync(process.start)
        with trio.fail_after(PATIENCE_S):
            await world.publish(MESSAGES)
        assert (await world.look()).depth.record_count >= 4 * MESSAGES
        await world.proxy.listen()
        await world.check()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", size_mib=40) as place:
        yield place


async def nothing_is_acknowledged(world: World) -> None:
    """Publishers wait for an answer and get none: what the store refuses for now is tried again and again."""
    for publisher in world.publishers:
        await publisher.wait_stuck()
    before, now = [], [publisher.acknowledged_count for publisher in world.publishers]
    # What the server had accepted before it found the disk full is acknowledged, then nothing more.
    while now != before:
        before = now
        await trio.sleep(1)  # what must not come has no condition to wait for
        now = [publisher.acknowledged_count for publisher in world.publishers]


@pytest.mark.slow("fills a disk")
@pytest.mark.parametrize("is_sink_out", [False, True], ids=["while the sink is there", "while the sink is out"])
async def test_a_full_disk_takes_no_publishes_and_loses_nothing(is_sink_out: bool, tmp_path: Path, disk: Path) -> None:
    async with open_world(tmp_path, "postgresql", data=disk / "data", settings=SETTINGS) as world:
        await world.wait_driven()
        if is_sink_out:
            world.proxy.refuse()
            await world.wait_out()
            await world.publish(MESSAGES)
        with trio.fail_after(PATIENCE_S):
            with filled(disk, RESERVE_BYTES // 4):
                await nothing_is_acknowledged(world)
            await world.publish(MESSAGES)
        if is_sink_out:
            await world.proxy.listen()
        await world.check()


@pytest.mark.slow("fills a disk")
async def test_what_waits_is_brought_away_also_while_the_disk_is_full(tmp_path: Path, disk: Path) -> None:
    """Otherwise only its operator could make room on a disk that a queue has filled."""
    async with open_world(tmp_path, "postgresql", data=disk / "data", settings=SETTINGS) as world:
        await world.wait_driven()
        world.proxy.refuse()
        await world.wait_out()
        await world.publish(MESSAGES)
        with trio.fail_after(PATIENCE_S):
            with filled(disk, RESERVE_BYTES * 3 // 4):
                await nothing_is_acknowledged(world)
                assert (await world.look()).depth.record_count >= 2 * MESSAGES
                await world.proxy.listen()
                await world.wait_queue(lambda state: not state.depth.record_count)
            await world.publish(MESSAGES)
        await world.check()
