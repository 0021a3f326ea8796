"""What waits in a cache queue, drained by Spark: each record once at the target, and out of the queue."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import look
from broker_adapter.cache_queue.errors import QueueLostError, QueueNotFoundError
from broker_adapter.cache_queue.queue import delete_queue
from broker_adapter.cache_queue.stored import Counts
from shards.errors import InvalidNameError
from shards.format.record import Record
from shards.model import Mode
from spark_export.errors import DataLossError, OptionError
from spark_export.export import ExportOptions, ExportProgress, UnconfirmedError, run_drain
from spark_export.export.drain import published_end
from spark_export.export.writing import abandoned_on_failure, session_of, target_of, write_aside
from spark_export.history import Reached
from spark_export.leased_queue import Backlog
from tests.faults.processes import ServerProcess, running
from tests.spark.derby import add_attempts, tables
from tests.spark.exporting_process import kill_export_at
from tests.spark.queues import QUICK, at, cursor_of, drive_up_to, driven, fill, set_aside, trim, usurp, writer_knows
from tests.spark.sealed_trees import SealedTree, values

COUNT = 20_000
JOURNAL_SIZES = ("storage.journal_file_bytes=16 MiB", "storage.journal_budget_bytes=64 MiB")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "data"


@pytest.fixture(scope="module")
def process(data: Path) -> Iterator[ServerProcess]:
    with running(data, *JOURNAL_SIZES) as process:
        yield process


@pytest.fixture
def server(process: ServerProcess) -> str:
    return f"journal://127.0.0.1:{process.ports['tcp']}"


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of its own for each test."""
    return f"q{abs(hash(request.node.name)):x}"[:30]


@pytest.fixture
def url(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A Derby database; left by this process's Java at the end, for only one may have it open."""
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    yield f"jdbc:derby:{tmp_path}/database;create=true"
    # Derby says with an exception that it did.
    with pytest.raises(Exception, match="08006"):
        spark._jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:{tmp_path}/database;shutdown=true")


def numbered(count: int, first: int = 0) -> list[Record]:
    return [
        Record(b"%d" % n + b"." * 150, topic=f"plant/{n % 4}", timestamp_us=(n + 1) * 1_000)
        for n in range(first, first + count)
    ]


def offsets(spark: SparkSession, target: Path) -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(str(target)).select("offset").collect())


def to_files(server: str, target: Path, **changes: Any) -> ExportOptions:
    return ExportOptions(server=server, target=str(target), partition_by=(), **changes)


def test_all_that_waits_is_written_and_leaves_the_queue(
    spark: SparkSession, server: str, data: Path, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(COUNT // 2), convert=True)
    fill(server, queue, numbered(COUNT // 2, first=COUNT // 2))
    steps: list[str] = []
    result = run_drain(
        spark, queue, to_files(server, tmp_path / "out"), progress=lambda progress: steps.append(progress.step)
    )
    assert (result.run, result.records, result.skipped, result.recovered) == (1, COUNT, 0, 0)
    assert list(dict.fromkeys(steps)) == ["waiting", "planning", "writing", "publishing", "published", "confirmed"]
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    expected = numbered(COUNT)
    assert [row.offset for row in rows] == list(range(COUNT))
    assert [bytes(row.value) for row in rows] == [record.value for record in expected]
    assert [row.topic for row in rows] == [record.topic for record in expected]
    state = at(server, lambda adapter: look(adapter, queue))
    assert (state.depth.record_count, state.shard.start_offset) == (0, COUNT)
    assert state.lease is not None
    assert state.lease.holder == ""
    assert state.status is not None
    assert (state.status.state, state.status.counts.confirmed) == ("idle", COUNT)
    # Nothing waits any more; what comes later is the next run, read from the server's files this time.
    again = run_drain(spark, queue, to_files(server, tmp_path / "out"))
    assert (again.run, again.records, cursor_of(server, queue)) == (None, 0, COUNT)
    fill(server, queue, numbered(50, first=COUNT), convert=True)
    fill(server, queue, numbered(50, first=COUNT + 50))
    third = run_drain(spark, queue, to_files(server, tmp_path / "out", path=str(data)))
    assert (third.run, third.records, third.first_offset) == (2, 100, COUNT)
    assert offsets(spark, tmp_path / "out") == list(range(COUNT + 100))


def test_what_expired_is_not_written_and_what_is_internal_is(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    records = [Record(b"0", topic="a"), Record(b"1", topic="a", expires_at_us=1), Record(b"2", topic="$SYS/load")]
    fill(server, queue, records)
    result = run_drain(spark, queue, to_files(server, tmp_path / "out"))
    assert (result.records, result.skipped) == (2, 1)
    assert offsets(spark, tmp_path / "out") == [0, 2]
    fill(server, queue, [Record(b"3", topic="a", expires_at_us=1)])
    # No run for nothing, but it leaves the queue.
    result = run_drain(spark, queue, to_files(server, tmp_path / "out"))
    assert (result.run, result.records, result.skipped) == (None, 0, 1)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["run=default-00000001"]
    state = at(server, lambda adapter: look(adapter, queue))
    assert state.depth.record_count == 0
    assert state.status is not None
    assert (state.status.counts.confirmed, state.status.counts.expired) == (2, 2)


def test_a_table_gets_each_record_once(spark: SparkSession, server: str, queue: str, url: str) -> None:
    fill(server, queue, numbered(COUNT))
    options = ExportOptions(server=server, target=url, format="jdbc", table="records")
    assert run_drain(spark, queue, options).records == COUNT
    assert run_drain(spark, queue, options).run is None
    fill(server, queue, numbered(5, first=COUNT))
    assert run_drain(spark, queue, options).records == 5
    rows = spark.read.format("jdbc").options(url=url, dbtable="records").load().select("offset", "value").collect()
    assert sorted((row.offset, row.value) for row in rows) == [
        (offset, record.value.decode()) for offset, record in enumerate(numbered(COUNT + 5))
    ]
    assert cursor_of(server, queue) == COUNT + 5


def test_a_record_that_is_a_dead_letter_already_was_drained_too(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    """It was at the target and among the dead letters; putting these back doubled it."""
    fill(server, queue, numbered(6))
    set_aside(server, queue, 1, 4)
    result = run_drain(spark, queue, to_files(server, tmp_path / "out"), lease=QUICK)
    assert (result.records, result.skipped) == (4, 0)
    assert offsets(spark, tmp_path / "out") == [0, 2, 3, 5]
    assert at(server, lambda adapter: look(adapter, queue)).progress.counts == Counts(confirmed=4, dead_lettered=2)


def test_a_drain_counted_offsets_that_no_record_ever_had(spark: SparkSession, queue: str, tmp_path: Path) -> None:
    """After a crash of a store in memory mode a drain, and one that made good what another left, counted a million."""
    data = tmp_path / "data"
    options: dict[str, Any] = {"target": str(tmp_path / "out"), "partition_by": ()}
    with running(data, *JOURNAL_SIZES) as process:
        server = f"journal://127.0.0.1:{process.ports['tcp']}"
        fill(server, queue, numbered(10), mode=Mode.MEMORY)
        process.kill()
    with running(data, *JOURNAL_SIZES) as process:
        server = f"journal://127.0.0.1:{process.ports['tcp']}"
        writer_knows(server, queue, 10)
        fill(server, queue, numbered(5))

        def lose(progress: ExportProgress) -> None:
            if progress.step == "published":
                usurp(server, queue, cursor=True)

        with pytest.raises(UnconfirmedError, match="has run 1 with 5 records"):
            run_drain(spark, queue, ExportOptions(server=server, **options), lease=QUICK, progress=lose)
        fill(server, queue, numbered(3))
        result = run_drain(spark, queue, ExportOptions(server=server, **options), lease=QUICK)
        assert (result.records, result.skipped, result.recovered) == (3, 0, 5)
        assert at(server, lambda adapter: look(adapter, queue)).progress.counts == Counts(confirmed=8, lost=10)


def test_what_the_live_sink_got_meanwhile_is_not_written(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(100))
    drive_up_to(server, queue, 30)
    assert run_drain(spark, queue, to_files(server, tmp_path / "out")).records == 70
    fill(server, queue, numbered(100, first=100))
    drive_up_to(server, queue, 150)
    assert run_drain(spark, queue, to_files(server, tmp_path / "out")).records == 50
    assert offsets(spark, tmp_path / "out") == [*range(30, 100), *range(150, 200)]


def test_records_that_were_dropped_meanwhile_are_no_error(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(1_000))
    trim(server, queue, 100)

    def drop(progress: ExportProgress) -> None:
        if progress == ExportProgress("writing"):
            trim(server, queue, 400)

    result = run_drain(spark, queue, to_files(server, tmp_path / "out"), progress=drop)
    assert (result.records, result.skipped, result.first_offset) == (600, 400, 100)
    assert offsets(spark, tmp_path / "out") == list(range(400, 1_000))


def test_the_driver_of_the_queue_releases_its_lease_and_comes_back(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(1_000))
    with driven(server, queue) as turns:

        def see(progress: ExportProgress) -> None:
            if progress.step == "publishing":
                assert turns == ["held", "aside"]

        assert run_drain(spark, queue, to_files(server, tmp_path / "out"), lease=QUICK, progress=see).records == 1_000
    assert turns[:3] == ["held", "aside", "held"]


def test_who_does_not_stand_aside_is_named(spark: SparkSession, server: str, queue: str, tmp_path: Path) -> None:
    fill(server, queue, numbered(10))
    with driven(server, queue, ask=True):
        with pytest.raises(QueueLostError, match=r"is driven by bridge, which did not give way within 0\.5 s"):
            run_drain(spark, queue, to_files(server, tmp_path / "out"), lease=QUICK, wait_s=0.5)
    assert cursor_of(server, queue) == -1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("step", "with_cursor"), [("writing", False), ("publishing", True)])
def test_who_lost_the_queue_publishes_nothing(
    spark: SparkSession, server: str, queue: str, tmp_path: Path, step: str, with_cursor: bool
) -> None:
    fill(server, queue, numbered(COUNT))

    def lose(progress: ExportProgress) -> None:
        if progress != ExportProgress(step):  # type: ignore[arg-type]
            return
        usurp(server, queue, cursor=with_cursor)
        if not with_cursor:
            # The lease alone is noticed when it is to be renewed.
            for each in threading.enumerate():
                if each.name == "journal-queue-lease":
                    each.join()

    with pytest.raises(QueueLostError, match=r"another process took it over|was changed by another process"):
        run_drain(spark, queue, to_files(server, tmp_path / "out"), lease=QUICK, progress=lose)
    assert not list((tmp_path / "out").glob("run=*"))
    assert cursor_of(server, queue) == 0
    assert at(server, lambda adapter: look(adapter, queue)).depth.record_count == COUNT


def test_a_drain_that_ends_before_its_time_gives_the_queue_back(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(10))

    def interrupt(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_drain(spark, queue, to_files(server, tmp_path / "out"), progress=interrupt)
    state = at(server, lambda adapter: look(adapter, queue))
    assert state.lease is not None
    assert (state.lease.holder, state.depth.record_count) == ("", 10)
    assert list((tmp_path / "out").iterdir()) == []
    assert run_drain(spark, queue, to_files(server, tmp_path / "out")).records == 10


def test_a_run_that_was_published_without_the_cursor_is_recognised(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    fill(server, queue, numbered(300))

    def lose(progress: ExportProgress) -> None:
        if progress.step == "published":
            usurp(server, queue, cursor=True)

    options = to_files(server, tmp_path / "out")
    with pytest.raises(UnconfirmedError, match=r"has run 1 with 300 records .* still at offset 0: .*the next drain"):
        run_drain(spark, queue, options, lease=QUICK, progress=lose)
    assert cursor_of(server, queue) == 0
    fill(server, queue, numbered(40, first=300))
    result = run_drain(spark, queue, options, lease=QUICK)
    assert (result.run, result.records, result.recovered) == (2, 40, 300)
    assert offsets(spark, tmp_path / "out") == list(range(340))
    assert cursor_of(server, queue) == 340


def test_the_jobs_of_who_lost_the_queue_end(spark: SparkSession, tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    tree.convert("plant/a", values(5_000))
    begun = str(tmp_path / "begun")

    class Lost:
        """Lost as soon as a task has begun."""

        @property
        def is_lost(self) -> bool:
            return Path(begun).exists()

        def require(self) -> None:
            raise QueueLostError("lost")

    def slowly(_offset: int) -> bool:
        Path(begun).touch()
        time.sleep(0.02)
        return True

    options = ExportOptions(path=str(tree.root), target=str(tmp_path / "out"), partition_by=())
    session = session_of(spark)
    target = target_of(session, options)
    records = session.read.format("journal").load(str(tree.root))
    # More than a minute's work: what ends sooner was ended.
    long = records.where(functions.udf(slowly, "boolean", useArrow=False)("offset"))
    with pytest.raises(QueueLostError, match="lost"), abandoned_on_failure(target):
        write_aside(session, target, long, options, 1, lambda _progress: None, permission=Lost())
    assert not list((tmp_path / "out").glob("run=*"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("step", "is_complete"),
    [
        pytest.param("planning", False, marks=pytest.mark.long),
        pytest.param("wrote", False, marks=pytest.mark.long),
        ("publishing", False),
        ("published", True),
        pytest.param("confirmed", True, marks=pytest.mark.long),
    ],
)
def test_a_killed_drain_is_made_good_by_the_next(
    spark: SparkSession, server: str, queue: str, tmp_path: Path, step: str, is_complete: bool
) -> None:
    given = {"server": server, "target": str(tmp_path / "out"), "partition_by": ["topic"]}
    fill(server, queue, numbered(400))
    assert run_drain(spark, queue, ExportOptions(**given)).records == 400
    fill(server, queue, numbered(300, first=400))
    kill_export_at(step, given, queue=queue)
    assert offsets(spark, tmp_path / "out") == list(range(700 if is_complete else 400))
    assert cursor_of(server, queue) == (700 if step == "confirmed" else 400)
    fill(server, queue, numbered(10, first=700))
    result = run_drain(spark, queue, ExportOptions(**given), lease=QUICK)
    assert result.records == (10 if is_complete else 310)
    assert result.recovered == (300 if step == "published" else 0)
    assert offsets(spark, tmp_path / "out") == list(range(710))
    assert cursor_of(server, queue) == 710
    assert not list((tmp_path / "out").glob("_writing*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_drain_that_is_killed_at_any_moment_is_made_good_by_the_next(
    spark: SparkSession, server: str, queue: str, tmp_path: Path
) -> None:
    given = {"server": server, "target": str(tmp_path / "out"), "partition_by": ["topic"]}
    fill(server, queue, numbered(10))
    assert run_drain(spark, queue, ExportOptions(**given)).records == 10
    total = 10
    for _ in range(4):
        fill(server, queue, numbered(5_000, first=total))
        later_s = random.uniform(0.01, 8.0)
        kill_export_at("planning", given, queue=queue, later_s=later_s)
        found = offsets(spark, tmp_path / "out")
        assert found in (list(range(total)), list(range(total + 5_000))), later_s
        total += 5_000
        run_drain(spark, queue, ExportOptions(**given), lease=QUICK)
        assert offsets(spark, tmp_path / "out") == list(range(total)), later_s
        assert cursor_of(server, queue) == total


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_drain_to_a_table_is_made_good_by_the_next(
    spark: SparkSession, server: str, queue: str, url: str
) -> None:
    fill(server, queue, numbered(400))
    kill_export_at("published", {"server": server, "target": url, "format": "jdbc", "table": "records"}, queue=queue)
    assert cursor_of(server, queue) == 0
    options = ExportOptions(server=server, target=url, format="jdbc", table="records")
    result = run_drain(spark, queue, options, lease=QUICK)
    assert (result.run, result.records, result.recovered) == (None, 0, 400)
    rows = spark.read.format("jdbc").options(url=url, dbtable="records").load().select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(400))
    assert cursor_of(server, queue) == 400
    assert tables(spark, url) == {"records", "journal_exports"}


def test_a_drain_added_the_rows_of_a_task_twice_that_was_tried_again(
    spark: SparkSession, server: str, queue: str, url: str
) -> None:
    """Both of its attempts had committed to the table of the run."""
    fill(server, queue, numbered(40))
    options = ExportOptions(server=server, target=url, format="jdbc", table="records")

    def try_again(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            add_attempts(spark, url)

    result = run_drain(spark, queue, options, lease=QUICK, progress=try_again)
    assert (result.run, result.records, result.skipped) == (1, 40, 0)
    rows = spark.read.format("jdbc").options(url=url, dbtable="records").load().select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(40))
    assert cursor_of(server, queue) == 40


@pytest.mark.parametrize(
    ("reached", "changed_offset", "end"),
    [
        (None, None, 0),
        (Reached(8, 50), None, 0),
        (Reached(7, 50), None, 50),
        (Reached(7, 50), 30, 30),
        (Reached(7, 50), 60, 50),
    ],
)
def test_a_drain_passed_over_what_a_restored_queue_got_anew(
    reached: Reached | None, changed_offset: int | None, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A run had published these offsets with the records that they had before the restore."""
    assert published_end(reached, Backlog(7, 20, 0, 100, changed_offset)) == end
    assert ("other records" in caplog.text) == (end == 30)


def test_a_queue_that_was_made_anew_begins_anew(spark: SparkSession, server: str, queue: str, tmp_path: Path) -> None:
    fill(server, queue, numbered(20))
    assert run_drain(spark, queue, to_files(server, tmp_path / "out")).records == 20

    async def delete(adapter: StorageAdapter) -> None:
        await delete_queue(adapter, queue)

    at(server, delete)
    fill(server, queue, numbered(5))
    assert run_drain(spark, queue, to_files(server, tmp_path / "out")).records == 5


def test_what_cannot_be_drained_is_said(spark: SparkSession, server: str, queue: str, tmp_path: Path) -> None:
    options = to_files(server, tmp_path / "out")
    with pytest.raises(OptionError, match="needs the server"):
        run_drain(spark, queue, ExportOptions(path="/data", target=str(tmp_path / "out")))
    with pytest.raises(InvalidNameError, match="'a/b'"):
        run_drain(spark, "a/b", options)
    with pytest.raises(QueueNotFoundError, match=queue):
        run_drain(spark, queue, options)
    fill(server, queue, numbered(5))
    assert run_drain(spark, queue, options).records == 5
    fill(server, f"{queue}.other", numbered(5))
    # Runs of one name are one table: those of two queues are not.
    with pytest.raises(OptionError, match="give the export another name"):
        run_drain(spark, f"{queue}.other", options)
    state = tmp_path / "out" / "run=default-00000001" / "_export.json"
    found = json.loads(state.read_text())
    found["shards"][f"$queue/{queue}"][1] = 1_000
    (tmp_path / "out" / "run=default-00000001" / "._export.json.crc").unlink(missing_ok=True)
    state.write_text(json.dumps(found))
    with pytest.raises(DataLossError, match=r"ends at offset 5, .* up to 1000: the store was set back"):
        run_drain(spark, queue, options)
    assert run_drain(spark, queue, to_files(server, tmp_path / "out", name="second")).run is None
