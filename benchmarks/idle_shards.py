"""Cost of many idle shards: time to create them, time to start with them, resident memory for each.

Made once per benchmark on a server of its own, because writing the shards takes longer than all runs of another row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import processes
from benchmarks.ours import FILE, batch_of, fill
from benchmarks.runs import Measurement
from benchmarks.stage import Stage, start_journal
from benchmarks.wire import AckCounter, Wire
from journal.protocol import frames
from journal.protocol.frames import Op

GROUP_SHARDS = 1000
# One and a half times the journal's budget: earlier entries have left the journal, and so the memory.
CHECKPOINT_FILLING_BYTES = 768 << 20

# The records of a shard that is idle are in a shared file after ten minutes by default, and a shard that is not used is
# closed within a minute; here both are done at once.
CLOSE_SOON = {"storage.retention_interval_s": "1"}
GATHER_SOON = {"conversion.max_age_s": "1", **CLOSE_SOON}
GATHERED_TIMEOUT_S = 300.0
LOOK_S = 0.2

Progress = Callable[[int, int], None]


def measurement(stage: Stage, shards: int, progress: Progress) -> Measurement:
    """The only measurement of this module; ``progress`` gets the shards done and the shards in all."""
    keys = ("idle.create", "idle.ready", "idle.ready-killed", "idle.bytes", "idle.bytes-written")
    return Measurement(keys, lambda _timing: _measure(stage.directory / "idle", shards, progress), repeated=False)


def _measure(directory: Path, shards: int, progress: Progress) -> Mapping[str, float]:
    data = directory / "data"
    with _running(data, directory / "log-first") as server:
        started_bytes = processes.settled(server.resident_bytes)
        # The same filling before and after: what buffers and the allocator keep of it is not counted as a cost of the
        # shards, and the journal passes its budget, so that a checkpoint removes the shards' records from memory.
        with Wire(server.address) as wire:
            fill(wire, "filling", CHECKPOINT_FILLING_BYTES)
        worked_bytes = processes.settled(server.resident_bytes)
        begun_at = time.perf_counter()
        create_shards(server.address, shards, progress)
        created_s = time.perf_counter() - begun_at
        with Wire(server.address) as wire:
            fill(wire, "filling", CHECKPOINT_FILLING_BYTES)
        written_bytes = processes.settled(server.resident_bytes)
    with _running(data, directory / "log-restarted", kill=True) as server:
        ready_s = server.ready_s
    with _running(data, directory / "log-killed", GATHER_SOON) as server:
        killed_ready_s = server.ready_s
        _wait_gathered(server)
    with _running(data, directory / "log-merging", GATHER_SOON) as server:
        # The files that were just made are merged.
        _wait_gathered(server)
    with _running(data, directory / "log-idle", CLOSE_SOON) as server:
        _wait_alone(server)
        idle_bytes = processes.settled(server.resident_bytes)
    return {
        "idle.create": shards / created_s,
        "idle.ready": ready_s,
        "idle.ready-killed": killed_ready_s,
        "idle.bytes": (idle_bytes - started_bytes) / shards,
        "idle.bytes-written": (written_bytes - worked_bytes) / shards,
    }


def _wait_gathered(server: processes.Server) -> None:
    """Until the process that writes shared files has come, has had nothing to do for a while, and is gone."""
    _wait_children(server, are_there=True)
    _wait_alone(server)


def _wait_alone(server: processes.Server) -> None:
    """Until a server has no other processes."""
    _wait_children(server, are_there=False)


def _wait_children(server: processes.Server, *, are_there: bool) -> None:
    """Until a server has processes of its own, or none.

    Raises:
        ProcessError: That was not so within a few minutes.
    """
    give_up_at = time.monotonic() + GATHERED_TIMEOUT_S
    while bool(processes.children(server.process.pid)) is not are_there:
        if time.monotonic() > give_up_at:
            what = "began no process that writes" if are_there else "still wrote"
            raise processes.ProcessError(f"the server {what} shared files within {GATHERED_TIMEOUT_S:.0f} s")
        time.sleep(LOOK_S)


@contextmanager
def _running(
    data: Path, log_path: Path, settings: Mapping[str, str] | None = None, *, kill: bool = False
) -> Iterator[processes.Server]:
    """A server for the duration of a context, stopped by SIGTERM (drain and checkpoint) or killed at its end."""
    server = start_journal(data, log_path, settings=settings)
    try:
        yield server
    finally:
        server.stop(kill=kill)


def create_shards(address: tuple[str, int], shards: int, progress: Progress, *, first: int = 0) -> None:
    """Create the shards from ``idle/FIRST`` on until there are so many, and append one record to each.

    Both is pipelined, a group of shards at a time.
    """
    batch = batch_of(1)
    buffer = bytearray(1 << 20)
    with Wire(address) as wire:
        wire.socket.settimeout(120.0)
        for start in range(first, shards, GROUP_SHARDS):
            names = [f"idle/{number}" for number in range(start, min(start + GROUP_SHARDS, shards))]
            handles = wire.open(names, FILE)
            wire.socket.sendall(b"".join(frames.build_append(n, h, batch) for n, h in enumerate(handles)))
            counter = AckCounter()
            acknowledged = 0
            while acknowledged < len(handles):
                acknowledged += counter(buffer, wire.socket.recv_into(buffer))
            wire.requests(Op.CLOSE_SHARD, [{"handle": handle} for handle in handles])
            progress(start + len(names), shards)
