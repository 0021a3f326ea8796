"""Real stores for the tests of the data source, and its parts called one after the other without Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import trio

from broker_adapter import StorageAdapter
from broker_adapter.engines.embedded import open_embedded
from journal.settings.server import ConversionConfig, LimitsConfig, ServerConfig, StorageConfig
from journal.settings.values import MIB
from shards.format.record import Record
from spark_export.conditions import Condition
from spark_export.discovery import take_snapshot
from spark_export.options import parse_options
from spark_export.planning import Part, batch_ranges, plan_partitions
from spark_export.reading import read_parts
from spark_export.record_columns import SPARK_SCHEMA
from spark_export.snapshot import Store
from spark_export.wanted_rows import Wanted

_CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=16 * MIB, journal_budget_bytes=64 * MIB, segment_bytes=1 * MIB, disk_reserve_bytes=0
    ),
    limits=LimitsConfig(max_batch_bytes=8 * MIB),
    conversion=ConversionConfig(enabled=False),
)


@asynccontextmanager
async def opened(directory: Path, *, conversion: bool = False) -> AsyncIterator[StorageAdapter]:
    """The store in a directory; with the process that converts, if that is wanted."""
    config = attrs.evolve(_CONFIG, conversion=attrs.evolve(_CONFIG.conversion, enabled=conversion))
    async with open_embedded(f"embedded:{directory}", config) as adapter:
        yield adapter


def within(directory: Path, work: Callable[[StorageAdapter], Awaitable[None]], *, conversion: bool = False) -> None:
    """Do something with the store in a directory, which is at rest afterwards."""

    async def run() -> None:
        async with opened(directory, conversion=conversion) as adapter:
            await work(adapter)

    trio.run(run)


def append(directory: Path, shard: str, *batches: Sequence[Record] | Sequence[bytes]) -> None:
    """Append batches to a shard, which is made if it is not there."""

    async def work(adapter: StorageAdapter) -> None:
        await adapter.create_shard(shard, exist_ok=True)
        for batch in batches:
            await adapter.append(shard, batch)

    within(directory, work)


def convert(directory: Path, *shards: str) -> None:
    """Convert all that the shards hold now."""

    async def work(adapter: StorageAdapter) -> None:
        for shard in shards:
            await adapter.convert(shard)

    within(directory, work, conversion=True)


def sealed_file(directory: Path, shard: str) -> Path:
    """The Parquet file of a data directory that has the first sealed record of a shard."""
    firsts: list[tuple[int, Path]] = []
    for path in directory.glob("sealed/date=*/*.parquet"):
        rows = pq.read_table(path, columns=["shard", "offset"], partitioning=None).to_pylist()
        firsts += [(row["offset"], path) for row in rows if row["shard"] == shard][:1]
    return min(firsts)[1]


def trim(directory: Path, shard: str, before_offset: int) -> None:
    async def work(adapter: StorageAdapter) -> None:
        await adapter.trim(shard, before_offset)

    within(directory, work)


def numbered(first: int, count: int) -> list[Record]:
    """Records whose value is their number, one in each millisecond from the first on."""
    return [Record(b"%d" % number, timestamp_us=(number + 1) * 1000) for number in range(first, first + count)]


@attrs.frozen
class Planned:
    """A query that is planned; reading it may come later."""

    store: Store
    partitions: list[tuple[Part, ...]]
    wanted: Wanted

    def batches(self) -> Iterator[pa.RecordBatch]:
        for parts in self.partitions:
            yield from read_parts(self.store, parts, self.wanted)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches() for row in batch.to_pylist()]

    def places(self) -> list[tuple[str, int]]:
        """Shard and offset of every row."""
        return [(row["shard"], row["offset"]) for row in self.rows()]


def planned(options: Mapping[str, object], *conditions: Condition) -> Planned:
    """Plan what Spark would plan for these options."""
    parsed = parse_options({name: str(value) for name, value in options.items()}, "batch")
    snapshot = take_snapshot(parsed)
    partitions = plan_partitions(batch_ranges(snapshot, parsed), conditions, min_partitions=parsed.min_partitions)
    return Planned(snapshot.store, partitions, Wanted.of(SPARK_SCHEMA, conditions, parsed))


def places(shard: str, *offsets: range) -> list[tuple[str, int]]:
    return [(shard, offset) for some in offsets for offset in some]
