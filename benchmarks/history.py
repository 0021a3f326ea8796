"""Sealed history: the rate of conversion to Parquet, the size, the cost for appends, and the rate of reading.

Made once per benchmark on a server of its own, because it writes millions of distinct records: repeated records would
compress better than any real data. The Spark rows run in a process of their own (`benchmarks.spark_load`).
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks import load, processes
from benchmarks.load import Timing
from benchmarks.ours import CHUNK_BYTES, FETCH_BYTES, FILE, WARM_UP_BYTES, batch_of, fill, window_of
from benchmarks.runs import Measurement
from benchmarks.sizes import BATCH_RECORDS, shards_scanned
from benchmarks.stage import REPOSITORY, Stage, start_journal
from benchmarks.wire import AckCounter, Wire, fetch_bytes_per_s
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.format.batch import encode_values
from shards.parquet.shared_file import write_shared_files
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import log_path

SHARDS = 4
RECORDS_PER_BATCH = 100
WRITING_RUNS = 3
ALONE_RUNS = 5
SHORT = Timing(0.05, 0.3)
CONVERSION_OFF = {"conversion.enabled": "false"}
CONVERSION_BY_HAND = {"conversion.max_age_s": "86400"}
SPARK_TIMEOUT_S = 600.0
FIRST_QUERY = (
    "select topic, count(*), avg(value:temperature::double) from records where date >= '2023-11-01' "
    "and topic = 'history/line1/telemetry' and offset < 20000 group by topic"
)
FIRST_RUNS_SPARK = 3
FIRST_RUNS_DUCKDB = 5
FIRST_TIME_US = 1_700_000_000_000_000
RECORD_INTERVAL_US = 200

Progress = Callable[[int, int], None]

KEYS = (
    "convert.rate",
    "convert.ratio",
    "convert.appends",
    "sealed.read",
    "spark.sealed",
    "spark.values",
    "spark.source",
    "spark.differences",
    "spark.shards",
    "spark.shards.scan",
    "spark.shards.plain",
    "spark.quiet",
    "sql.first.spark",
    "sql.first.duckdb",
)


def measurement(stage: Stage, records: int, progress: Progress) -> Measurement:
    """The only measurement of this module; ``progress`` gets the records written and the records in all."""
    return Measurement(
        KEYS, lambda timing: _measure(stage.directory / "history", records, timing, progress), repeated=False
    )


def telemetry(first: int, count: int) -> list[bytes]:
    """JSON values of about 150 bytes, like telemetry of a machine; the same for the same numbers."""
    noise = random.Random(first)
    return [
        b'{"host":"gateway-%03d","line":%d,"sequence":%d,"temperature":%.2f,"pressure":%.3f,'
        b'"rpm":%d,"voltage":%.2f,"state":"%s","uptime_s":%d}'
        % (
            number % 40,
            number % 7,
            number,
            21 + 4 * noise.random(),
            1.013 + 0.05 * noise.random(),
            1480 + noise.randrange(40),
            229 + 3 * noise.random(),
            (b"running", b"running", b"running", b"idle")[noise.randrange(4)],
            86_400 + number // 50,
        )
        for number in range(first, first + count)
    ]


@attrs.frozen(slots=True)
class Segment:
    """A closed log segment of a shard that the benchmark wrote."""

    name: str
    shard_id: int
    base_offset: int
    next_offset: int


def _measure(directory: Path, records: int, timing: Timing, progress: Progress) -> Mapping[str, float]:
    data = directory / "data"
    with _running(data, directory / "log-written", CONVERSION_OFF) as server:
        segments = _write(server.address, records, progress)
    rate, ratio = writing_rate(data, segments)
    with _running(data, directory / "log-conversion", CONVERSION_BY_HAND) as server:
        kept = _appends_while_converting(server.address)
    with _running(data, directory / "log-sealed", CONVERSION_BY_HAND) as server:
        read = _read_rate(server.address, timing)
    spark = _spark("spark_load", str(data))
    many = _spark("shard_scan", str(directory / "many"), str(shards_scanned(records)))
    return {
        "convert.rate": rate,
        "convert.ratio": ratio,
        **kept,
        "sealed.read": read,
        "spark.sealed": spark["sealed_records_per_s"],
        "spark.values": spark["values_records_per_s"],
        "spark.source": spark["source_records_per_s"],
        "spark.differences": spark["differences"],
        "spark.shards": many["records_per_s"],
        "spark.shards.scan": many["scanned_records_per_s"],
        "spark.shards.plain": many["over_plain"],
        "spark.quiet": many["quiet_share"] * 100,
        "sql.first.spark": _first_query_s(data, "spark", FIRST_RUNS_SPARK),
        "sql.first.duckdb": _first_query_s(data, "duckdb", FIRST_RUNS_DUCKDB),
    }


@contextmanager
def _running(data: Path, log_path: Path, settings: Mapping[str, str]) -> Iterator[processes.Server]:
    """A server for the duration of a context, stopped by SIGTERM."""
    server = start_journal(data, log_path, settings=settings)
    try:
        yield server
    finally:
        server.stop()


def _name(number: int) -> str:
    return f"history/line{number}/telemetry"


def _write(address: tuple[str, int], records: int, progress: Progress) -> list[Segment]:
    """Append the records, spread over a few shards, roll their segments and return these."""
    buffer = bytearray(1 << 20)
    counter = AckCounter()
    segments: list[Segment] = []
    with Wire(address) as wire:
        names = [_name(number) for number in range(SHARDS)]
        handles = wire.open(names, FILE)
        sent = acknowledged = 0
        for first in range(0, records, RECORDS_PER_BATCH):
            values = telemetry(first, min(RECORDS_PER_BATCH, records - first))
            batch = encode_values(values, timestamp_us=FIRST_TIME_US + first * RECORD_INTERVAL_US)
            wire.socket.sendall(frames.build_append(sent, handles[sent % SHARDS], batch))
            sent += 1
            while sent - acknowledged > window_of(len(batch)) // 2:
                acknowledged += counter(buffer, wire.socket.recv_into(buffer))
            if sent % 500 == 0:
                progress(first, records)
        while acknowledged < sent:
            acknowledged += counter(buffer, wire.socket.recv_into(buffer))
        progress(records, records)
    with Wire(address) as wire:
        for name in names:
            info = wire.request(Op.ROLL, {"name": name})
            segments += [
                Segment(name, info["shard_id"], segment["base_offset"], segment["next_offset"])
                for segment in info["segments"]
                if segment["closed"] and segment["next_offset"] > segment["base_offset"]
            ]
    return segments


def writing_rate(data: Path, segments: Sequence[Segment]) -> tuple[float, float]:
    """Megabytes of values that one core writes into shared files per second, and log bytes over Parquet bytes.

    The best of a few passes counts, to exclude other load of the machine.
    """
    files = OsFileSystem()
    sources = tuple(_source(files, data, segment) for segment in segments)
    log_bytes = sum(source.end_position for source in sources)
    rates, ratio = [], 0.0
    for _ in range(WRITING_RUNS):
        begun_at = time.perf_counter()
        gathered = write_shared_files(files, SharedPlan(str(data.parent / "aside"), 1, sources))
        rates.append(sum(file.value_bytes for file in gathered.files) / (time.perf_counter() - begun_at) / 1e6)
        ratio = log_bytes / sum(file.size_bytes for file in gathered.files)
        for file in gathered.files:
            Path(file.path).unlink()
    return max(rates), ratio


def _source(files: OsFileSystem, data: Path, segment: Segment) -> PartSource:
    path = log_path(str(data / "log"), segment.shard_id, segment.base_offset)
    file = files.open(path, write=False)
    try:
        _, start = LogHeader.decode(path, file.pread(2048, 0))
        end = file.size()
    finally:
        file.close()
    return PartSource(
        log_path=path,
        name=segment.name,
        shard_id=segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        start_position=start,
        end_position=end,
    )


def _appends_while_converting(address: tuple[str, int]) -> dict[str, float]:
    """Append rate during conversion, over the rate of the same load before and after; medians of short runs.

    No figure if the conversion ended before a run did: there are few records in the quick form.
    """
    with Wire(address) as wire:
        # The journal's files are zeroed and its memory is mapped, as on any server that has run for a minute.
        fill(wire, "history/warm-up", WARM_UP_BYTES)
        wire.delete("history/warm-up")
    without = [_append_rate(address, SHORT) for _ in range(ALONE_RUNS)]
    done = threading.Event()
    during: list[float] = []

    def convert() -> None:
        try:
            with Wire(address, timeout_s=300.0) as wire:
                for number in range(SHARDS):
                    wire.request(Op.ROLL, {"name": _name(number), "wait": True})
        finally:
            done.set()

    thread = threading.Thread(target=convert, name="convert")
    thread.start()
    while not done.is_set():
        rate = _append_rate(address, SHORT)
        # A run does not count if the worker finished before its end.
        if not done.is_set():
            during.append(rate)
    thread.join()
    without += [_append_rate(address, SHORT) for _ in range(ALONE_RUNS)]
    return {"convert.appends": statistics.median(during) / statistics.median(without)} if during else {}


def _append_rate(address: tuple[str, int], timing: Timing) -> float:
    """Records per second in 16 KiB batches, acknowledged after fsync, to a shard that is deleted afterwards."""
    batch = batch_of(BATCH_RECORDS)
    with Wire(address) as wire:
        [handle] = wire.open(["history/during"], FILE)
        per_chunk = CHUNK_BYTES // len(batch)
        data = b"".join(frames.build_append(number, handle, batch) for number in range(per_chunk))
        chunk = load.Chunk(data, per_chunk)
        window = window_of(len(batch))
        rate = load.pipelined_rate(wire.socket, [chunk], AckCounter(), window=window, timing=timing)
    with Wire(address) as wire:
        wire.delete("history/during")
    return rate * BATCH_RECORDS


def _read_rate(address: tuple[str, int], timing: Timing) -> float:
    """Megabytes of values per second of the sealed shards read back by offset through the socket.

    All of them in turn: together they exceed the server's cache of decoded row groups.
    """
    with Wire(address) as wire:
        names = [_name(number) for number in range(SHARDS)]
        ends = [int(wire.request(Op.DESCRIBE_SHARD, {"name": name})["next_offset"]) for name in names]
        shards = list(zip(wire.open(names, None), ends, strict=True))
        rate = fetch_bytes_per_s(wire.socket, shards, max_bytes=FETCH_BYTES, timing=timing)
    return rate * value_share() / 1e6


def value_share() -> float:
    """The share of values in the batch bytes of `telemetry`."""
    batch = encode_values(telemetry(0, RECORDS_PER_BATCH), timestamp_us=FIRST_TIME_US)
    return sum(map(len, telemetry(0, RECORDS_PER_BATCH))) / len(batch)


def _spark(module: str, *arguments: str) -> Mapping[str, Any]:
    """Figures of the Spark process."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise processes.ProcessError(f"Spark ended with status {done.returncode}: {last}")
    figures: Mapping[str, Any] = json.loads(done.stdout)
    return figures


def _first_query_s(data: Path, engine: str, runs: int) -> float:
    """Median seconds of a command that answers one query, from its start to its end."""
    command = [
        sys.executable,
        "-m",
        "spark_export.cli.main",
        "sql",
        str(data),
        FIRST_QUERY,
        "--json",
        "--engine",
        engine,
    ]
    seconds = []
    for _ in range(runs):
        begun_at = time.perf_counter()
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=SPARK_TIMEOUT_S, check=False
        )
        seconds.append(time.perf_counter() - begun_at)
        if done.returncode or not done.stdout:
            raise processes.ProcessError(f"a first query with {engine} failed: {done.stderr.strip()[-200:]}")
    return statistics.median(seconds)
