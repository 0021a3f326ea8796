"""Parts of the engine that work at once, without a thread or process: in a simulation all steps have one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import outcome
import trio

from journal.engine.wal.disk import DirectOutcome, DirectWrite, Done, Work
from shards.delta.actions import TableRequest, TableVersion
from shards.delta.table import update_table
from shards.errors import ConversionFailedError
from shards.parquet.collected_rows import ROW_GROUP_BYTES
from shards.parquet.shared_file import write_shared_files
from shards.parquet.shared_reading import SharedReader
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from tests.shards.batches import NOW_US
from tests.simulation.delta_log import JsonLog


class WorkOnlyDisk:
    """A `Disk` without direct writes: simulated files have no descriptors."""

    may_write = False

    def write(self, write: DirectWrite, done: Callable[[DirectOutcome], None]) -> bool:
        """Refuse it."""
        return False


class InlineDisk(WorkOnlyDisk):
    """A `Disk` that does the work at once in the calling thread: for deterministic simulations."""

    def submit(self, work: Work, done: Done) -> None:
        """Do the work now and report it in the next iteration of the event loop."""
        trio.lowlevel.current_trio_token().run_sync_soon(done, outcome.capture(work))

    def close(self) -> None:
        """Do nothing."""


class InlineConverter:
    """A `ParquetConverter` inside this process, for any file system: for tests and simulations.

    Args:
        files: The file system.
        now_us: Returns the time of commits to the Delta table, in microseconds since 1970.
        row_group_bytes: Size of the row groups.
    """

    def __init__(
        self, files: FileSystem, now_us: Callable[[], int] = lambda: NOW_US, row_group_bytes: int = ROW_GROUP_BYTES
    ) -> None:
        self.files = files
        self._now_us = now_us
        self._row_group_bytes = row_group_bytes

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        try:
            return await trio.to_thread.run_sync(self._gather, plan)
        except OSError as error:
            raise ConversionFailedError(f"{error.filename or plan.out_prefix}: {error.strerror or error}") from error

    def _gather(self, plan: SharedPlan) -> GatheredFiles:
        return write_shared_files(self.files, plan, row_group_bytes=self._row_group_bytes)

    async def shards_in(self, path: str) -> list[int]:
        return await trio.to_thread.run_sync(self._shards_in, path)

    def _shards_in(self, path: str) -> list[int]:
        with SharedReader(self.files, path) as reader:
            return reader.shard_ids()

    async def update_table(self, request: TableRequest) -> TableVersion:
        try:
            return await trio.to_thread.run_sync(self._update_table, request)
        except OSError as error:
            raise ConversionFailedError(f"{error.filename or request.root}: {error.strerror or error}") from error

    def _update_table(self, request: TableRequest) -> TableVersion:
        return update_table(self.files, request, JsonLog(self.files), self._now_us() // 1000)

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()


async def run_inline(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """In place of `trio.to_thread.run_sync`: the clock of a test, which jumps while all tasks wait, does not move."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)
