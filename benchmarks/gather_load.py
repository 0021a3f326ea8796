"""``python -m benchmarks.gather_load DIRECTORY SHARDS``: what it costs to gather quiet shards; prints a JSON object.

The engine runs in this process, with the worker process and the interpreter's settings of a server, on a real disk, and
with a clock of its own: each shard gets a message a minute, and every ten minutes all segments are closed by age and
gathered. The rounds are so many that files of the day are merged once. Only closing, gathering and the checkpoint after
it are counted.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import trio

from benchmarks.history import telemetry
from benchmarks.loop_server import StepMonitor
from journal.engine import Engine, Environment, open_engine
from journal.engine.parquet.rewriting import MERGED_AT_ONCE
from journal.server.interpreter import prepare_interpreter
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.seams.clock import ManualClock
from shards.segments.shard import Shard

ROUNDS = MERGED_AT_ONCE
MINUTES = 10
ROUNDS_A_DAY = 24 * 60 // MINUTES
AT_ONCE = 1000
NOON_US = 1_700_049_600_000_000
TIMEOUT_S = 600.0
_LOOK_S = 0.002
CONFIG = ServerConfig(
    storage=StorageConfig(retention_interval_s=86_400),
    conversion=ConversionConfig(max_age_s=10),
)


def main() -> None:
    prepare_interpreter()
    figures = trio.run(_measure, sys.argv[1], int(sys.argv[2]))
    # The worker process has ended with the engine.
    worker = resource.getrusage(resource.RUSAGE_CHILDREN)
    rounds = ROUNDS_A_DAY / ROUNDS
    print(
        json.dumps(
            {
                "files_a_day": figures["files"] * rounds,
                "processor_s_a_day": (figures["processor_s"] + worker.ru_utime + worker.ru_stime) * rounds,
                "written_bytes_a_day": (figures["written_bytes"] + worker.ru_oublock * 512) * rounds,
                "longest_step_ms": figures["longest_step_ms"],
            }
        )
    )


async def _measure(directory: str, count: int) -> dict[str, float]:
    clock = ManualClock(NOON_US)
    files: set[tuple[int, int]] = set()
    processor_s = written_bytes = longest_step_s = 0.0
    monitor = StepMonitor()
    trio.lowlevel.add_instrument(monitor)
    async with open_engine(directory, CONFIG, Environment(clock=clock)) as engine:
        shards = await _create(engine, count)
        for number in range(ROUNDS):
            for minute in range(MINUTES):
                await _append(engine, shards, number * MINUTES + minute)
                clock.advance(seconds=60)
            begun_s, begun_bytes = time.process_time(), _written_bytes()
            monitor.take()
            await _gather(engine, files, (number + 1) * count, number)
            longest_step_s = max(longest_step_s, monitor.take().held_s)
            processor_s += time.process_time() - begun_s
            written_bytes += _written_bytes() - begun_bytes
    return {
        "files": len(files),
        "processor_s": processor_s,
        "written_bytes": written_bytes,
        "longest_step_ms": longest_step_s * 1e3,
    }


async def _create(engine: Engine, count: int) -> list[Shard]:
    names = [f"plant/line{number // 100:04}/sensor{number:06}" for number in range(count)]
    for start in range(0, count, AT_ONCE):
        async with trio.open_nursery() as nursery:
            for name in names[start : start + AT_ONCE]:
                nursery.start_soon(engine.create_shard, name, ShardConfig())
    return [engine.parts.table.by_name(name) for name in names]


async def _append(engine: Engine, shards: list[Shard], number: int) -> None:
    for start in range(0, len(shards), AT_ONCE):
        values = telemetry(number * len(shards) + start, AT_ONCE)
        async with trio.open_nursery() as nursery:
            for shard, value in zip(shards[start : start + AT_ONCE], values, strict=False):
                nursery.start_soon(engine.append, shard, encode_values([value], timestamp_us=NOON_US))


async def _gather(engine: Engine, files: set[tuple[int, int]], segments: int, number: int) -> None:
    """Have what is due closed and gathered, and files of the day merged."""
    parts = engine.parts

    async def look(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                await trio.sleep(_LOOK_S)
                files.update(file.key for file in parts.views.files)

    async with trio.open_nursery() as nursery:
        scope = await nursery.start(look)
        with trio.fail_after(TIMEOUT_S):
            await parts.checkpointer.retention.apply()
            await _until(lambda: parts.conversion.sealed_segments >= segments)
            await engine.checkpoint()
            if number == ROUNDS - 1:
                await _until(lambda: len(parts.views.files) > ROUNDS)
                await engine.checkpoint()
        scope.cancel()


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 there is no event for it
        await trio.sleep(0.01)


def _written_bytes() -> int:
    """Bytes that this process has had written to a disk, without those of files that were removed before that."""
    with open("/proc/self/io") as file:
        counts = {name: int(count) for name, count in (line.split(": ") for line in file)}
    return counts["write_bytes"] - counts["cancelled_write_bytes"]


if __name__ == "__main__":
    main()
