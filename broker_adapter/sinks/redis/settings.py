"""What may be set for the sink ``redis``."""

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
        raise ValueError("is no stream")
    return stream


# Any text, as what is wrong with a value is said with the value, and here it may hold a password; `check` knows more.
Url = Annotated[str, Kind(parse_text, 'a text such as "redis://host:6379/0" or "rediss://host"')]
Stream = Annotated[str, Kind(_parse_stream, 'a text that is not empty, with braces only around one hash tag: "{tag}"')]


@attrs.frozen
class RedisSettings:
    """Settings of the sink ``redis``.

    Attributes:
        url: The server, ``rediss://`` for TLS, with the number of the database behind it.
        stream: Key of the stream that rows are added to.
        max_length: About how many entries it keeps; 0 keeps all.
        user: Of Redis's access control lists; the default user if it is empty.
        password: Of the user.
        password_file: A file that holds it instead.
        ca_file: Authorities that may have signed the server's certificate; those of the system if it is empty.
        timeout_s: How long the server may take for one batch, or to let us in.
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
    """Where a server is.

    Attributes:
        database: Its number.
    """

    host: str
    port: int
    database: int
    uses_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.uses_tls else 'redis'}://{host}:{self.port}/{self.database}"


def read_url(url: str) -> Address:
    """Read the setting ``url``.

    Raises:
        ValueError: It is none. The message does not show it, as it may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url is no URL, or its port is none; write it like redis://host:6379/0") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("url has credentials in it; give them as user and password_file")
    database = re.fullmatch(r"/?|/(\d{1,9})", parts.path)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0 or database is None:
        raise ValueError("url is no address of a Redis server; write it like redis://host:6379/0 or rediss://host")
    if parts.query or parts.fragment:
        raise ValueError("url has something behind the number of the database; settings of ours stand for that")
    return Address(parts.hostname, port or DEFAULT_PORT, int(database[1] or 0), parts.scheme == "rediss")


def check(settings: RedisSettings) -> tuple[str, ...]:
    """Tell what is wrong with settings that are each for themselves as they should be."""
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
