"""Exports and drains by Spark of a server that is killed and frozen, whose shards are trimmed, deleted and made again.

One round is a random history: one Spark, one server, an export to files, one to a database, and a drain of a cache
queue. What was acknowledged is compared with what the targets have at the end.
"""

from __future__ import annotations

import importlib.util
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import QueueSettings, ensure_queue, look
from broker_adapter.cache_queue.names import shard_of
from tests.mqtt.cluster.processes import Process, journal_server
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.torture.deliveries.checker import check
from tests.torture.deliveries.history import (
    Arrival,
    Command,
    Disturbance,
    History,
    Interval,
    Message,
    Outcome,
    Promises,
    Run,
    Tally,
)
from tests.torture.rounds import Result
from tests.torture.shard_changes import ShardChanges

QUEUE: Final = "backlog"
TABLE: Final = "records"
LEAST_STEPS: Final = 6
FAILING_STEPS: Final = ("writing", "publishing", "published")
ONCE: Final = Promises(has_order=False, numbers_are_offsets=False)


class FailedOnPurposeError(Exception):
    """An export is ended at one of its steps."""


def exports(directory: Path, rng: random.Random, seconds: float) -> Result:
    """As many steps of a random history as fit, and at least some; then everything is exported and compared."""
    for module in ("pyspark", "duckdb"):
        if importlib.util.find_spec(module) is None:
            return Result(skipped=f"{module} is not installed")
    from spark_export.session import end_session, make_session

    spark = make_session("torture", cores=2, memory="1g", extra={"spark.sql.shuffle.partitions": "2"})
    server = journal_server(directory, free_port())
    try:
        server.start()
        return Exports(directory, rng, spark, server).run(seconds)
    finally:
        end_session(spark)
        server.thaw()
        server.end(signal.SIGKILL)


@attrs.define
class _Target:
    """What one export, or the drain, has to give."""

    options: Mapping[str, Any]
    history: History = attrs.Factory(lambda: History(ONCE))


class Exports:
    """A random history and its ledger.

    Args:
        directory: For the targets.
        spark: One Spark for the whole history.
        server: Its journal server, which runs.
    """

    def __init__(self, directory: Path, rng: random.Random, spark: Any, server: Process) -> None:
        self._rng = rng
        self._spark = spark
        self._server = server
        self._data = directory / "data"
        self._directory = directory
        derby = f"jdbc:derby:{directory}/database;create=true"
        spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(directory / "derby.log"))
        self._files = _Target({"target": str(directory / "files"), "partition_by": ("topic",)})
        self._database = _Target({"target": derby, "format": "jdbc", "table": TABLE})
        self._drained = _Target({"target": str(directory / "drained"), "partition_by": ()})
        self._changes = ShardChanges(rng, server, [self._files.history, self._database.history])
        self._result = Result()

    def run(self, seconds: float) -> Result:
        """Take steps for some time, export the rest, and compare."""
        changes = self._changes
        steps: tuple[Callable[[], None], ...] = (
            *(changes.append, changes.append, changes.append_while_killed, self._fill_queue),
            *(changes.convert, changes.trim, changes.delete, self._export, self._export, self._drain),
        )
        ends_at = time.monotonic() + seconds
        count = 0
        changes.append()
        while count < LEAST_STEPS or time.monotonic() < ends_at:
            step = self._rng.choice(steps)
            self._result.counts[step.__name__.strip("_").replace("_", " ")] += 1
            step()
            count += 1
        for target in (self._files, self._database):
            self._export_to(target)
        self._drain_to_end()
        self._compare()
        return self._result

    def _fill_queue(self) -> None:
        async def work(store: StorageAdapter) -> None:
            await ensure_queue(store, QUEUE, QueueSettings())
            await self._changes.append_batches(store, shard_of(QUEUE), QUEUE, [self._drained.history])

        self._changes.at_store(work)

    # What Spark does

    def _export(self) -> None:
        """To one of the targets. Some runs fail on the way; in some the server is frozen or killed."""
        target = self._rng.choice((self._files, self._database))
        chance = self._rng.random()
        if chance < 0.2:
            self._disturbed("server frozen", self._freeze, target)
        elif chance < 0.4:
            self._disturbed("server killed", self._kill_and_start, target)
        else:
            self._export_to(target, fails_at=self._rng.choice(("", "", *FAILING_STEPS)))

    def _disturbed(self, what: str, disturb: Callable[[], None], target: _Target) -> None:
        """Do something to the server while a run is under way, which may end with an error."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, lambda: self._export_to(target, may_fail=True))
                nursery.start_soon(trio.to_thread.run_sync, disturb)

        self._result.counts[what] += 1
        began_s = time.monotonic()
        trio.run(main)
        target.history.events.append(Disturbance(began_s=began_s, ended_s=time.monotonic(), what=what))

    def _freeze(self) -> None:
        self._server.freeze()
        time.sleep(1)  # how long it stands still
        self._server.thaw()

    def _kill_and_start(self) -> None:
        """The start waits for runs that look into the directory, but not for longer than it may."""
        time.sleep(self._rng.uniform(0, 3))  # the moment is the point of it
        self._server.end(signal.SIGKILL)
        began_s, outcome, detail = time.monotonic(), Outcome.OK, ""
        try:
            self._server.start()
        except AssertionError as error:
            outcome, detail = Outcome.REFUSED, str(error)
            self._server.end(signal.SIGKILL)
            self._server.start()
        start = Command(
            began_s=began_s,
            ended_s=time.monotonic(),
            what="start of the server",
            outcome=outcome,
            within_s=PATIENCE_S,
            detail=detail,
        )
        self._files.history.events.append(start)

    def _export_to(self, target: _Target, *, fails_at: str = "", may_fail: bool = False) -> None:
        """A run, and where that says that records are gone, a second one that passes over the loss."""
        from spark_export.errors import DataLossError
        from spark_export.export import ExportOptions, run_export

        options = ExportOptions(server=self._changes.url, path=str(self._data), **target.options)

        def work(passes_over_loss: bool) -> int:
            chosen = attrs.evolve(options, fail_on_data_loss=not passes_over_loss)
            return run_export(self._spark, chosen, progress=self._failing(target, fails_at)).records

        try:
            self._note_run(target.history, lambda: work(False), may_fail=may_fail)
        except DataLossError:
            self._note_run(target.history, lambda: work(True), passes_over_loss=True, may_fail=may_fail)

    def _failing(self, target: _Target, fails_at: str) -> Callable[[Any], None]:
        def progress(told: Any) -> None:
            if told.step == "publishing" and target is self._database:
                self._repeat_tasks()
            if told.step == fails_at:
                raise FailedOnPurposeError(fails_at)

        return progress

    def _repeat_tasks(self) -> None:
        """Have the rows of all tasks in the table of the run a second time, as if their COMMITs were not answered."""
        from tests.spark.derby import add_attempts

        if self._rng.random() < 0.5:
            add_attempts(self._spark, self._database.options["target"])
            self._result.counts["tasks repeated"] += 1

    def _note_run(
        self, history: History, work: Callable[[], int], *, passes_over_loss: bool = False, may_fail: bool = False
    ) -> None:
        from spark_export.errors import DataLossError

        began_s, outcome, count = time.monotonic(), Outcome.UNKNOWN, 0
        try:
            count = work()
            outcome = Outcome.OK
        except FailedOnPurposeError:
            # Ended before it was published, or behind that: the next one goes on from whatever it finds.
            self._result.counts["runs ended on the way"] += 1
        except DataLossError:
            outcome = Outcome.REFUSED
            raise
        except Exception:
            if not may_fail:
                raise
            self._result.counts["runs failed with the server"] += 1
        finally:
            run: Interval = Run(
                began_s=began_s,
                ended_s=time.monotonic(),
                outcome=outcome,
                passes_over_loss=passes_over_loss,
                record_count=count,
            )
            history.events.append(run)
            self._result.counts["runs"] += 1

    def _drain(self) -> None:
        self._drain_once(self._rng.choice(("", *FAILING_STEPS)))

    def _drain_to_end(self) -> None:
        self._fill_queue()
        self._drain_once("")

    def _drain_once(self, fails_at: str) -> None:
        from broker_adapter.cache_queue.errors import QueueNotFoundError
        from spark_export.export import ExportOptions, run_drain
        from tests.spark.queues import QUICK

        options = ExportOptions(server=self._changes.url, **self._drained.options)
        progress = self._failing(self._drained, fails_at)

        def work() -> int:
            return run_drain(self._spark, QUEUE, options, lease=QUICK, progress=progress).records

        with suppress(QueueNotFoundError):
            self._note_run(self._drained.history, work)

    # What there is at the end

    def _compare(self) -> None:
        read = self._spark.read
        self._database.history.arrivals = self._rows(
            read.format("jdbc").options(url=self._database.options["target"], dbtable=TABLE).load()
        )
        in_files = read.parquet(self._files.options["target"])
        self._files.history.arrivals = self._rows(in_files)
        directories = in_files.select("topic", "topic_dir").distinct().collect()
        self._result.broken += wrong_directories({row.topic: row.topic_dir for row in directories})
        self._drained.history.arrivals = self._rows(read.parquet(self._drained.options["target"]))
        self._changes.at_store(self._count_queue)
        for name, target in (("files", self._files), ("database", self._database), ("drained", self._drained)):
            target.history.write(self._directory / f"{name}.jsonl")
            self._result.broken += [f"{name}: {anomaly}" for anomaly in check(target.history)]
            self._result.counts["rows exported"] += len(target.history.arrivals)

    def _rows(self, frame: Any) -> list[Arrival]:
        found: list[Arrival] = []
        for row in frame.select("offset", "value").collect():
            content = row["value"] if isinstance(row["value"], str) else bytes(row["value"]).decode()
            source, number = content.rsplit(" ", 1)
            found.append(Arrival(Message(source, int(number)), row["offset"], content=content))
        return found

    async def _count_queue(self, store: StorageAdapter) -> None:
        state = await look(store, QUEUE)
        counts = self._result.counts.__class__(msgspec.structs.asdict(state.progress.counts))
        self._drained.history.tally = Tally(
            state.shard.next_offset, state.progress.offset, counts, state.dead_letter_count
        )


def wrong_directories(found: Mapping[str, str | None]) -> list[str]:
    """Topics whose directory is not the one that docs/spark-exports.md names: 007 alone would come back as 7."""
    return [
        f"files: topic {topic!r} lies in {directory!r}"
        for topic, directory in found.items()
        if directory != (f"~{topic}" if topic.isdecimal() else topic)
    ]
