"""Types of settings: kinds of values, units, bounds, and their form in files and messages.

The settings of a program are defined by its own classes (the server's in `journal.settings.server`), and read by
`journal.settings.file`. An attribute's type is its kind; its ``metadata`` has its unit and bounds (`within`,
`bytes_within`). The classes check nothing themselves, so that tests may use values that files may not.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

import attrs

from journal.net.address import parse_address
from journal.net.origins import ANY_ORIGIN, parse_origin
from shards.errors import InvalidNameError, StorageError
from shards.topics.topic_filters import validate_filter

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}


class ConfigurationError(StorageError):
    """A settings file or an override cannot be used; each line of the message names one setting and what is allowed."""

    code = "configuration"


@attrs.frozen
class Kind:
    """A kind of values; it annotates the type of an attribute.

    Attributes:
        parse: Converts from TOML to the value; raises `TypeError` or `ValueError` with the words after "x = 1": "is not
            a size".
        allowed: Description of the allowed values for error messages; empty if the bounds are sufficient.
        show: Formats a number of this kind.
    """

    parse: Callable[[object], Any]
    allowed: str = ""
    show: Callable[[int], str] = str


def parse_size(value: object) -> int:
    """Return bytes from an integer or a text like ``"256 MiB"``.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB|TiB)", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a size; write a whole number of bytes or a text like "256 MiB" (B to TiB)')
    size = Fraction(match[1]) * _UNITS[match[2]]
    if size.denominator != 1:
        raise ValueError("is not a whole number of bytes")
    return size.numerator


def format_size(size_bytes: int) -> str:
    """Write bytes in the largest unit that needs no fraction: ``256 MiB``."""
    for unit, factor in reversed(_UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def parse_text(value: object) -> str:
    """Return the value if it is a text.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, str):
        raise TypeError("is not a text")
    return value


def parse_filters(value: object) -> tuple[str, ...]:
    """Return topic filters, in which ``%u`` and ``%c`` are placeholders for names.

    Raises:
        TypeError, ValueError: They are not valid.
    """
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("names no topic filter")
    for each in values:
        try:
            # A placeholder is not part of the grammar of filters.
            validate_filter(re.sub("%[uc]", "x", parse_text(each)))
        except InvalidNameError as error:
            raise ValueError("is not a topic filter") from error
    return tuple(values)


def _parse_address(value: object) -> str:
    address = parse_text(value)
    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError("is not an address") from error
    return address


Size = Annotated[int, Kind(parse_size, show=format_size)]
"""Bytes; in a file an integer or a text such as ``"256 MiB"``."""

Text = Annotated[str, Kind(parse_text, "any text")]


def _parse_places(value: object) -> tuple[str, ...]:
    # Not looked into here: the error of a setting shows its value, and an address may contain a password by mistake.
    return tuple(parse_text(each) for each in (value if isinstance(value, list) else [value]) if each != "")


StorePlaces = Annotated[
    tuple[str, ...],
    Kind(
        _parse_places,
        '"s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "postgresql://host/database#name" or '
        '"file:///directory"; a list of two for the log and the files; [] for a server on its own',
    ),
]
"""The addresses of a log store (see `journal.logstore.stores.addresses`), and of its files if they lie elsewhere."""

File = Annotated[str, Kind(parse_text, 'the path of a file, or "" for none')]


def _parse_origins(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    try:
        return tuple(each if each == ANY_ORIGIN else parse_origin(parse_text(each)) for each in values)
    except ValueError as error:
        raise ValueError("names something that is not an origin") from error


Address = Annotated[str, Kind(_parse_address, '"host:port", or "" for off')]
"""``host:port``, ``[ipv6]:port``, or empty for "do not listen"; port 0 takes any free one."""

OriginList = Annotated[
    tuple[str, ...],
    Kind(_parse_origins, 'a list of origins such as "https://console.example.com", or "*" for all'),
]


def _parse_url(value: object) -> str:
    url = parse_text(value)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("is not a URL of a web service") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("is not a URL of a web service")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has credentials in it; set them as settings of their own")
    return url


def _parse_optional_url(value: object) -> str:
    return _parse_url(value) if value != "" else ""


Url = Annotated[str, Kind(_parse_url, "a URL that begins with http:// or https://")]
"""Address of a web service."""

OptionalUrl = Annotated[str, Kind(_parse_optional_url, 'a URL that begins with http:// or https://, or "" for none')]


class Permission(enum.StrEnum):
    """The effect of a rule, or of no matching rule."""

    ALLOW = "allow"
    DENY = "deny"


class LogLevel(enum.StrEnum):
    """The lowest level of messages that are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    """Lines for people or for programs."""

    CONSOLE = "console"
    JSON = "json"


@attrs.frozen
class LogConfig:
    """The log of a program, on standard error."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.CONSOLE


def within(unit: str, at_least: int, at_most: int) -> dict[str, Any]:
    """Metadata of a number."""
    return {"unit": unit, "bounds": (at_least, at_most)}


def bytes_within(at_least: int, at_most: int) -> dict[str, Any]:
    """Metadata of a `Size`."""
    return within("bytes", at_least, at_most)


def allowed(attribute: attrs.Attribute[Any]) -> str:
    """The allowed values of a setting, as in error messages and the comments in the files under ``conf/``."""
    annotation = _without_none(attribute.type)
    kind = kind_of(annotation)
    if kind is not None and kind.allowed:
        return kind.allowed
    if is_choice(annotation):
        return " or ".join(f'"{member.value}"' for member in annotation)
    if "bounds" not in attribute.metadata:
        return "true or false"
    low, high = attribute.metadata["bounds"]
    show = str if kind is None else kind.show
    return f"{show(low)} to {show(high)}"


def kind_of(annotation: Any) -> Kind | None:
    """The kind that annotates a type, None if there is none."""
    return next((found for found in getattr(annotation, "__metadata__", ()) if isinstance(found, Kind)), None)


def _without_none(annotation: Any) -> Any:
    """The type of a setting that may be left out without having a default."""
    if not isinstance(annotation, types.UnionType):
        return annotation
    (inner,) = (each for each in get_args(annotation) if each is not types.NoneType)
    return inner


def is_choice(annotation: Any) -> bool:
    """Whether a type is a choice of values that a file names by their texts."""
    return isinstance(annotation, type) and issubclass(annotation, enum.StrEnum)
