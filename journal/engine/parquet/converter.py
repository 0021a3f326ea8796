"""The `ParquetConverter` interface, and the worker process that implements it in a real engine.

Writing Parquet takes a processor core for seconds, so a separate process does it, at low priority: appends go first
where cores are scarce. The process is started when there is a segment to convert, and ended when there was none for a
while. Requests and answers are lines of JSON, several for one with very many segments: no step of the event loop goes
through all of them. `journal.engine.parquet.worker` is the other end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import attrs
import msgspec
import trio

import journal
from journal.settings.server import ConversionConfig
from journal.settings.values import ConfigurationError
from shards.delta.actions import TableRequest, TableVersion
from shards.errors import ConversionFailedError, CorruptionError
from shards.extras import install_command
from shards.segments.conversion_plan import GatheredFiles, SharedPlan

_LARGEST_LINE_BYTES = 16 << 20
_GOODBYE_S = 5.0
_ITEMS_IN_A_LINE = 250
# The worker runs the code of this installation, wherever it is.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(journal.__file__)))


class ParquetConverter(Protocol):
    """Writes the Parquet files of a plan, one plan at a time."""

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        """Write and sync the shared files of a plan; they must not be used before this returns.

        Cancelling may leave a part of them.

        Raises:
            CorruptionError: A log segment, which its path tells, is damaged; another attempt will not help.
            ConversionFailedError: The disk refused, or the worker process has ended.
        """
        ...

    async def shards_in(self, path: str) -> list[int]:
        """Return the ids of the shards that have records in a shared file.

        Raises:
            CorruptionError: The file is damaged or missing.
            ConversionFailedError: It cannot be read for another reason, or the worker process has ended.
        """
        ...

    async def update_table(self, request: TableRequest) -> TableVersion:
        """Bring the Delta table over the shared files to a state, durably. Cancelling may leave it in the former one.

        Raises:
            ConversionFailedError: The disk refused, or the worker process has ended. The next call looks what was done.
        """
        ...

    async def rest(self) -> None:
        """Release memory: there is nothing to convert for now."""
        ...


@attrs.frozen
class Request:
    """What the worker is to do; one of ``gather``, ``look_into`` and ``table`` is set.

    Attributes:
        gather: Write shared files.
        look_into: Path of a shared file: tell which shards have records in it.
        continues: The next line has more sources of ``gather``.
        table: Bring the Delta table to this state.
    """

    gather: SharedPlan | None = None
    look_into: str = ""
    continues: bool = False
    table: TableRequest | None = None

    def __str__(self) -> str:
        if self.table is not None:
            return f"the log of the Delta table in {self.table.root}"
        if self.look_into:
            return f"nothing, but looked into {self.look_into}"
        sources = self.gather.sources if self.gather is not None else ()
        if len(sources) == 1:
            (source,) = sources
            return f"offsets {source.base_offset} to {source.next_offset} of shard {source.name!r}"
        return f"{len(sources)} segments of several shards"


@attrs.frozen
class Answer:
    """The worker's answer to a request; one of the first five attributes is set.

    Attributes:
        gathered: The shared files are written.
        shard_ids: The shards in the shared file.
        table: The Delta table has the state.
        corruption: Path, position and description of the damage.
        failure: Any other error.
        continues: The next line has more parts of ``gathered``.
    """

    gathered: GatheredFiles | None = None
    shard_ids: list[int] | None = None
    table: TableVersion | None = None
    corruption: tuple[str, int, str] | None = None
    failure: str = ""
    continues: bool = False


def lines_of_request(request: Request) -> Iterator[bytes]:
    """Encode a request."""
    plan = request.gather
    for start, end, continues in _pieces(len(plan.sources) if plan is not None else 0):
        piece = None if plan is None else attrs.evolve(plan, sources=tuple(plan.sources[start:end]))
        yield msgspec.json.encode(attrs.evolve(request, gather=piece, continues=continues)) + b"\n"


def lines_of_answer(answer: Answer) -> Iterator[bytes]:
    """Encode an answer."""
    gathered = answer.gathered
    for start, end, continues in _pieces(len(gathered.parts) if gathered is not None else 0):
        piece = None if gathered is None else attrs.evolve(gathered, parts=gathered.parts[start:end])
        yield msgspec.json.encode(attrs.evolve(answer, gathered=piece, continues=continues)) + b"\n"


def joined_request(lines: Sequence[Request]) -> Request:
    """Join what several lines had of one request."""
    plans = [line.gather for line in lines if line.gather is not None]
    if len(lines) == 1 or not plans:
        return lines[-1]
    sources = list(chain.from_iterable(plan.sources for plan in plans))
    return attrs.evolve(lines[-1], gather=attrs.evolve(plans[-1], sources=sources))


def joined_answer(lines: Sequence[Answer]) -> Answer:
    """Join what several lines had of one answer."""
    found = [line.gathered for line in lines if line.gathered is not None]
    if len(lines) == 1 or not found:
        return lines[-1]
    parts = list(chain.from_iterable(each.parts for each in found))
    return attrs.evolve(lines[-1], gathered=attrs.evolve(found[-1], parts=parts))


def _pieces(count: int) -> Iterator[tuple[int, int, bool]]:
    """Ranges of so many items, at least one, and whether another follows."""
    for start in range(0, max(1, count), _ITEMS_IN_A_LINE):
        end = start + _ITEMS_IN_A_LINE
        yield start, end, end < count


def open_worker_converter(config: ConversionConfig) -> ParquetConverter:
    """The converter of a real engine; its process is started when there is something to convert.

    Raises:
        ConfigurationError: A library that it needs is not installed.
    """
    _require("conversion.enabled", "parquet", "numpy", "pyarrow")
    if config.delta:
        _require("conversion.delta", "delta", "deltalake")
    return WorkerConverter()


def _require(setting: str, extra: str, *names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{setting} is true, but {' and '.join(missing)} cannot be imported: {install_command(extra)}, or set "
            f"{setting} = false"
        )


class WorkerConverter:
    """A `ParquetConverter` in a process of its own.

    Args:
        command: Command that starts the worker; for tests.
    """

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", "journal.engine.parquet.worker")) -> None:
        self._command = command
        self._process: trio.Process | None = None
        self._received = bytearray()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        gathered = (await self._answer_to(Request(gather=plan))).gathered
        if gathered is None:
            raise self._misunderstood()
        return gathered

    async def shards_in(self, path: str) -> list[int]:
        shard_ids = (await self._answer_to(Request(look_into=path))).shard_ids
        if shard_ids is None:
            raise self._misunderstood()
        return shard_ids

    async def update_table(self, request: TableRequest) -> TableVersion:
        table = (await self._answer_to(Request(table=request))).table
        if table is None:
            raise self._misunderstood()
        return table

    def _misunderstood(self) -> ConversionFailedError:
        self._kill()
        return ConversionFailedError("the process that writes Parquet files answered another request")

    async def _answer_to(self, request: Request) -> Answer:
        try:
            answer = await self._ask(request)
        except BaseException:
            # A late answer must not be taken for the answer to the next request.
            self._kill()
            raise
        if answer.corruption is None and not answer.failure:
            return answer
        if answer.corruption is not None:
            raise CorruptionError(*answer.corruption)
        # The cause may last as long as the process, such as a partly imported numpy after a shortage of open files.
        self._kill()
        raise ConversionFailedError(answer.failure)

    async def _ask(self, request: Request) -> Answer:
        if self._process is None:
            self._received.clear()
            self._process = await _start(self._command)
        process = self._process
        assert process.stdin is not None  # the process was started with pipes
        before: list[Answer] = []
        try:
            for line in lines_of_request(request):
                await process.stdin.send_all(line)
            answer = await self._receive(process)
            while answer is not None and answer.continues:
                before.append(answer)
                answer = await self._receive(process)
        except trio.BrokenResourceError:
            answer = None
        if answer is None:
            with trio.move_on_after(_GOODBYE_S):
                await process.wait()
            raise ConversionFailedError(
                f"the process that writes Parquet files (pid {process.pid}) ended while it wrote {request}: "
                f"{_ending(process.returncode)}"
            )
        return joined_answer([*before, answer])

    async def _receive(self, process: trio.Process) -> Answer | None:
        """The answer in the next line; None when the process has closed its output."""
        line = await self._receive_line(process)
        if not line:
            return None
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            raise ConversionFailedError(
                f"the process that writes Parquet files answered {line[:80]!r}: {error}"
            ) from error

    async def _receive_line(self, process: trio.Process) -> bytes:
        """The next line, or nothing when the process has closed its output."""
        assert process.stdout is not None  # the process was started with pipes
        received = self._received
        while (at := received.find(b"\n")) < 0 and len(received) < _LARGEST_LINE_BYTES:
            data = await process.stdout.receive_some()
            if not data:
                return b""
            received += data
        line = bytes(received[:at])
        del received[: at + 1]
        return line

    async def rest(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None  # the process was started with pipes
        # The process ends when its input is closed.
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(_GOODBYE_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            trio.lowlevel.spawn_system_task(_reap, process)


async def _reap(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()


async def _start(command: tuple[str, ...]) -> trio.Process:
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        return await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise ConversionFailedError(f"the process that writes Parquet files cannot be started: {error}") from error


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "it closed its output"
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
