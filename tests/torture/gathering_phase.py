"""Faults while closed segments are gathered into shared files: in the process that writes them, and in the server.

The server moves the files into their places and removes what they replace.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from tests.crash.killed_server import GATHERING, KilledServer
from tests.torture.fault_phases import SYNCS, inject, missing_strace
from tests.torture.rounds import Result, Round

# What fails in the process that writes Parquet files: the server must go on, and nothing is lost.
IN_WORKER = (
    (SYNCS, "error=EIO"),
    (SYNCS, "error=ENOSPC"),
    ("pwritev2,pwritev,pwrite64", "error=EIO"),
    ("pwritev2,pwritev,pwrite64", "error=ENOSPC"),
)
# What fails in the server.
IN_SERVER = (
    ("rename", "error=EIO"),
    ("rename", "error=ENOSPC"),
    ("mkdir", "error=ENOSPC"),
    ("unlink,rmdir", "error=EIO"),
    ("unlink,rmdir", "error=ENOSPC"),
)
# What fails only where the directories of sealed segments are synced.
OF_DIRECTORIES = ((SYNCS, "error=EIO"), (SYNCS, "error=ENOSPC"))


def gathering(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Let calls fail, and kill either process, while a server gathers as often as it can."""
    if reason := missing_strace(directory):
        return Result(skipped=reason)
    one = Round(directory, KilledServer(directory, configuration=GATHERING), rng)
    with one.working():
        _wait_until_gathered(one.server)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.2, 1.5))
            _disturb(one)
        one.finish()
    if not one.result.counts["shared files"]:
        one.result.broken.append("nothing was gathered: the phase does not do what it says")
    return one.result


def _wait_until_gathered(server: KilledServer, patience_s: float = 20) -> None:
    ends_at = time.monotonic() + patience_s
    while time.monotonic() < ends_at and not list(server.data.glob("sealed/date=*/*.parquet")):
        time.sleep(0.05)


def _disturb(one: Round[KilledServer]) -> None:
    rng = one.rng
    worker = worker_of(one.server.pid)
    chance = rng.random()
    if worker is not None and chance < 0.2:
        began_ns = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        one.note("the process that writes Parquet files was killed", began_ns)
        one.result.counts["writers of Parquet killed"] += 1
    elif worker is not None and chance < 0.45:
        calls, how = rng.choice(IN_WORKER)
        inject(one, calls, how, passes=True, pid=worker)
    elif chance < 0.65:
        calls, how = rng.choice(IN_SERVER)
        inject(one, calls, how, passes=False)
    elif chance < 0.85:
        calls, how = rng.choice(OF_DIRECTORIES)
        sealed = one.server.data / "sealed"
        inject(one, calls, how, passes=False, paths=[str(sealed), *map(str, sealed.glob("date=*"))])
    else:
        one.end_server(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        one.start_server()


def worker_of(pid: int) -> int | None:
    """Id of the process that writes Parquet files for a server; None while there is none."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if b"journal.engine.parquet.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None
