"""Settings of the sink ``postgresql``."""

from __future__ import annotations

import re
from typing import Annotated, Final

import attrs
from attrs import field

from broker_adapter.sinks.setting_kinds import File, timeout_s
from journal.settings.values import ConfigurationError, Kind, parse_text

_NAME: Final = r'[^."\x00]{1,63}'
_TABLE: Final = re.compile(rf"{_NAME}(\.{_NAME})?")


def _parse_table(value: object) -> str:
    table = parse_text(value)
    if _TABLE.fullmatch(table) is None:
        raise ValueError("is not a table name")
    return table


# Any text: an error of this type would show the value, which may contain a password; `check` validates it instead.
Url = Annotated[str, Kind(parse_text, 'a text such as "postgresql://user@host/database"')]
Table = Annotated[str, Kind(_parse_table, '"table" or "schema.table", as PostgreSQL shows it, without quotes')]


@attrs.frozen
class PostgresqlSettings:
    """Settings of the sink ``postgresql``.

    Attributes:
        url: URL or ``key=value`` pairs for libpq; missing parts come from libpq's environment variables.
        table: Table for the rows. It must exist, with the columns that the bridge projects.
        password_file: File with the password.
        timeout_s: Longest time for the server to store one batch, or to accept a connection, in seconds.
    """

    url: Url = field(repr=False)
    table: Table
    password_file: File = ""
    timeout_s: int = timeout_s()


def check(settings: PostgresqlSettings) -> tuple[str, ...]:
    """Problems of settings that are valid each by itself."""
    try:
        from broker_adapter.sinks.postgresql.address import read_url
    except ImportError:
        return ()  # opening the sink reports what is missing
    try:
        given = read_url(settings.url)
    except ConfigurationError as error:
        return (str(error),)
    if settings.password_file and "password" in given:
        return ("url has a password and password_file is given as well; give one of them",)
    return ()
