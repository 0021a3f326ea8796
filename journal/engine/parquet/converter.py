"""The `ParquetConverter` interface, and the worker process that implements it in a real engine.

Writing Parquet takes a processor core for seconds, so a separate process does it, at low priority: appends go first
where cores are scarce. The process is started when there is a segment to convert, and ended when there was none for a
while. Requests and answers are lines of JSON, several for one with very many segments: no step of the event loop goes
through all of them. `journal.engine.parquet.worker` is the other end.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import attrs
import msgspec

from journal.engine.workers.process import WorkerEndedError, WorkerFailedError, WorkerProcess
from journal.settings.server import ConversionConfig
from journal.settings.values import ConfigurationError
from shards.delta.actions import TableRequest, TableVersion
from shards.errors import ConversionFailedError, CorruptionError
from shards.extras import install_command
from shards.segments.conversion_plan import GatheredFiles, SharedPlan

_WORKER = "the process that writes Parquet files"
_ITEMS_IN_A_LINE = 250


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
        self._worker = WorkerProcess(_WORKER, command)

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._worker.pid

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

    async def rest(self) -> None:
        await self._worker.rest()

    def _misunderstood(self) -> ConversionFailedError:
        self._worker.kill()
        return ConversionFailedError(f"{_WORKER} answered another request")

    async def _answer_to(self, request: Request) -> Answer:
        try:
            answer = await self._ask(request)
        except BaseException:
            # A late answer must not be taken for the answer to the next request.
            self._worker.kill()
            raise
        if answer.corruption is None and not answer.failure:
            return answer
        if answer.corruption is not None:
            raise CorruptionError(*answer.corruption)
        # The cause may last as long as the process, such as a partly imported numpy after a shortage of open files.
        self._worker.kill()
        raise ConversionFailedError(answer.failure)

    async def _ask(self, request: Request) -> Answer:
        answers: list[Answer] = []
        try:
            await self._worker.send(lines_of_request(request))
            while not answers or answers[-1].continues:
                line = await self._worker.receive()
                answers.append(msgspec.json.decode(line, type=Answer))
        except WorkerEndedError as error:
            raise ConversionFailedError(
                f"{_WORKER} (pid {error.pid}) ended while it wrote {request}: {error.ending}"
            ) from error
        except WorkerFailedError as error:
            raise ConversionFailedError(str(error)) from error
        except msgspec.DecodeError as error:
            raise ConversionFailedError(f"{_WORKER} answered {line[:80]!r}: {error}") from error
        return joined_answer(answers)
