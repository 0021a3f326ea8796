"""The sink ``postgresql``: rows are written into a table by COPY, with the queue's position in the same transaction.

`sink` is the sink of a driver, `connection` its connection, `table` the database commands, `copy_text` the encoding of
values, `address` the server's address. These need psycopg, so they are imported when a sink is opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker_adapter.sinks.kinds import SinkKind
from broker_adapter.sinks.postgresql.settings import PostgresqlSettings, check
from broker_adapter.sinks.sink import Sink, SinkContext
from journal.settings.values import ConfigurationError
from shards.extras import install_command

__all__ = ["KIND"]


@asynccontextmanager
async def open_postgresql_sink(settings: PostgresqlSettings, context: SinkContext) -> AsyncIterator[Sink]:
    """Open the sink; nothing is connected yet.

    Raises:
        ConfigurationError: psycopg is not installed, or the URL is not valid.
    """
    try:
        from broker_adapter.sinks.postgresql.sink import PostgresqlSink
    except ImportError as error:
        raise ConfigurationError(f"the sink postgresql needs psycopg ({error}): {install_command('sinks')}") from error
    sink = PostgresqlSink(settings, context)
    try:
        yield sink
    finally:
        sink.close()


KIND: Final = SinkKind(settings=PostgresqlSettings, open=open_postgresql_sink, check=check)
