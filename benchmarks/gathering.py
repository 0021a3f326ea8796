"""Gathering of closed segments into shared files: rate, size, cost of many quiet shards, and reading.

Made once per benchmark, on servers of its own. The rows about quiet shards run in a process of their own
(`benchmarks.gather_load`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import processes
from benchmarks.history import FIRST_TIME_US, RECORDS_PER_BATCH, Segment, telemetry, value_share, writing_rate
from benchmarks.load import Timing
from benchmarks.ours import FETCH_BYTES, FILE, window_of
from benchmarks.runs import Measurement
from benchmarks.stage import REPOSITORY, Stage, start_journal
from benchmarks.wire import AckCounter, Wire, fetch_bytes_per_s
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.format.batch import encode_values

RUNS = 3
POINT_READS = 100
ONE = "gather/one"
OWN = "gather/own"
OFF = {"conversion.enabled": "false"}
BY_HAND = {"conversion.max_age_s": "86400"}
GATHERING = {"conversion.max_age_s": "10"}
GATHERED_TIMEOUT_S = 300.0
QUIET_TIMEOUT_S = 1800.0
QUIET_PART = 10
"""The rows about quiet shards use a tenth of them; what grows with their number is multiplied."""

Progress = Callable[[int, int], None]

KEYS = (
    "gather.rate.one",
    "gather.rate.many",
    "gather.ratio",
    "gather.quiet.files",
    "gather.quiet.processor",
    "gather.quiet.written",
    "gather.quiet.step",
    "gather.point_read",
    "gather.read.own",
    "gather.read",
)


def measurement(stage: Stage, shards: int, progress: Progress) -> Measurement:
    """The only measurement of this module; ``progress`` gets the batches written and the batches in all.

    Args:
        shards: Number of the quiet shards; the rows with many shards use a tenth.
    """
    return Measurement(
        KEYS, lambda timing: _measure(stage.directory / "gather", shards, timing, progress), repeated=False
    )


def _measure(directory: Path, shards: int, timing: Timing, progress: Progress) -> Mapping[str, float]:
    data = directory / "data"
    names = [f"gather/many/{number:06}" for number in range(shards // QUIET_PART)]
    with _running(data, directory / "log-written", OFF) as server:
        one, many = _write(server.address, names, progress)
    rate_one, _ = writing_rate(data, one)
    rate_many, ratio = writing_rate(data, many)
    with _running(data, directory / "log-own", BY_HAND) as server, Wire(server.address, timeout_s=300.0) as wire:
        wire.request(Op.ROLL, {"name": OWN, "wait": True})
    with _running(data, directory / "log-gathered", GATHERING):
        _wait_until_gathered(data)
    _leave_page_cache(data / "sealed")
    with _running(data, directory / "log-read", OFF) as server:
        point_read_ms = _point_read_ms(server.address, names)
        own, shared = _read_rates(server.address, timing)
    return {
        "gather.rate.one": rate_one,
        "gather.rate.many": rate_many,
        "gather.ratio": ratio,
        **_quiet(directory / "quiet", shards // QUIET_PART),
        "gather.point_read": point_read_ms,
        "gather.read.own": own,
        "gather.read": shared,
    }


@contextmanager
def _running(data: Path, log: Path, settings: Mapping[str, str]) -> Iterator[processes.Server]:
    """A server for the duration of a context, stopped by SIGTERM."""
    server = start_journal(data, log, settings=settings)
    try:
        yield server
    finally:
        server.stop()


def _write(address: tuple[str, int], names: Sequence[str], progress: Progress) -> tuple[list[Segment], list[Segment]]:
    """Append a batch to each shard, and as many to two others; returns the closed segments of one and of many."""
    buffer = bytearray(1 << 20)
    counter = AckCounter()
    with Wire(address) as wire:
        handles = wire.open(names, FILE)
        alone = wire.open([ONE, OWN], FILE)
        sent = acknowledged = 0
        for number, handle in enumerate(handles):
            first = number * RECORDS_PER_BATCH
            batch = encode_values(
                telemetry(first, RECORDS_PER_BATCH), timestamp_us=FIRST_TIME_US + first * RECORDS_PER_BATCH
            )
            for to in (handle, *alone):
                wire.socket.sendall(frames.build_append(sent, to, batch))
                sent += 1
            while sent - acknowledged > window_of(len(batch)) // 2:
                acknowledged += counter(buffer, wire.socket.recv_into(buffer))
            if number % 500 == 0:
                progress(number, len(handles))
        while acknowledged < sent:
            acknowledged += counter(buffer, wire.socket.recv_into(buffer))
    progress(len(names), len(names))
    with Wire(address) as wire:
        return _closed(wire, [ONE]), _closed(wire, names)


def _closed(wire: Wire, names: Sequence[str]) -> list[Segment]:
    """Close the active segments of shards and return all closed ones."""
    found = []
    for start in range(0, len(names), 500):
        some = names[start : start + 500]
        for name, info in zip(some, wire.requests(Op.ROLL, [{"name": name} for name in some]), strict=True):
            found += [
                Segment(name, info["shard_id"], segment["base_offset"], segment["next_offset"])
                for segment in info["segments"]
                if segment["closed"] and segment["next_offset"] > segment["base_offset"]
            ]
    return found


def _wait_until_gathered(data: Path) -> None:
    """Return when no log file is left: a start gathers what was closed before it, and a checkpoint removes the logs."""
    ends_at = time.monotonic() + GATHERED_TIMEOUT_S
    while any((data / "log").glob("*/*.log")):
        if time.monotonic() > ends_at:
            raise processes.ProcessError(f"segments were not gathered within {GATHERED_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def _leave_page_cache(directory: Path) -> None:
    """Have the kernel forget the content of files, so that the first read of each part is one of the disk."""
    os.sync()
    for path in directory.rglob("*.parquet"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _point_read_ms(address: tuple[str, int], names: Sequence[str]) -> float:
    """Median time of a read of one batch, of shards so far apart that no two of them are in one row group."""
    times_ms = []
    with Wire(address) as wire:
        chosen = names[:: max(1, len(names) // POINT_READS)]
        for number, handle in enumerate(wire.open(chosen, None)):
            begun_at = time.perf_counter()
            wire.socket.sendall(frames.build_fetch(0, handle, number % RECORDS_PER_BATCH, 1, 0))
            wire.receive()
            times_ms.append((time.perf_counter() - begun_at) * 1e3)
    return statistics.median(times_ms)


def _read_rates(address: tuple[str, int], timing: Timing) -> tuple[float, float]:
    """Megabytes of values per second read from a file of one shard, and from shared files, in turns."""
    rates: dict[str, list[float]] = {OWN: [], ONE: []}
    with Wire(address) as wire:
        for _ in range(RUNS):
            for name, found in rates.items():
                end = int(wire.request(Op.DESCRIBE_SHARD, {"name": name})["next_offset"])
                [handle] = wire.open([name], None)
                found.append(fetch_bytes_per_s(wire.socket, [(handle, end)], max_bytes=FETCH_BYTES, timing=timing))
    own, shared = (statistics.median(found) * value_share() / 1e6 for found in rates.values())
    return own, shared


def _quiet(directory: Path, shards: int) -> Mapping[str, float]:
    """Figures of the process with quiet shards, for all of them."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gather_load", str(directory), str(shards)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=QUIET_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise processes.ProcessError(f"the engine with quiet shards ended with status {done.returncode}: {last}")
    figures = json.loads(done.stdout)
    return {
        "gather.quiet.files": figures["files_a_day"],
        "gather.quiet.processor": figures["processor_s_a_day"] * QUIET_PART,
        "gather.quiet.written": figures["written_bytes_a_day"] * QUIET_PART / 1e9,
        "gather.quiet.step": figures["longest_step_ms"],
    }
