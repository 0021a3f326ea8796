"""`journal bench`: append and read rates of a running server, measured by one client on one connection.

For comparisons with other systems and with the limits of the machine see `benchmarks/`; this measures one server.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.output import progress, write_json, write_table
from command_line.quantities import parse_size_bytes
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect

if TYPE_CHECKING:
    from journal.client import AppendFuture, Client
    from shards.model import AckLevel, Mode

_IN_FLIGHT_BYTES = 8 << 20
_IN_FLIGHT_APPENDS = 4096
_FETCH_BYTES = 4 << 20
_SINGLE_APPENDS = 200
_CLEAN_UP_S = 10


@Parameter(name="*")
@attrs.frozen(slots=True)
class Workload:
    """What is appended and read back.

    Attributes:
        records: Records to append and to read back.
        size: Size of a payload.
        batch: Records in a batch.
        shards: Shards to spread the batches over.
        mode: Mode of the shards.
        ack: Level to wait for.
    """

    records: Annotated[int, Parameter(validator=Number(gte=1), help="Records to append and to read back.")] = 200_000
    size: Annotated[str, Parameter(help="Size of a payload.")] = "100"
    batch: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000), help="Records in a batch.")] = 100
    shards: Annotated[
        int, Parameter(validator=Number(gte=1, lte=100_000), help="Shards to spread the batches over.")
    ] = 1
    mode: Annotated[Literal["memory", "file"], Parameter(help="Mode of the shards.")] = "file"
    ack: Annotated[Literal["default", "memory", "durable"], Parameter(help="Level to wait for.")] = "default"


@attrs.frozen(slots=True)
class _Load:
    records: int
    size_bytes: int
    batch: int
    ack: AckLevel


@attrs.frozen(slots=True)
class Rate:
    """One measured phase; bytes are those of the payloads."""

    records: int
    duration_s: float
    records_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, records: int, size_bytes: int, duration_s: float) -> Rate:
        """Rates of this number of records of this size."""
        return cls(records, duration_s, records / duration_s, records * size_bytes / duration_s)


def bench(
    *,
    workload: Workload = Workload(),
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Measure appends and reads with shards that are created for it and deleted afterwards.

    Args:
        workload: What is appended and read back.
        json: Print the result as a JSON object.
    """
    import trio

    from shards.model import AckLevel, Mode

    batch, shards, mode = workload.batch, workload.shards, workload.mode
    load = _Load(workload.records, parse_size_bytes(workload.size), batch, AckLevel[workload.ack.upper()])
    measured = trio.run(_bench, server, load, shards, Mode(mode))
    if json:
        write_json({"size_bytes": load.size_bytes, "batch": batch, "shards": shards, "mode": mode, **measured})
        return
    rows = [
        (phase, f"{rate.records:,}", f"{rate.duration_s:.2f} s", f"{rate.records_per_s:,.0f}", _megabytes(rate))
        for phase, rate in measured.items()
        if isinstance(rate, Rate)
    ]
    write_table(
        ("phase", "records", "time", "records/s", "MB/s"), rows, numeric=("records", "time", "records/s", "MB/s")
    )
    latency = measured["latency_us"]
    write_table(
        ("one append at a time", "us"), [(name, f"{value:,.0f}") for name, value in latency.items()], numeric=("us",)
    )


def _megabytes(rate: Rate) -> str:
    return f"{rate.bytes_per_s / 1e6:,.1f}"


async def _bench(server: str, load: _Load, shard_count: int, mode: Mode) -> dict[str, Any]:
    import trio

    from shards.model import ShardConfig

    run = os.urandom(4).hex()
    names = [f"bench/{run}/{number}" for number in range(shard_count)]
    async with connect(server) as client:
        try:
            for name in names:
                await client.create_shard(name, ShardConfig(mode=mode))
            with progress("records acknowledged", load.records) as tick:
                append = await _append_all(client, names, load, tick)
            with progress("records read", load.records) as tick:
                read = await _read_all(client, names, load, tick)
            latency_us = await _append_singly(client, names[0], load)
        finally:
            # Also after Ctrl-C: the shards of the measurement are deleted.
            with trio.move_on_after(_CLEAN_UP_S, shield=True):
                for name in names:
                    await client.delete_shard(name)
    return {"append": append, "read": read, "latency_us": latency_us}


async def _append_all(client: Client, names: list[str], load: _Load, tick: Callable[[int], None]) -> Rate:
    """Append all records, pipelined, to the shards in turn; the time includes encoding."""
    from shards.format.batch import encode_values

    in_flight: deque[tuple[int, AppendFuture]] = deque()
    in_flight_limit = max(1, min(_IN_FLIGHT_APPENDS, _IN_FLIGHT_BYTES // (load.batch * (load.size_bytes + 16))))
    values = [os.urandom(load.size_bytes) for _ in range(load.batch)]
    sent = acknowledged = 0
    started = time.perf_counter()
    while acknowledged < load.records:
        while sent < load.records and len(in_flight) < in_flight_limit:
            count = min(load.batch, load.records - sent)
            batch = encode_values(values[:count], timestamp_us=time.time_ns() // 1000)
            name = names[sent // load.batch % len(names)]
            in_flight.append((count, client.append_batch_nowait(name, batch, ack=load.ack)))
            sent += count
        count, pending = in_flight.popleft()
        await pending.wait()
        acknowledged += count
        tick(acknowledged)
    return Rate.of(load.records, load.size_bytes, time.perf_counter() - started)


async def _read_all(client: Client, names: list[str], load: _Load, tick: Callable[[int], None]) -> Rate:
    """Read everything back, shard after shard; the time includes decoding."""
    from shards.format.batch import read_records

    count = 0
    started = time.perf_counter()
    for name in names:
        offset, end = 0, (await client.describe_shard(name)).next_offset
        while offset < end:
            fetched = await client.fetch(name, offset, max_bytes=_FETCH_BYTES)
            count += len(read_records(fetched.batches, start_offset=offset))
            offset = fetched.next_offset
            tick(count)
    return Rate.of(count, load.size_bytes, time.perf_counter() - started)


async def _append_singly(client: Client, name: str, load: _Load) -> dict[str, float]:
    """Time of one append, from the call to its acknowledgement, when nothing else is in flight."""
    value = os.urandom(load.size_bytes)
    durations_us = []
    for _ in range(_SINGLE_APPENDS):
        started = time.perf_counter()
        await client.append(name, [value], ack=load.ack)
        durations_us.append((time.perf_counter() - started) * 1e6)
    durations_us.sort()
    return {"p50": durations_us[len(durations_us) // 2], "p99": durations_us[len(durations_us) * 99 // 100]}
