"""``python -m benchmarks``: make the runs, show the table.

Rows are in `rows`, measuring is in `contenders`, `ours`, `secured`, `client_load`, `adapter_load`, `append_loop`,
`message_loops`, `in_process`, `idle_shards`, `loop_steps`, `history`, `gathering`, `log_stores`, `log_store_cost`,
`mqtt` and `queues`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    adapter_load,
    append_loop,
    client_load,
    contenders,
    gathering,
    history,
    idle_shards,
    in_process,
    log_store_cost,
    log_stores,
    loop_steps,
    message_loops,
    ours,
    runs,
    secured,
    sizes,
    table,
)
from benchmarks.load import Timing
from benchmarks.machine import EXPECTED_ERRORS, machine
from benchmarks.mqtt import measurements as mqtt
from benchmarks.queues import measurements as queues
from benchmarks.rows import rows
from benchmarks.stage import Stage

QUICK = Timing(warm_up_s=0.1, measured_s=0.5)
FULL = Timing(warm_up_s=0.3, measured_s=1.3)
QUICK_RUNS = 3
FULL_RUNS = 5
# Time in which a round may begin a run, in seconds; the first round and the idle shards are always complete.
QUICK_BUDGET_S = 75.0
FULL_BUDGET_S = 480.0
QUICK_SHARDS = 10_000
FULL_SHARDS = 100_000
QUICK_RECORDS = 1_000_000
FULL_RECORDS = 5_000_000
QUICK_CONNECTIONS = 1000
FULL_CONNECTIONS = 10_000
QUICK_QUEUED = 20_000
FULL_QUEUED = 100_000
QUICK_WAITING = 20_000
FULL_WAITING = 100_000
TABLE_WIDTH = 165


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 unless a measurement failed: missing a goal is a result, not a failure."""
    arguments = _parser().parse_args(argv)
    # On SIGTERM it still stops the servers it started and removes their data.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Clients are measured in this process. Its modules, more with each kind of row, are no part of their cost.
    gc.collect()
    gc.freeze()
    quick: bool = arguments.quick
    shards = QUICK_SHARDS if quick else FULL_SHARDS
    records = QUICK_RECORDS if quick else FULL_RECORDS
    connections = QUICK_CONNECTIONS if quick else FULL_CONNECTIONS
    queued = QUICK_QUEUED if quick else FULL_QUEUED
    waiting = QUICK_WAITING if quick else FULL_WAITING
    all_rows = [
        *rows(
            shards=shards,
            many=sizes.MANY_SHARDS,
            history=records,
            connections=connections,
            queued=queued,
            waiting=waiting,
        ),
        *loop_steps.rows(shards),
    ]
    wanted = runs.select(all_rows, arguments.rows)
    if not wanted:
        Console(stderr=True).print(f"no row matches {arguments.rows!r}; try --list")
        return 2
    if arguments.list:
        for row in wanted:
            print(f"{row.key:24} {row.title} [{row.unit}]")
        return 0
    console = Console()
    console = Console(width=max(console.width if console.is_terminal else 0, TABLE_WIDTH))
    directory = Path(arguments.data)
    directory.mkdir(parents=True, exist_ok=True)
    begun_at = time.monotonic()
    timing = QUICK if quick else FULL
    rounds: int = arguments.runs or (QUICK_RUNS if quick else FULL_RUNS)
    with Stage(Path(tempfile.mkdtemp(prefix="run-", dir=directory)), keep=arguments.keep) as stage:
        samples = _measure(stage, wanted, shards, records, connections, queued, waiting, timing, rounds, quick)
    lines = runs.evaluate(wanted, samples)
    properties = machine(directory)
    form = "quick" if quick else "full"
    shown = ", ".join(f"{name} {value}" for name, value in properties.items())
    caption = (
        f"{shown}. Median of up to {rounds} interleaved runs of "
        f"{timing.measured_s} s; ratios compare runs of the same round. "
        + (
            f"Quick form: idle rows use {shards:,} shards, their goals are for {FULL_SHARDS:,}; "
            f"sealed rows use {records:,} records, their goals are for {FULL_RECORDS:,}; "
            f"MQTT rows use {connections:,} idle connections and {queued:,} queued messages, "
            f"their goals are for {FULL_CONNECTIONS:,} and {FULL_QUEUED:,}; "
            f"cache queues hold {waiting:,} records instead of {FULL_WAITING:,}. "
            if quick
            else ""
        )
        + f"Took {time.monotonic() - begun_at:.0f} s."
    )
    console.print(table.render(lines, title=f"Benchmark, {form} form", caption=caption))
    for problem in table.problems(lines):
        console.print(problem, markup=False, soft_wrap=True)
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps(table.document(lines, machine=properties, form=form), indent=2) + "\n"
        )
    return 1 if any(line.problem.startswith("failed") for line in lines) else 0


def _measure(
    stage: Stage,
    wanted: Sequence[runs.Row],
    shards: int,
    records: int,
    connections: int,
    queued: int,
    waiting: int,
    timing: Timing,
    rounds: int,
    quick: bool,
) -> dict[str, runs.Samples]:
    """Make all runs, with a progress bar on stderr."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=2,
    )
    with bar:
        task = bar.add_task("starting")
        creating = bar.add_task("creating shards", visible=False)
        writing = bar.add_task("writing history", visible=False)
        connecting = bar.add_task("idle connections", visible=False)
        measurements = [
            *_interleaved(stage),
            *append_loop.measurements(),
            *message_loops.measurements(),
            *in_process.measurements(stage),
            *log_stores.measurements(stage),
            log_store_cost.measurement(
                stage,
                shards,
                lambda done, total: bar.update(creating, completed=done, total=total, visible=done < total),
            ),
            idle_shards.measurement(
                stage,
                shards,
                lambda done, total: bar.update(creating, completed=done, total=total, visible=done < total),
            ),
            loop_steps.measurement(
                stage,
                shards,
                lambda done, total: bar.update(creating, completed=done, total=total, visible=done < total),
            ),
            history.measurement(
                stage,
                records,
                lambda done, total: bar.update(writing, completed=done, total=total, visible=done < total),
            ),
            gathering.measurement(
                stage,
                shards,
                lambda done, total: bar.update(writing, completed=done, total=total, visible=done < total),
            ),
            *mqtt.measurements(
                stage,
                idle_connections=connections,
                queued=queued,
                progress=lambda done, total: bar.update(connecting, completed=done, total=total, visible=done < total),
            ),
            *queues.measurements(stage, waiting=waiting),
        ]
        plan = runs.schedule(measurements, {row.key for row in wanted}, rounds)

        def before(number: int, measurement: runs.Measurement) -> None:
            bar.update(task, completed=number, total=len(plan), description=measurement.keys[0])
            # A run must not wait for data that the run before it left to be written.
            os.sync()

        return runs.collect(
            plan,
            timing,
            now_s=time.monotonic,
            deadline_s=time.monotonic() + (QUICK_BUDGET_S if quick else FULL_BUDGET_S),
            progress=before,
            expected_errors=EXPECTED_ERRORS,
        )


def _interleaved(stage: Stage) -> list[runs.Measurement]:
    """All repeated measurements, ordered so that each of the product runs close to its peer and its limit."""
    order = (
        "limit.sync-1m",
        "jetstream.file",
        "batches.tls",
        "batches.file",
        "batches.guarded",
        "singles.guarded",
        "singles.one",
        "redis.plain",
        "redis.synced",
        "jetstream.synced",
        "jetstream.file-many",
        "singles.many",
        "redis.plain-many",
        "redis.synced-many",
        "jetstream.synced-many",
        "jetstream.memory",
        "batches.memory",
        "limit.copy",
        "read",
        "jetstream.file-16k",
        "limit.sync-128k",
        "large",
        "limit.sync-one",
        "one",
        "redis.synced-one",
        "jetstream.file-one",
        "jetstream.synced-one",
        "jetstream.push",
        "tail",
    )
    found = [
        *contenders.limit_measurements(stage),
        *contenders.peer_measurements(stage),
        *ours.measurements(stage),
        *secured.measurements(stage),
        *client_load.measurements(stage),
        *adapter_load.measurements(stage),
    ]

    def place(measurement: runs.Measurement) -> int:
        key = measurement.keys[0].split("-p50")[0]
        for suffix in (".encoded", ".client", ".adapter", ".waiting"):
            key = key.removesuffix(suffix)
        return order.index(key)

    return sorted(found, key=place)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure against peers and limits.")
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes: shorter and fewer runs, fewer idle shards and records"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--rows", metavar="PATTERN", default="*", help="only matching rows (a,b*), and what they need")
    parser.add_argument("--runs", metavar="N", type=int, default=0, help="rounds (default 3 quick, 5 full)")
    parser.add_argument(
        "--data", metavar="DIR", default=".bench", help="where to put data; a real disk (default .bench)"
    )
    parser.add_argument("--keep", action="store_true", help="leave data and server logs in DIR")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
