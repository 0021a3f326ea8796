"""What may be set for the sink ``postgresql``."""

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
        raise ValueError("is no table")
    return table


# Any text, as what is wrong with a value is said with the value, and here it may hold a password; `check` knows more.
Url = Annotated[str, Kind(parse_text, 'a text such as "postgresql://user@host/database"')]
Table = Annotated[str, Kind(_parse_table, '"table" or "schema.table", as PostgreSQL shows it, without quotes')]


@attrs.frozen
class PostgresqlSettings:
    """Settings of the sink ``postgresql``.

    Attributes:
        url: As libpq takes it, a URL or ``key=value`` pairs; what it leaves out comes from libpq's environment.
        table: Where rows go. It must be there, with the columns that the bridge projects.
        password_file: A file that holds the password.
        timeout_s: How long the server may take for one batch, or to let us in.
    """

    url: Url = field(repr=False)
    table: Table
    password_file: File = ""
    timeout_s: int = timeout_s()


def check(settings: PostgresqlSettings) -> tuple[str, ...]:
    """Tell what is wrong with settings that are each for themselves as they should be."""
    try:
        from broker_adapter.sinks.postgresql.address import read_url
    except ImportError:
        return ()  # opening it says what is missing
    try:
        given = read_url(settings.url)
    except ConfigurationError as error:
        return (str(error),)
    if settings.password_file and "password" in given:
        return ("url has a password and password_file is given as well; give one of them",)
    return ()
