"""Parts of the engine that work at once, without a thread or process: in a simulation all steps have one order."""

from __future__ import annotations

from collections.abc import Callable

import outcome
import trio

from journal.engine.wal.disk import Done, Work
from shards.delta.actions import TableRequest, TableVersion
from shards.errors import ConversionFailedError
from shards.segments.conversion_plan import ConversionPlan, GatheredFiles, SealedFile, SharedPlan


class InlineDisk:
    """A `Disk` that does the work at once in the calling thread: for deterministic simulations."""

    def submit(self, work: Work, done: Done) -> None:
        """Do the work now and report it in the next iteration of the event loop."""
        trio.lowlevel.current_trio_token().run_sync_soon(done, outcome.capture(work))

    def close(self) -> None:
        """Do nothing."""


class InlineConverter:
    """A `ParquetConverter` inside this process, for any file system: for tests and simulations.

    Args:
        write: Writes one plan; blocks.
        gather: Writes the shared files of a plan; blocks.
        look_into: Returns the ids of the shards in a shared file; blocks.
        table: Brings the Delta table to a state; blocks.
    """

    def __init__(
        self,
        write: Callable[[ConversionPlan], SealedFile],
        gather: Callable[[SharedPlan], GatheredFiles] | None = None,
        look_into: Callable[[str], list[int]] | None = None,
        table: Callable[[TableRequest], TableVersion] | None = None,
    ) -> None:
        self._write = write
        self._gather = gather
        self._look_into = look_into
        self._table = table

    async def convert(self, plan: ConversionPlan) -> SealedFile:
        try:
            return await trio.to_thread.run_sync(self._write, plan)
        except OSError as error:
            raise ConversionFailedError(f"{error.filename or plan.out_path}: {error.strerror or error}") from error

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        assert self._gather is not None, "no test gathers here"
        try:
            return await trio.to_thread.run_sync(self._gather, plan)
        except OSError as error:
            raise ConversionFailedError(f"{error.filename or plan.out_prefix}: {error.strerror or error}") from error

    async def shards_in(self, path: str) -> list[int]:
        assert self._look_into is not None, "no test rewrites shared files here"
        return await trio.to_thread.run_sync(self._look_into, path)

    async def update_table(self, request: TableRequest) -> TableVersion:
        assert self._table is not None, "no test has a Delta table here"
        try:
            return await trio.to_thread.run_sync(self._table, request)
        except OSError as error:
            raise ConversionFailedError(f"{error.filename or request.root}: {error.strerror or error}") from error

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()
