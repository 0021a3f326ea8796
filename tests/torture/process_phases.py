"""What is done to the process of the server: killed, paused, its clock changed. Each phase is one round of clients."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.torture.rounds import Result, Round


def kills(directory: Path, rng: random.Random, seconds: float) -> Result:
    """SIGKILL, now and then SIGTERM, and clients that are killed and replaced."""
    one = Round.begin(directory, rng)
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            # The moment is the point of it, so there is no condition to wait for.
            time.sleep(rng.uniform(0.1, 2))
            chance = rng.random()
            if chance < 0.2:
                one.kill_worker()
                one.start_worker()
            else:
                one.end_server(signal.SIGTERM if chance < 0.35 else signal.SIGKILL)
                one.start_server()
        one.finish()
    return one.result


def pauses(directory: Path, rng: random.Random, seconds: float) -> Result:
    """SIGSTOP for up to some seconds, then SIGCONT, or SIGKILL while it is stopped."""
    one = Round.begin(directory, rng)
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.1, 1))
            one.server.signal(signal.SIGSTOP)
            one.result.counts["pauses"] += 1
            time.sleep(rng.choice((0.05, 0.5, 3)))
            if rng.random() < 0.2:
                one.end_server(signal.SIGKILL)
                one.start_server()
            else:
                one.server.signal(signal.SIGCONT)
        one.finish()
    return one.result


def clock(directory: Path, rng: random.Random, seconds: float) -> Result:
    """The wall clock of the server jumps to and fro, while it runs and while it is down."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        return Result(skipped="libfaketime is not installed (make peers)")
    told = directory / "clock"
    one = Round.begin(directory, rng)
    one.environment = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(told),
        # It looks at the file once a second. A lock is around that: at every call it held up the server for seconds.
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DISABLE_SHM": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    _set_clock(told, 0)
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.7, 2))
            while_down = rng.random() < 0.4
            if while_down:
                one.end_server(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            _set_clock(told, rng.choice((-86_400, -3_600, -5, 0, 5, 3_600, 86_400, 400 * 86_400)))
            one.result.counts["clock jumps"] += 1
            if while_down:
                one.start_server()
        one.finish()
    return one.result


def _set_clock(told: Path, offset_s: int) -> None:
    new = told.with_suffix(".new")
    new.write_text(f"{offset_s:+d}\n")
    new.replace(told)
