"""A disk that is really full: a small file system with the data directory, and something else that fills it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from journal.client import SessionTimes, open_client
from shards.errors import StorageError
from tests.crash.killed_server import CONFIGURATION, KilledServer
from tests.patience import PATIENCE_S
from tests.torture.rounds import Result, Round

SIZE_BYTES = 48 << 20


class NoMountError(Exception):
    """Nothing can be mounted here."""


@contextmanager
def small_file_system(directory: Path) -> Iterator[Path]:
    """An ext4 of its own, mounted from a file for the length of the block.

    Raises:
        NoMountError: This machine does not let us.
    """
    image, mount = directory / "image", directory / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        if shutil.which(command[0]) is None:
            raise NoMountError(f"{command[0]} is not installed")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        if done.returncode:
            raise NoMountError(f"{command[0]}: {done.stderr.strip().splitlines()[0]}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True, timeout=PATIENCE_S)
        image.unlink()


def full_disk(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Fill the disk under the server again and again; with room again it takes appends, at the latest after a start."""
    try:
        with small_file_system(directory) as mount:
            return _fill(directory, mount, rng, seconds)
    except NoMountError as error:
        return Result(skipped=str(error))


def _fill(directory: Path, mount: Path, rng: random.Random, seconds: float) -> Result:
    reserve = rng.choice(("0", '"4 MiB"'))
    configuration = CONFIGURATION.replace("disk_reserve_bytes = 0", f"disk_reserve_bytes = {reserve}")
    one = Round(directory, KilledServer(directory, data=mount / "data", configuration=configuration), rng)
    one.may_end = True
    ballast = mount / "ballast"
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.1, 1))
            began_ns = time.monotonic_ns()
            left = rng.choice((0, 0, 64 << 10, 1 << 20))
            _take_room(ballast, left)
            one.result.counts["times the disk was full"] += 1
            time.sleep(rng.uniform(0.2, 1.5))
            if rng.random() < 0.3:
                # A start on a full disk comes up, or says why not and ends.
                one.end_server(signal.SIGKILL)
                try:
                    one.start_server()
                except AssertionError:
                    status = one.server.wait()
                    one.result.counts["starts that failed"] += 1
                    if status <= 0:
                        one.result.broken.append(f"a start on a full disk ended with status {status}")
            ballast.unlink()
            one.note(f"the disk had {left:,} bytes left", began_ns)
            _after_room(one, began_ns)
        one.finish()
    return one.result


def _take_room(ballast: Path, left_bytes: int) -> None:
    with ballast.open("wb") as file:
        block = bytes(64 << 10)
        while True:
            free = os.statvfs(ballast.parent)
            if free.f_bavail * free.f_frsize <= left_bytes:
                break
            try:
                file.write(block)
                file.flush()
            except OSError:
                break


def _after_room(one: Round[KilledServer], began_ns: float) -> None:
    if one.server.exit_status is not None:
        one.result.counts[f"ended by itself with status {one.server.exit_status}"] += 1
        one.note_death(began_ns)
        one.start_server()
    elif not trio.run(_takes_appends, one.server.address):
        one.result.counts["had to be started again"] += 1
        one.end_server(signal.SIGKILL)
        one.start_server()
    if not trio.run(_takes_appends, one.server.address):
        one.result.broken.append("there is room again and the server was started again, but it takes no appends")


async def _takes_appends(address: str) -> bool:
    """Whether an append is acknowledged within a reasonable time."""
    with trio.move_on_after(20):
        try:
            async with open_client(
                address, name="probe", flush_timeout_s=0, times=SessionTimes(give_up_after_s=10)
            ) as client:
                await client.create_shard("probe", exist_ok=True)
                await client.append("probe", [b"is there room"])
        except StorageError:
            return False
        else:
            return True
    return False
