"""`journal-spark stats`, and the counting behind it."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter import open_adapter
from shards.model import SegmentKind
from spark_export.cli.main import run
from spark_export.file_statistics import COMPACTED_BYTES, DayStatistics, day_statistics
from spark_export.file_statistics import total as total_of_days
from spark_export.history_files import HistoryFile, LiveRows
from spark_export.snapshot import SegmentRange, ShardSnapshot
from spark_export.statistics import SegmentTotal, ends, shard_statistics, total, with_times
from tests.faults.processes import running
from tests.spark.sealed_trees import SealedTree, values

LOG, MEMORY, PARQUET = SegmentKind.LOG, SegmentKind.MEMORY, SegmentKind.PARQUET
SHARD = ShardSnapshot(
    "a",
    7,
    start_offset=5,
    next_offset=60,
    segments=(
        SegmentRange(PARQUET, 0, 10, 100),
        SegmentRange(PARQUET, 10, 20, 100),
        SegmentRange(LOG, 20, 40, 400),
        SegmentRange(MEMORY, 45, 60, 300),
    ),
)
# The journal files that the embedded engine leaves are larger than those of other tests' servers.
SIZES = ("storage.journal_file_bytes=32 MiB", "storage.journal_budget_bytes=128 MiB")
EMPTY = ShardSnapshot("b", 8, 0, 0)


def test_segments_are_counted_by_kind_and_trimmed_records_not_at_all() -> None:
    found = shard_statistics(SHARD)
    assert found.sealed == SegmentTotal(2, 5 + 10, 200)
    assert found.unsealed == SegmentTotal(2, 20 + 15, 700)
    assert (found.records, found.size_bytes) == (50, 900)


def test_offsets_without_records_are_gaps_and_no_records() -> None:
    """They were reported as lost records: a million after a crash of a server with a shard in memory mode."""
    assert shard_statistics(SHARD).gaps == 1
    crashed = attrs.evolve(SHARD, next_offset=60 + (1 << 20))
    assert (shard_statistics(crashed).gaps, shard_statistics(crashed).records) == (2, 50)


def test_a_shard_without_records_has_no_ends() -> None:
    assert shard_statistics(EMPTY).records == 0
    assert ends([EMPTY]) == []


def test_the_ends_of_a_shard_are_its_first_and_its_last_record() -> None:
    assert [(part.first_offset, part.next_offset, part.segment.kind) for part in ends([SHARD])] == [
        (5, 6, PARQUET),
        (59, 60, MEMORY),
    ]
    single = ShardSnapshot("c", 9, 3, 4, (SegmentRange(LOG, 0, 4, 10),))
    assert [(part.first_offset, part.next_offset) for part in ends([single])] == [(3, 4)]


def test_the_rate_is_that_between_the_first_and_the_last_record() -> None:
    [found, empty] = with_times(
        [shard_statistics(SHARD), shard_statistics(EMPTY)], [("a", 3_000_000), ("a", 10_000_000)]
    )
    assert (found.first_us, found.last_us) == (3_000_000, 10_000_000)
    assert found.per_second == 7.0
    assert empty.first_us is None
    assert empty.per_second is None


def test_a_total_adds_up_and_spans_all_times() -> None:
    statistics = with_times([shard_statistics(SHARD), shard_statistics(EMPTY)], [("a", 3), ("a", 9)])
    found = total([*statistics, *statistics], "all")
    assert (found.records, found.size_bytes, found.gaps, found.first_us, found.last_us) == (100, 1800, 2, 3, 9)
    assert total([], "all").first_us is None


def test_files_are_counted_by_their_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = SealedTree(tmp_path)
    sizes = [tree.convert("plant/1", values(count)).stat().st_size for count in (3, 2)]
    sizes.append(tree.convert("plant/2", values(4)).stat().st_size)
    assert run(["stats", str(tree.root), "--by", "day", "--json"]) == 0
    day, rest = map(json.loads, capsys.readouterr().out.splitlines())
    assert day == {
        "day": "2026-03-01",
        "files": 3,
        "records": 3 + 2 + 4,
        "size_bytes": sum(sizes),
        "dead_bytes": 0,
        "files_after_compaction": 1,
    }
    assert rest == {"day": None, "records": 0, "segments": 0, "size_bytes": 0}
    assert run(["stats", str(tree.root), "--by", "day"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines[2:]] == [["2026-03-01", "9", "3"]]


def test_days_are_in_order_with_their_sum_and_what_compaction_leaves() -> None:
    def file(day: str, size_bytes: int, rows: int, live: int) -> HistoryFile:
        return HistoryFile(f"/sealed/date={day}/00.parquet", size_bytes, rows, (LiveRows("a", 1, 0, live),), day)

    size = COMPACTED_BYTES
    files = [file("2026-11-02", size, 10, 10), file("2026-11-01", size, 10, 5), file("2026-11-02", size, 10, 9)]
    days = day_statistics(files)
    assert days == [
        DayStatistics("2026-11-01", 1, 5, size, size // 2, 1),
        DayStatistics("2026-11-02", 2, 19, 2 * size, size // 10, 2),
    ]
    assert total_of_days(days, "all") == DayStatistics("all", 3, 24, 3 * size, size // 2 + size // 10, 3)
    assert day_statistics([]) == []


def test_records_that_are_not_sealed_have_a_line_of_their_own(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", str(directory), "--by", "day"]) == 0
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:5] == ["not", "sealed", "3", "1", "segment"]


def test_days_need_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", "--server", "127.0.0.1:1", "--by", "day"]) == 2
    assert "name the data directory" in capsys.readouterr().err


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"

    async def fill() -> None:
        async with open_adapter(f"embedded:{data}") as store:
            await store.create_shard("plant/1")
            await store.create_shard("plant/2")
            await store.append("plant/1", [b"20"])
            await store.append("plant/1", [b"21", b"22"])

    trio.run(fill)
    return data


def test_a_table_has_a_line_for_each_shard_and_one_for_all(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", str(directory)]) == 0
    told = capsys.readouterr()
    lines = [line.split() for line in told.out.splitlines()]
    assert [line[:2] for line in lines[2:]] == [["plant/1", "3"], ["plant/2", "0"], ["all", "2"]]
    assert told.err == ""


def test_json_is_an_object_a_shard(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", str(directory), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["shard"], first["records"], first["unsealed"]["segments"]) == ("plant/1", 3, 1)
    assert first["first_append_time_us"] < first["last_append_time_us"]
    assert first["records_per_second"] > 0
    assert (second["shard"], second["records"], second["last_append_time_us"]) == ("plant/2", 0, None)


def test_times_can_be_left_out(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", str(directory), "--json", "--no-times", "--topics", "plant/1"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["first_append_time_us"] is None


def test_a_place_where_nothing_is_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", str(tmp_path / "nowhere")]) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "nowhere" in told.err


@pytest.mark.slow("reads files of a server that runs")
def test_a_server_gives_the_same_as_its_directory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", str(directory), "--json"]) == 0
    at_rest = capsys.readouterr().out
    with running(directory, *SIZES) as server:
        address = f"127.0.0.1:{server.ports['tcp']}"
        assert run(["stats", "--server", address, "--json"]) == 0
        assert capsys.readouterr().out == at_rest
        assert run(["stats", str(directory), "--server", address, "--json"]) == 0
        assert capsys.readouterr().out == at_rest
