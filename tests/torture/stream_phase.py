"""A stream by Spark into files that is killed again and again, while the server and its shards change.

The stream is `journal-spark stream`, with its Java, as processes of their own. What was acknowledged is compared with
what Spark reads in the target at the end: each record once, and no record missing that no run reported.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.mqtt.cluster.processes import Process, journal_server
from tests.ports import free_port
from tests.torture.deliveries.checker import check
from tests.torture.deliveries.history import Arrival, History, Message, Outcome, Promises, Run
from tests.torture.rounds import Result
from tests.torture.shard_changes import ShardChanges

LEAST_STEPS: Final = 8
MICRO_BATCH: Final = 40
RUN_S: Final = 120.0
"""How long a run may take, the start of Java included."""
STARTS_S: Final = 30.0
"""How long a stream is given to plan something before it is killed all the same."""
KILLED_AFTER_S: Final = (0.0, 2.0)
TELLS_OF_LOSS: Final = "set failOnDataLoss to false"
FOUND_NO_SERVER: Final = "no journal server answers"
"""At its start the command waits for a server for three seconds alone."""
_LOOK_S: Final = 0.02


def streams(directory: Path, rng: random.Random, seconds: float) -> Result:
    """As many steps of a random history as fit, and at least some; then the stream takes the rest."""
    if importlib.util.find_spec("pyspark") is None:
        return Result(skipped="pyspark is not installed")
    server = journal_server(directory, free_port())
    try:
        server.start()
        return Streams(directory, rng, server).run(seconds)
    finally:
        server.end(signal.SIGKILL)


class Streams:
    """A random history and its ledger.

    Args:
        directory: For target, checkpoint and log.
        server: The journal server, which runs.
    """

    def __init__(self, directory: Path, rng: random.Random, server: Process) -> None:
        self._directory = directory
        self._rng = rng
        self._history = History(Promises(has_order=False, numbers_are_offsets=False))
        self._changes = ShardChanges(rng, server, [self._history])
        self._log = directory / "stream.log"
        self._result = Result()

    def run(self, seconds: float) -> Result:
        """Take steps for some time, take the rest, and compare."""
        changes = self._changes
        steps: tuple[Callable[[], None], ...] = (
            *(changes.append, changes.append_while_killed, changes.convert, changes.trim, changes.delete),
            *(self.kill_stream, self.kill_stream, self.take_all),
        )
        ends_at = time.monotonic() + seconds
        changes.append()
        self.kill_stream()
        count = 0
        while count < LEAST_STEPS or time.monotonic() < ends_at:
            step = self._rng.choice(steps)
            self._result.counts[step.__name__.replace("_", " ")] += 1
            step()
            count += 1
        self.take_all()
        self._compare()
        return self._result

    def kill_stream(self) -> None:
        """Kill the stream and its Java together at any moment behind its first plan, with clients at work meanwhile."""
        planned = self._planned()
        began_s = time.monotonic()
        passes_over_loss = self._rng.random() < 0.3
        process = self._start("--max-records", str(MICRO_BATCH), passes_over_loss=passes_over_loss)
        try:
            self._rng.choice((self._changes.append, self._changes.append_while_killed))()
            if self._rng.random() < 0.3:
                self._changes.convert()
            while process.poll() is None and self._planned() == planned and time.monotonic() < began_s + STARTS_S:
                time.sleep(_LOOK_S)
            time.sleep(self._rng.uniform(*KILLED_AFTER_S))  # the moment is the point of it
        finally:
            has_ended = process.poll() is not None
            _kill(process)
        outcome = Outcome.UNKNOWN
        if has_ended and self._has_told(TELLS_OF_LOSS):
            outcome = Outcome.REFUSED
        elif has_ended and self._has_told(FOUND_NO_SERVER):
            self._result.counts["streams that found no server"] += 1
        elif has_ended:
            # A stream that runs waits for a server that is away for a moment.
            self._result.broken.append(f"the stream ended by itself: {self._log.read_text()[-1000:]}")
        self._note(began_s, outcome, passes_over_loss=passes_over_loss)

    def take_all(self) -> None:
        """Take what is there; where the stream says that records are gone, once more past the loss."""
        if not self._take():
            assert self._take(passes_over_loss=True), self._log.read_text()[-3000:]

    def _take(self, *, passes_over_loss: bool = False) -> bool:
        """One run to its end; false if it reported a loss."""
        began_s = time.monotonic()
        process = self._start("--available-now", passes_over_loss=passes_over_loss)
        try:
            status = process.wait(RUN_S)
        finally:
            _kill(process)
        if status and not self._has_told(TELLS_OF_LOSS):
            raise AssertionError(f"the stream ended with status {status}: {self._log.read_text()[-3000:]}")
        self._note(began_s, Outcome.REFUSED if status else Outcome.OK, passes_over_loss=passes_over_loss)
        return not status

    def _start(self, *arguments: str, passes_over_loss: bool) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "spark_export.cli.main", "stream"),
                    *(str(self._directory / "data"), str(self._directory / "out")),
                    *("--server", self._changes.url, "--checkpoint", str(self._directory / "checkpoint")),
                    *("--partition-by", "", "--memory", "512m", "--cores", "2"),
                    *("--data-loss", "skip" if passes_over_loss else "fail", *arguments),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _planned(self) -> int:
        path = self._directory / "checkpoint/offsets"
        return sum(name.isdigit() for name in os.listdir(path)) if path.exists() else 0

    def _has_told(self, text: str) -> bool:
        return text in self._log.read_text(errors="replace")

    def _note(self, began_s: float, outcome: Outcome, *, passes_over_loss: bool) -> None:
        run = Run(began_s=began_s, ended_s=time.monotonic(), outcome=outcome, passes_over_loss=passes_over_loss)
        self._history.events.append(run)
        self._result.counts["runs of streams"] += 1
        self._result.counts["losses told"] += outcome is Outcome.REFUSED

    def _compare(self) -> None:
        from spark_export.session import end_session, make_session

        spark = make_session("torture", cores=2, memory="1g")
        try:
            for row in spark.read.parquet(str(self._directory / "out")).select("offset", "value").collect():
                content = bytes(row["value"]).decode()
                source, number = content.rsplit(" ", 1)
                self._history.arrivals.append(Arrival(Message(source, int(number)), row["offset"], content=content))
        finally:
            end_session(spark)
        self._history.write(self._directory / "stream.jsonl")
        self._result.broken += [str(anomaly) for anomaly in check(self._history)]
        self._result.counts["rows streamed"] += len(self._history.arrivals)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and its Java, if they have not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
