"""What happens to the bridge's own side, a case each: its driver, the store behind it, the disk below that."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.bridge.outages.world import World, open_world

MESSAGES = 60
RESERVE_BYTES = 6 << 20
DISK_SETTINGS = (f"storage.disk_reserve_bytes={RESERVE_BYTES}", "storage.flush_interval_ms=20")


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


@pytest.mark.parametrize("sink", ["http", "postgresql", "mqtt_mosquitto"])
async def test_another_broker_takes_over_from_one_that_was_killed(sink: str, tmp_path: Path) -> None:
    async with open_world(tmp_path, sink, brokers=2) as world:
        await world.wait_driven()
        with trio.fail_after(20):
            await kill_driver(world)
        await world.publish(MESSAGES)
        await world.check()


@pytest.mark.parametrize("sink", ["http", "postgresql", "mqtt_mosquitto"])
async def test_the_journal_server_is_killed_under_way(sink: str, tmp_path: Path) -> None:
    async with open_world(tmp_path, sink) as world:
        await world.wait_driven()
        for _ in range(2):
            await kill_server(world)
            with trio.fail_after(20):
                await world.publish(MESSAGES)
        await world.check()


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
        with trio.fail_after(20):
            await world.publish(MESSAGES)
        assert (await world.look()).depth.record_count >= 4 * MESSAGES
        await world.proxy.listen()
        await world.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and the mount program for a small file system")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=40m", "none", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, left_bytes: int) -> Path:
    """A file of somebody else's, that leaves so much."""
    ballast = place / "ballast"
    free = os.statvfs(place)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left_bytes)
    return ballast


async def nothing_is_acknowledged(world: World) -> None:
    """Publishers wait for an answer and get none: what the store refuses for now is tried again and again."""
    for publisher in world.publishers:
        await publisher.wait_stuck()
    before = [publisher.acknowledged_count for publisher in world.publishers]
    await trio.sleep(1)
    assert [publisher.acknowledged_count for publisher in world.publishers] == before


@pytest.mark.parametrize("is_sink_out", [False, True], ids=["while the sink is there", "while the sink is out"])
async def test_a_full_disk_takes_no_publishes_and_loses_nothing(
    is_sink_out: bool, tmp_path: Path, small_disk: Path
) -> None:
    async with open_world(tmp_path, "postgresql", data=small_disk / "data", settings=DISK_SETTINGS) as world:
        await world.wait_driven()
        if is_sink_out:
            world.proxy.refuse()
            await world.wait_out()
            await world.publish(MESSAGES)
        ballast = fill(small_disk, RESERVE_BYTES // 4)
        with trio.fail_after(20):
            await nothing_is_acknowledged(world)
            ballast.unlink()
            await world.publish(MESSAGES)
        if is_sink_out:
            await world.proxy.listen()
        await world.check()


async def test_what_waits_is_brought_away_also_while_the_disk_is_full(tmp_path: Path, small_disk: Path) -> None:
    """Else nobody but its operator could make room on a disk that a queue has filled."""
    async with open_world(tmp_path, "postgresql", data=small_disk / "data", settings=DISK_SETTINGS) as world:
        await world.wait_driven()
        world.proxy.refuse()
        await world.wait_out()
        await world.publish(MESSAGES)
        ballast = fill(small_disk, RESERVE_BYTES * 3 // 4)
        with trio.fail_after(20):
            await nothing_is_acknowledged(world)
            waiting_count = (await world.look()).depth.record_count
            assert waiting_count >= 2 * MESSAGES
            await world.proxy.listen()
            await world.wait_queue(lambda state: not state.depth.record_count)
            assert small_disk.joinpath("ballast").exists()
            ballast.unlink()
            await world.publish(MESSAGES)
        await world.check()
