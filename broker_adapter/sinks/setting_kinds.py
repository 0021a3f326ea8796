"""Types of settings that several sinks use, and reading of passwords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from attrs import field

from broker_adapter.sinks.errors import SinkUnavailableError
from journal.net.address import parse_address
from journal.settings.values import Kind, parse_text, within

_MAX_SECRET_CHARACTERS: Final = 64 * 1024


def _parse_texts(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise ValueError("is not a table of texts")
    return dict(value)


def _parse_server_address(value: object) -> str:
    address = parse_text(value)
    try:
        parsed = parse_address(address)
    except ValueError as error:
        raise ValueError("is not an address") from error
    if parsed is None or parsed[1] == 0:
        raise ValueError("is not an address of a server")
    return address


Text = Annotated[str, Kind(parse_text, "any text")]
File = Annotated[str, Kind(parse_text, 'the path of a file, or "" for none')]
ServerAddress = Annotated[str, Kind(_parse_server_address, '"host:port"')]
Texts = Annotated[Mapping[str, str], Kind(_parse_texts, 'a table of texts such as { name = "value" }')]


def timeout_s() -> Any:
    """The setting that all sinks have: the longest time of one call, in seconds."""
    return field(default=30, metadata=within("seconds", 1, 3_600))


def check_secret(name: str, text: str, path: str) -> tuple[str, ...]:
    """Problems of a secret that may be given as text or in a file."""
    return (f"{name} and {name}_file are both given; give one of them",) if text and path else ()


def read_secret(name: str, text: str, path: str) -> str:
    """A secret: the text, or the content of the file without the line break at its end.

    Files are read at each `check` of a sink, so a changed password needs no restart.

    Raises:
        SinkUnavailableError: The file cannot be read. The message has its name, and nothing of its content.
    """
    if not path:
        return text
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MAX_SECRET_CHARACTERS).rstrip("\r\n")
    except OSError as error:
        raise SinkUnavailableError(f"{name}_file = {path!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # The error's own text would show bytes of the secret.
        raise SinkUnavailableError(f"{name}_file = {path!r} is not UTF-8 text") from None
