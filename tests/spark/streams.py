"""Journals that grow while a stream follows them, and queries that take what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio
from pyspark.sql import SparkSession

from broker_adapter import StorageAdapter, open_adapter


def append(directory: Path, **values: Sequence[bytes]) -> None:
    """Append to shards of a data directory at rest, each value as a batch of its own; ``_`` stands for ``/``."""

    async def main() -> None:
        async with open_adapter(f"embedded:{directory}") as adapter:
            for name, batch in values.items():
                await append_to(adapter, name.replace("_", "/"), batch)

    trio.run(main)


async def append_to(adapter: StorageAdapter, shard: str, values: Sequence[bytes]) -> None:
    await adapter.create_shard(shard, exist_ok=True)
    for value in values:
        await adapter.append(shard, [value])


@attrs.frozen
class Followed:
    """A stream into Parquet files that is run as often as is wanted.

    Attributes:
        source: Path of the data source.
        place: Where files and checkpoint go.
    """

    spark: SparkSession
    source: Path
    place: Path

    def run(self, **options: str) -> list[int]:
        """Take what is there; return how many records each micro-batch had."""
        frame = self.spark.readStream.format("journal").option("path", str(self.source)).options(**options).load()
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.place / "out"))
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def offsets(self) -> dict[str, list[int]]:
        """What the files hold, by shard; fails if a record is there twice."""
        rows = self.spark.read.parquet(str(self.place / "out")).select("shard", "offset").collect()
        found: dict[str, list[int]] = {}
        for (shard, offset), count in sorted(Counter((row.shard, row.offset) for row in rows).items()):
            assert count == 1, f"{shard} {offset} is there {count} times"
            found.setdefault(shard, []).append(offset)
        return found
