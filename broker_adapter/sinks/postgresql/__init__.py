"""The sink `postgresql`: rows into a table by COPY, together with the position of the queue in one transaction.

Here are the kind and its settings. `sink` is what a driver holds, `line` its connection, `table` what it asks of the
database, `copy_text` how values are written. All but this need psycopg, so they are imported when a sink is opened.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

import attrs
from attrs import field

from broker_adapter.sinks.kinds import SinkKind
from broker_adapter.sinks.sink import Sink, SinkContext
from journal.settings import ConfigurationError, Kind, parse_text, within

_EXAMPLE: Final = "postgresql://user@host/database"
_NAME: Final = r'[^."\x00]{1,63}'
_TABLE: Final = re.compile(rf"{_NAME}(\.{_NAME})?")


def _parse_table(value: object) -> str:
    table = parse_text(value)
    if _TABLE.fullmatch(table) is None:
        raise ValueError("is no table")
    return table


# Any text, as what is wrong with a value is said with the value, and here it may hold a password; `_check` knows more.
Url = Annotated[str, Kind(parse_text, f"a text such as {_EXAMPLE!r}")]
Table = Annotated[str, Kind(_parse_table, '"table" or "schema.table", as PostgreSQL shows it, without quotes')]
File = Annotated[str, Kind(parse_text, 'the path of a file, or "" for none')]


@attrs.frozen
class PostgresqlSettings:
    """Where rows go.

    Attributes:
        url: As libpq takes it, a URL or ``key=value`` pairs; what it leaves out comes from libpq's environment.
        table: It must be there, with the columns of the bridge.
        password_file: Holds the password in its first line; read for each connection.
        timeout_s: How long the server may take for one batch, or to let us in.
    """

    url: Url = field(repr=False)
    table: Table
    password_file: File = ""
    timeout_s: int = field(default=30, metadata=within("seconds", 1, 3_600))


def _check(settings: PostgresqlSettings) -> tuple[str, ...]:
    try:
        from broker_adapter.sinks.postgresql.address import read_url
    except ImportError:
        return ()  # `_open` says what is missing
    try:
        given = read_url(settings.url)
    except ConfigurationError as error:
        return (str(error),)
    if settings.password_file and "password" in given:
        return ("url has a password and password_file is given, too; leave one of them out",)
    return ()


@asynccontextmanager
async def _open(settings: PostgresqlSettings, context: SinkContext) -> AsyncIterator[Sink]:
    try:
        from broker_adapter.sinks.postgresql.sink import PostgresqlSink
    except ImportError as error:
        raise ConfigurationError(
            f"the sink postgresql needs psycopg, which cannot be imported ({error}); install journal-engine[sinks]"
        ) from error
    sink = PostgresqlSink(settings, context)
    try:
        yield sink
    finally:
        sink.close()


KIND: Final = SinkKind(settings=PostgresqlSettings, open=_open, check=_check)
