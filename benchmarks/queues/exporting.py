"""How fast an export of Spark adds rows to PostgreSQL, compared with a plain COPY of the same rows.

The export runs in a process of its own (`benchmarks.export_load`), on a data directory that is not in use.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from benchmarks import processes
from benchmarks.history import FIRST_TIME_US, RECORD_INTERVAL_US, telemetry
from benchmarks.peers.postgresql import Postgresql
from benchmarks.queues.rows import EXPORT, EXPORT_COPY
from benchmarks.stage import REPOSITORY
from broker_adapter.opening import open_adapter
from shards.format.record import Record

SHARDS: Final = 4
BATCH_RECORDS: Final = 100
TIMEOUT_S: Final = 300.0
DRIVER: Final = Path("/usr/share/java/postgresql.jar")
"""Path of the driver in Debian's package libpostgresql-jdbc-java."""


def export_rates(server: Postgresql, records: int, rounds: int, directory: Path) -> Mapping[str, float]:
    """Rows per second of both; medians of alternating rounds.

    Raises:
        processes.NotInstalledError: The driver of PostgreSQL is missing.
        processes.ProcessError: Spark failed.
    """
    if not DRIVER.exists():
        raise processes.NotInstalledError("needs PostgreSQL's JDBC driver (Debian: libpostgresql-jdbc-java)")
    data = directory / "data"
    trio.run(_fill, data, records)
    arguments = [str(data), str(DRIVER), server.jdbc_url, server.url, str(rounds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.export_load", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise processes.ProcessError(f"Spark ended with status {done.returncode}: {last}")
    found = json.loads(done.stdout)
    return {EXPORT: statistics.median(found["export"]), EXPORT_COPY: statistics.median(found["copy"])}


async def _fill(data: Path, records: int) -> None:
    async with open_adapter(f"embedded:{data}") as adapter:
        for number, first in enumerate(range(0, records, BATCH_RECORDS)):
            shard = f"export/line{number % SHARDS}"
            await adapter.create_shard(shard, exist_ok=True)
            values = telemetry(first, min(BATCH_RECORDS, records - first))
            time_us = FIRST_TIME_US + first * RECORD_INTERVAL_US
            await adapter.append(shard, [Record(value, timestamp_us=time_us) for value in values])
