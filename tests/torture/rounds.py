"""One round with a real server: clients work, something is done to the server, everything is read back and judged."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TextIO, TypeVar

import attrs
import trio

from journal.check import check_directory
from shards.errors import StorageError
from tests.crash.killed_server import CONFIGURATION, GATHERING, KilledServer
from tests.crash.table_check import UnreadableTableError, compare_table
from tests.patience import PATIENCE_S
from tests.torture.checker import check
from tests.torture.final_read import read_all
from tests.torture.follower_readers import KIND
from tests.torture.history import Append, Death, Event, Operation, Outcome, Poll, Read, Recorder, load
from tests.torture.worker import create_shards

WORKERS = 2


@attrs.define
class Result:
    """What a round did and what it found.

    Attributes:
        counts: How much was done, by what it is called in the report.
        broken: Promises that were not kept, in words.
        skipped: Why nothing was done, if nothing was.
    """

    counts: Counter[str] = attrs.Factory(Counter)
    broken: list[str] = attrs.Factory(list)
    skipped: str = ""


class RoundServer(Protocol):
    """What a round needs of a server; `tests.crash.killed_server.KilledServer` is one."""

    log: Path

    @property
    def address(self) -> str: ...
    @property
    def data(self) -> Path: ...
    @property
    def exit_status(self) -> int | None: ...
    def start(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None: ...
    def end(self, how: signal.Signals) -> int: ...


_Server = TypeVar("_Server", bound=RoundServer)


class Round(Generic[_Server]):
    """A server with clients at work, for the length of the context; then `finish` says what it came to.

    Args:
        directory: Empty; it gets everything of the round, and stays for the analysis of a failure.
        server: Not started yet.
        rng: Decides everything that is decided here.

    Attributes:
        may_end: The server may end by itself, since its storage is made to fail.
        environment: Variables of the server's process besides those of this one.
        result: What was done and found.
    """

    def __init__(self, directory: Path, server: _Server, rng: random.Random) -> None:
        self.directory = directory
        self.server = server
        self.rng = rng
        self.result = Result()
        self.may_end = False
        self.environment: Mapping[str, str] = {}
        self._histories: list[Path] = []
        self._workers: list[subprocess.Popen[str]] = []
        self._file: TextIO | None = None
        self._recorder: Recorder | None = None

    @staticmethod
    def begin(directory: Path, rng: random.Random) -> Round[KilledServer]:
        """A round with a server that gathers closed segments into shared files, or does not."""
        return Round(directory, KilledServer(directory, configuration=rng.choice((CONFIGURATION, GATHERING))), rng)

    def start_server(self, prefix: Sequence[str] = ()) -> None:
        """Start it, and know that it has started."""
        began_ns = time.monotonic_ns()
        self.server.start(prefix, self.environment)
        self.note("start of the server", began_ns)
        self.result.counts["starts"] += 1

    def end_server(self, how: signal.Signals) -> int:
        """End it, and write down when it died."""
        assert self._recorder is not None
        began_ns = time.monotonic_ns()
        if self.server.exit_status is not None and not self.may_end:
            self.result.broken.append(f"the server ended by itself with status {self.server.exit_status}")
        status = self.server.end(how)
        self._recorder.note(Death, began_ns, how=how.name)
        self.result.counts[how.name] += 1
        return status

    def note_death(self, began_ns: float) -> None:
        """It has ended by itself."""
        assert self._recorder is not None
        self.server.end(signal.SIGKILL)
        self._recorder.note(Death, began_ns, how="by itself")

    def note_end(self, began_ns: float, how: str) -> None:
        """One of several servers was killed or suspended, whose memory may be lost."""
        assert self._recorder is not None
        self._recorder.note(Death, began_ns, how=how)
        self.result.counts[how] += 1

    def note(self, what: str, began_ns: float) -> None:
        """Write down what was done to the server until now, for the report of an anomaly."""
        assert self._recorder is not None
        self._recorder.note(Event, began_ns, what=what)

    def start_worker(self, program: str = "tests.torture.worker") -> subprocess.Popen[str]:
        """Have one more process of clients at work."""
        number = len(self._histories)
        history = self.directory / f"worker-{number}.jsonl"
        self._histories.append(history)
        with (self.directory / "workers.log").open("a") as log:
            worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", program, self.server.address, str(history)),
                    *(str(self.rng.randrange(1 << 30)), f"w{number}"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._workers.append(worker)
        return worker

    def kill_worker(self) -> None:
        """Kill a process of clients; what it had asked for has an unknown outcome."""
        if self._workers:
            worker = self._workers.pop(self.rng.randrange(len(self._workers)))
            with worker:
                worker.kill()
            self.result.counts["clients killed"] += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Start everything; whatever happens, nothing runs afterwards."""
        history = self.directory / "driver.jsonl"
        self._histories.append(history)
        try:
            with history.open("a") as file:
                self._recorder = Recorder(f"driver-{self.directory.name}", file)
                self.start_server()
                trio.run(create_shards, self.server.address, self._recorder)
                for _ in range(WORKERS):
                    self.start_worker()
                for worker in self._workers:
                    assert worker.stdout is not None
                    assert worker.stdout.readline() == "working\n"
                yield
        finally:
            for worker in self._workers:
                with worker:
                    worker.kill()
            self.server.end(signal.SIGKILL)

    def finish(self, endings: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL)) -> None:
        """Stop the clients, kill the server, and look at everything after a start, and again after each ending."""
        self.stop_workers()
        self.end_server(signal.SIGKILL)
        for ending in endings:
            self.start_server()
            try:
                with_deadline(self.server.address, self.directory / f"final-{ending.name}.jsonl")
            except (StorageError, trio.TooSlowError) as error:
                self.result.broken.append(f"the final read failed: {error!r}")
            self._histories.append(self.directory / f"final-{ending.name}.jsonl")
            self.check_table()
            status = self.end_server(ending)
            if ending is signal.SIGTERM and status:
                self.result.broken.append(f"the server ended with status {status} at SIGTERM")
        self.check_files()
        self.check_log()
        self.judge()

    def stop_workers(self) -> None:
        """Let the clients end."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.communicate(timeout=PATIENCE_S)
            if worker.returncode:
                log = (self.directory / "workers.log").read_text()[-3000:]
                self.result.broken.append(f"the clients ended with status {worker.returncode}: {log}")
        self._workers.clear()

    def check_table(self) -> None:
        """Have `deltalake` read the table over shared files, and compare it with what the server answers.

        The clients have ended, so the server seals the rest and the table gets everything.
        """

        async def compare() -> list[str]:
            # A client waits for a server that has ended.
            with trio.fail_after(2 * PATIENCE_S):
                return await compare_table(self.server.address, self.server.data, is_quiet=True)

        try:
            self.result.broken += trio.run(compare)[:5]
        except (StorageError, UnreadableTableError, trio.TooSlowError) as error:
            self.result.broken.append(f"the table cannot be compared: {error!r}")
        self.result.counts["tables compared"] += 1

    def check_files(self) -> None:
        """Have `journal check` read the data directory."""
        report = check_directory(str(self.server.data))
        self.result.broken += [f"journal check: {damage}" for damage in report.damages[:5]]
        self.result.counts["checks"] += 1
        self.result.counts["shared files"] += len(list(self.server.data.glob("sealed/date=*/*.parquet")))

    def check_log(self) -> None:
        """No fault may end in an error that the server did not expect."""
        text = self.server.log.read_text()
        found = re.search(r"(Traceback|unexpected error).*", text, re.DOTALL)
        if found:
            self.result.broken.append(f"an unexpected error in the log of the server: {found[0][:2000]}")

    def judge(self) -> None:
        """Check the history."""
        operations = load(path for path in self._histories if path.exists())
        self.result.counts.update(counted(operations))
        self.result.broken += [str(anomaly) for anomaly in check(operations)]


def with_deadline(address: str, path: Path) -> None:
    """Read everything, in bounded time."""

    async def read() -> None:
        with trio.fail_after(PATIENCE_S):
            await read_all(address, path, path.stem)

    trio.run(read)


def counted(operations: Sequence[Operation]) -> Counter[str]:
    """How much a history holds."""
    counts: Counter[str] = Counter(operations=len(operations))
    for operation in operations:
        if isinstance(operation, Append):
            is_ok = operation.outcome is Outcome.OK
            counts["appends acknowledged" if is_ok else f"appends {operation.outcome}"] += 1
            counts["records appended"] += len(operation.values) if is_ok else 0
        elif isinstance(operation, Read | Poll):
            counts["records read"] += len(operation.records)
            if isinstance(operation, Poll) and KIND in operation.assignment:
                counts["of these by readers of followers"] += len(operation.records)
    return counts
