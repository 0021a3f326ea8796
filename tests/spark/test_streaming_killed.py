"""A stream into Parquet files is killed again and again while a server appends and rolls: each record is there once.

The stream is the command, with Spark's Java, as processes of their own. When it is killed is chosen by what the
checkpoint and the target show: a micro-batch planned, files being written, the files counted but the micro-batch not
yet committed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from broker_adapter import open_adapter
from tests.faults.processes import running
from tests.spark.streams import Followed, append_to

SHARDS = ("plant/a", "plant/b", "plant/c")
PATIENCE_S = 240.0
_LOOK_S = 0.002


class Writer:
    """Appends numbered values to all shards, and rolls them now and then, until it is stopped."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._write,))
        self.counts = dict.fromkeys(SHARDS, 0)

    async def _write(self) -> None:
        async with open_adapter(f"journal://127.0.0.1:{self._port}") as adapter:
            number = 0
            while not self._stopping.is_set():
                for shard in SHARDS:
                    await append_to(adapter, shard, [b"%d" % self.counts[shard]])
                    self.counts[shard] += 1
                number += 1
                if number % 20 == 0:
                    await adapter.roll(SHARDS[number // 20 % len(SHARDS)])
                # A pace that Spark keeps up with.
                await trio.sleep(0.05)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()


class Stream:
    """The command, run again and again on the same target."""

    def __init__(self, data: Path, place: Path) -> None:
        self._data = data
        self._place = place
        self._log = place / "stream.log"

    def numbers(self, directory: str) -> set[int]:
        """The micro-batches that the checkpoint or the target reports in one of their directories."""
        path = self._place / directory
        return {int(name) for name in os.listdir(path) if name.isdigit()} if path.exists() else set()

    @property
    def planned(self) -> int:
        return max(self.numbers("checkpoint/offsets"), default=-1)

    @property
    def counted(self) -> int:
        return max(self.numbers("out/_spark_metadata"), default=-1)

    @property
    def committed(self) -> int:
        return max(self.numbers("checkpoint/commits"), default=-1)

    def files(self) -> int:
        return sum(1 for _ in (self._place / "out").rglob("*.parquet"))

    def command(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "spark_export.cli.main", "stream"),
                    *(str(self._data), str(self._place / "out"), "--checkpoint", str(self._place / "checkpoint")),
                    *("--partition-by", "", "--memory", "512m", "--cores", "2", *arguments),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_when(self, reached: Callable[[], bool]) -> None:
        """Run until a moment has come, then kill the command and its Java together."""
        process = self.command("--max-records", "40")
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not reached():
                assert process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(_LOOK_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self) -> None:
        process = self.command("--available-now")
        try:
            assert process.wait(PATIENCE_S) == 0, self._log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def moments(stream: Stream) -> dict[str, Callable[[], bool]]:
    """When to kill, told from what there was at the start of a run."""
    committed, files = stream.committed, stream.files()
    return {
        "a micro-batch is planned": lambda: stream.planned > max(committed, stream.committed),
        "files are being written": lambda: stream.committed > committed and stream.files() > files + 1,
        "files count but are not committed": lambda: stream.counted > stream.committed,
    }


def kill_at(stream: Stream, *names: str) -> None:
    for name in names:
        stream.kill_when(moments(stream)[name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(1, id="each moment once"), pytest.param(4, id="each moment often", marks=pytest.mark.long)],
)
def test_a_stream_that_is_killed_misses_nothing_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    data = tmp_path / "data"
    stream = Stream(data, tmp_path)
    with running(data, "conversion.max_age_s=1") as server:
        writer = Writer(server.ports["tcp"])
        with writer.writing():
            for _ in range(rounds):
                kill_at(
                    stream, "a micro-batch is planned", "files count but are not committed", "files are being written"
                )
        stream.finish()
        # Elsewhere in the data directory the server removes directories while they are looked through.
        sealed = sum(1 for _ in (data / "sealed").rglob("*.parquet"))
    assert sealed > 0
    assert Followed(spark, data, tmp_path).offsets() == {
        shard: [*range(count)] for shard, count in writer.counts.items()
    }
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset", "value").collect()
    assert all(bytes(row.value) == b"%d" % row.offset for row in rows)
