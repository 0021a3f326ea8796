"""Settings of the sink ``redis``."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

import attrs
from attrs import field

from broker_adapter.sinks.setting_kinds import File, Text, check_secret, timeout_s
from journal.settings.values import Kind, parse_text, within

DEFAULT_PORT: Final = 6379
_STREAM: Final = re.compile(r"[^{}]+|[^{}]*\{[^{}]+\}[^{}]*", re.DOTALL)


def _parse_stream(value: object) -> str:
    stream = parse_text(value)
    if _STREAM.fullmatch(stream) is None:
        raise ValueError("is not a stream name")
    return stream


# Any text: an error of this type would show the value, which may contain a password; `check` validates it instead.
Url = Annotated[str, Kind(parse_text, 'a text such as "redis://host:6379/0" or "rediss://host"')]
Stream = Annotated[str, Kind(_parse_stream, 'a text that is not empty, with braces only around one hash tag: "{tag}"')]


@attrs.frozen
class RedisSettings:
    """Settings of the sink ``redis``.

    Attributes:
        url: Address of the server, ``rediss://`` for TLS, with the number of the database at its end.
        stream: Key of the stream that rows are added to.
        max_length: Approximate number of entries to keep; 0 keeps all.
        user: User of Redis's access control lists; the default user if it is empty.
        password: Password of the user.
        password_file: File with the password, instead of ``password``.
        ca_file: CA certificates for the server's certificate; those of the system if it is empty.
        timeout_s: Longest time for the server to store one batch, or to accept a connection, in seconds.
    """

    url: Url = field(repr=False)
    stream: Stream
    max_length: int = field(default=0, metadata=within("entries", 0, 1 << 40))
    user: Text = ""
    password: Text = field(default="", repr=False)
    password_file: File = ""
    ca_file: File = ""
    timeout_s: int = timeout_s()


@attrs.frozen(slots=True)
class Address:
    """Address of a server.

    Attributes:
        database: Number of the database.
    """

    host: str
    port: int
    database: int
    uses_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.uses_tls else 'redis'}://{host}:{self.port}/{self.database}"


def read_url(url: str) -> Address:
    """Parse the setting ``url``.

    Raises:
        ValueError: It is not valid. The message does not show it, because it may contain a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url is not a URL, or its port is not valid; write it like redis://host:6379/0") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("url has credentials in it; give them as user and password_file")
    database = re.fullmatch(r"/?|/(\d{1,9})", parts.path)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0 or database is None:
        raise ValueError("url is not an address of a Redis server; write it like redis://host:6379/0 or rediss://host")
    if parts.query or parts.fragment:
        raise ValueError("url has something after the number of the database; use other settings of the sink for it")
    return Address(parts.hostname, port or DEFAULT_PORT, int(database[1] or 0), parts.scheme == "rediss")


def check(settings: RedisSettings) -> tuple[str, ...]:
    """Problems of settings that are valid each by itself."""
    problems = [*check_secret("password", settings.password, settings.password_file)]
    if settings.user and not (settings.password or settings.password_file):
        problems.append(f"user = {settings.user!r} is given without a password; give password or password_file")
    try:
        address = read_url(settings.url)
    except ValueError as error:
        return (*problems, str(error))
    if settings.ca_file and not address.uses_tls:
        problems.append("ca_file is given, but url is not rediss")
    return tuple(problems)
