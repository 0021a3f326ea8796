"""The `ParquetConverter` interface, and the worker process that implements it in a real engine.

Writing Parquet takes a processor core for seconds, so a separate process does it, at low priority: appends go first
where cores are scarce. The process is started when there is a segment to convert, and ended when there was none for a
while. `journal.engine.parquet.worker` is the other end, and `conversion_messages` has what both say.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Protocol

import msgspec

from journal.engine.parquet.conversion_messages import Answer, Request, joined_answer, lines_of_request
from journal.engine.workers.process import WorkerEndedError, WorkerFailedError, WorkerProcess
from journal.settings.server import ConversionConfig
from journal.settings.values import ConfigurationError
from shards.delta.actions import TableRequest, TableVersion
from shards.errors import ConversionFailedError, CorruptionError
from shards.extras import install_command
from shards.segments.conversion_plan import GatheredFiles, SharedPlan

_WORKER = "the process that writes Parquet files"


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
