"""A driver's sink in PostgreSQL: use of the connection, and conversion of its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import psycopg
import trio

from broker_adapter.sinks.batch import Batch
from broker_adapter.sinks.errors import BatchRefusedError, DriverFencedError, SinkUnavailableError, UnwritableRowError
from broker_adapter.sinks.postgresql.address import read_url, show, with_defaults
from broker_adapter.sinks.postgresql.connection import Line
from broker_adapter.sinks.postgresql.copy_text import Writer, column_writer, copy_block
from broker_adapter.sinks.postgresql.settings import PostgresqlSettings
from broker_adapter.sinks.postgresql.table import (
    POSITIONS,
    Database,
    Standing,
    Table,
    UnfitError,
    ensure_positions,
    find_table,
    move_position,
    read_standing,
    refused_index,
    take_over,
    write_rows,
)
from broker_adapter.sinks.setting_kinds import read_secret
from broker_adapter.sinks.sink import Sink, SinkContext

# Classes of SQLSTATE about the rows: data, constraints, a trigger that raises, a view's check, sizes.
_REFUSALS: Final = ("22", "23", "P0", "44", "54")
_WAYS_OUT: Final = {
    "42501": "grant the bridge's user the missing privileges",
    "42P01": "was the table dropped or renamed?",
    "42703": "was the column dropped or renamed?",
    "25006": "give the primary's address, or several and target_session_attrs=read-write",
    "53100": "the server's disk is full",
    "53300": "raise max_connections or use a pooler",
}


class PostgresqlSink(Sink):
    """One connection; batches are written one at a time."""

    keeps_position = True

    def __init__(self, settings: PostgresqlSettings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._parameters = {
            **with_defaults(read_url(settings.url)),
            "client_encoding": "UTF8",
            "application_name": f"journal bridge {context.bridge}",
        }
        self._shown = f"{show(self._parameters)}, table {settings.table}"
        self._line: Line | None = None
        self._table: Table | None = None
        self._writers: tuple[tuple[str, Writer], ...] = ()

    async def check(self) -> None:
        async with self._calling():
            if self._line is None:
                self._line = await Line.connect(self._with_password())
            table, standing = await self._line.run(self._look)
            self._refuse_if_stale(standing)
        self._writers = tuple((name, column_writer(table.types[name])) for name in self._context.columns)
        self._table = table

    async def position(self) -> int | None:
        line, table = self._checked()
        queue_id, epoch, bridge = self._context.queue_id, self._context.epoch, self._context.bridge
        async with self._calling():
            standing = await line.run(partial(take_over, table=table, queue_id=queue_id, epoch=epoch, bridge=bridge))
            self._refuse_if_stale(standing)
        return standing.position

    async def write(self, batch: Batch) -> None:
        line, table = self._checked()
        columns = self._context.columns
        move = partial(
            move_position,
            queue_id=self._context.queue_id,
            epoch=self._context.epoch,
            first_offset=batch.first_offset,
            next_offset=batch.next_offset,
        )
        block = partial(copy_block, batch.rows, self._writers)
        async with self._calling():
            try:
                is_written = await line.run(
                    partial(write_rows, table=table, columns=columns, make_block=block, move=move)
                )
            except UnwritableRowError as error:
                raise BatchRefusedError(
                    f"{self._shown}: row {error.index} cannot be written: {error}", index=error.index
                ) from error
            except psycopg.Error as error:
                if (error.sqlstate or "").startswith(_REFUSALS):
                    raise self._refusal(error, table) from error
                raise
            if not is_written:
                standing = await line.run(partial(read_standing, table=table, queue_id=self._context.queue_id))
                self._refuse_if_stale(standing)
                raise SinkUnavailableError(
                    f"{self._shown}: {POSITIONS} has position {standing.position} and epoch {standing.epoch}, so epoch "
                    f"{self._context.epoch} cannot write from {batch.first_offset} on; read the position again"
                )

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the connection; the server rolls a transaction in progress back."""
        if self._line is not None:
            self._line.close()
        self._line = self._table = None

    def _look(self, database: Database) -> tuple[Table, Standing]:
        table = find_table(database, self._settings.table, self._context.columns, self._settings.timeout_s)
        ensure_positions(database, table)
        return table, read_standing(database, table, self._context.queue_id)

    def _with_password(self) -> dict[str, str]:
        if not self._settings.password_file:
            return self._parameters
        try:
            return {**self._parameters, "password": read_secret("password", "", self._settings.password_file)}
        except SinkUnavailableError as error:
            raise SinkUnavailableError(f"{self._shown}: {error}") from error

    def _checked(self) -> tuple[Line, Table]:
        if self._line is None or self._table is None:
            raise SinkUnavailableError(f"{self._shown}: there is no connection; call check first")
        return self._line, self._table

    def _refuse_if_stale(self, standing: Standing) -> None:
        if standing.epoch is not None and standing.epoch > self._context.epoch:
            raise DriverFencedError(
                f"{self._shown}: {POSITIONS} has seen epoch {standing.epoch} of the queue {self._context.queue_id} and "
                f"this driver has {self._context.epoch}: another one drives it now"
            )

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        """Limit the time of a call, and close the connection unless the call succeeded or was refused."""
        try:
            with trio.fail_after(self._settings.timeout_s):
                yield
        except (BatchRefusedError, DriverFencedError):
            raise
        except trio.TooSlowError:
            self.close()
            raise SinkUnavailableError(
                f"{self._shown}: no answer within timeout_s = {self._settings.timeout_s}"
            ) from None
        except (psycopg.Error, OSError, UnfitError) as error:
            self.close()
            raise SinkUnavailableError(f"{self._shown}: {_in_words(error)}") from error
        except BaseException:
            self.close()
            raise

    def _refusal(self, error: psycopg.Error, table: Table) -> BatchRefusedError:
        index = refused_index(error.diag.context, table)
        row = "a row" if index is None else f"row {index}"
        return BatchRefusedError(f"{self._shown}: {row} is refused: {_in_words(error)}", index=index)


def _in_words(error: Exception) -> str:
    """The text of an error in one line, with advice if there is any."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state is None or not isinstance(error, psycopg.Error):
        return " ".join(str(error).split())
    words = " ".join((error.diag.message_primary or str(error)).split())
    way_out = f"; {_WAYS_OUT[state]}" if state in _WAYS_OUT else ""
    return f"{words} (SQLSTATE {state}){way_out}"
