"""The data source `journal` as a stream, in a real session: each record once, whatever happens between two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from broker_adapter import open_adapter
from tests.faults.processes import running
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.streams import Followed, append, append_to


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path) -> Followed:
    return Followed(spark, tmp_path / "data", tmp_path)


def test_runs_go_on_from_the_checkpoint_and_take_in_topics_that_appear(followed: Followed) -> None:
    append(followed.source, plant_a=[b"%d" % n for n in range(30)], plant_b=[b"x", b"y"])
    assert followed.run(startingOffsets="earliest") == [32]
    append(followed.source, plant_a=[b"more"] * 6, plant_c=[b"first", b"second"])
    # At most three records at a time, shared by the shards; the option on where to begin does not count any more.
    batches = followed.run(startingOffsets="latest", maxRecordsPerTrigger="3")
    assert max(batches) <= 3
    assert sum(batches) == 8
    assert followed.run() == []
    assert followed.offsets() == {"plant/a": [*range(36)], "plant/b": [0, 1], "plant/c": [0, 1]}


def test_trimmed_and_deleted_shards_end_the_query_or_are_passed_over(followed: Followed) -> None:
    append(followed.source, plant_a=[b"%d" % n for n in range(10)], plant_b=[b"x"])
    assert followed.run(startingOffsets="earliest") == [11]

    async def meddle() -> None:
        async with open_adapter(f"embedded:{followed.source}") as adapter:
            await append_to(adapter, "plant/a", [b"lost"] * 4)
            await adapter.roll("plant/a")
            await append_to(adapter, "plant/a", [b"kept"] * 2)
            await adapter.trim("plant/a", 14)
            await adapter.delete_shard("plant/b")
            await append_to(adapter, "plant/b", [b"another"] * 3)

    trio.run(meddle)
    with pytest.raises(StreamingQueryException) as caught:
        followed.run()
    told = str(caught.value)
    assert "DataLossError: shard 'plant/a'" in told
    assert "from offset 10 on, but it holds offsets from 14 up to but not including 16" in told
    assert "set failOnDataLoss to false" in told
    assert followed.run(failOnDataLoss="false") == [5]
    # Offset 0 of the shard that was deleted is there already; of the new one there are 0, 1 and 2.
    rows = followed.spark.read.parquet(str(followed.place / "out")).where("shard = 'plant/b'").collect()
    assert sorted((row.offset, bytes(row.value)) for row in rows) == [
        (0, b"another"),
        (0, b"x"),
        (1, b"another"),
        (2, b"another"),
    ]
    assert followed.run() == []


def test_a_tree_of_sealed_segments_is_followed_from_a_time_on(spark: SparkSession, tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    followed = Followed(spark, tree.root, tmp_path)
    tree.convert("plant/a", values(10))
    assert followed.run(startingTimestamp="2026-03-01T19:00:00Z") == [3]
    tree.convert("plant/a", values(2, first=10))
    tree.convert("plant/b", values(1))
    assert followed.run() == [3]
    assert followed.offsets() == {"plant/a": [7, 8, 9, 10, 11], "plant/b": [0]}


def test_a_running_query_reads_on_while_segments_are_sealed(followed: Followed) -> None:
    with running(followed.source, "conversion.max_age_s=1", "storage.segment_bytes=64 KiB") as server:
        frame = followed.spark.readStream.format("journal").option("path", str(followed.source))
        query = (
            frame.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("path", str(followed.place / "out"))
            .option("checkpointLocation", str(followed.place / "checkpoint"))
            .start()
        )
        try:

            async def rounds() -> None:
                async with open_adapter(f"journal://127.0.0.1:{server.ports['tcp']}") as adapter:
                    for number in range(2):
                        await append_to(adapter, "plant/a", [bytes(20_000)] * 5)
                        await append_to(adapter, f"plant/{number}", [b"new"])
                        await adapter.roll("plant/a")
                        await trio.to_thread.run_sync(query.processAllAvailable)
                        seen = [progress.numInputRows for progress in query.recentProgress]
                        assert sum(seen) == 6 * (number + 1)

            trio.run(rounds)
        finally:
            query.stop()
    assert followed.offsets() == {"plant/a": [*range(10)], **{f"plant/{number}": [0] for number in range(2)}}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets' (value 'latest') is for a batch query"),
        ({"startingOffsets": '{"plant/z": 1}'}, "names shard 'plant/z'"),
    ],
)
def test_invalid_options_are_named(spark: SparkSession, tmp_path: Path, options: dict[str, str], told: str) -> None:
    tree = SealedTree(tmp_path)
    tree.convert("plant/a", values(1))
    with pytest.raises(StreamingQueryException) as caught:
        Followed(spark, tree.root, tmp_path).run(**options)
    assert told in str(caught.value)
