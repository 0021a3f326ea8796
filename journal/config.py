"""The server's settings: their defaults, units and bounds, and how a TOML file becomes a `ServerConfig`.

``conf/journal.toml`` shows every setting with its default; a test keeps the two the same. A setting is added here and
there alone, and there are at most forty. What the settings do is the business of those who read them.

The classes check nothing themselves, so a test may build an engine with sizes that no file may name.
"""

from __future__ import annotations

import difflib
import enum
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, Any, NoReturn

import attrs
import cattrs
from attrs import AttrsInstance, field
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError

from shards.errors import StorageError
from shards.model import Mode

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

Size = Annotated[int, "bytes"]
"""Bytes; in a file an integer or a text such as ``"256 MiB"``."""

Address = Annotated[str, "address"]
"""``host:port``, ``[ipv6]:port``, or empty for "do not listen"; port 0 takes any free one."""

_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}


class ConfigurationError(StorageError):
    """A settings file or an override cannot be used; each line of the message names one setting and what is allowed."""

    code = "configuration"


class LogLevel(enum.StrEnum):
    """The least grave messages that are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    """Lines for people or for programs."""

    CONSOLE = "console"
    JSON = "json"


def _within(unit: str, at_least: int, at_most: int) -> dict[str, Any]:
    return {"unit": unit, "bounds": (at_least, at_most)}


def _bytes(at_least: int, at_most: int) -> dict[str, Any]:
    return _within("bytes", at_least, at_most)


@attrs.frozen
class ListenConfig:
    """Where the server listens."""

    tcp: Address = "127.0.0.1:7420"
    websocket: Address = "127.0.0.1:7421"
    http: Address = "127.0.0.1:7422"


@attrs.frozen
class StorageConfig:
    """Files, buffers and how often what is done with them."""

    journal_file_bytes: Size = field(default=128 * MIB, metadata=_bytes(1 * MIB, 4 * GIB))
    journal_budget_bytes: Size = field(default=512 * MIB, metadata=_bytes(2 * MIB, 1 * TIB))
    segment_bytes: Size = field(default=256 * MIB, metadata=_bytes(64 * KIB, 64 * GIB))
    tail_budget_bytes: Size = field(default=256 * MIB, metadata=_bytes(1 * MIB, 1 * TIB))
    memory_budget_bytes: Size = field(default=1 * GIB, metadata=_bytes(1 * MIB, 16 * TIB))
    memory_segment_bytes: Size = field(default=8 * MIB, metadata=_bytes(64 * KIB, 1 * GIB))
    disk_reserve_bytes: Size = field(default=256 * MIB, metadata=_bytes(0, 16 * TIB))
    page_cache_bytes: Size = field(default=2 * GIB, metadata=_bytes(0, 16 * TIB))
    flush_interval_ms: int = field(default=1_000, metadata=_within("milliseconds", 1, 60_000))
    retention_interval_s: int = field(default=10, metadata=_within("seconds", 1, 86_400))
    receive_buffer_bytes: Size = field(default=1 * MIB, metadata=_bytes(4 * KIB, 16 * MIB))
    receive_buffers: int = field(default=64, metadata=_within("buffers", 1, 100_000))


@attrs.frozen
class ShardsConfig:
    """What a shard gets that names nothing else."""

    default_mode: Mode = Mode.FILE
    max_age_s: int = field(default=0, metadata=_within("seconds", 0, 3_153_600_000))
    max_bytes: Size = field(default=0, metadata=_bytes(0, 1_024 * TIB))
    max_records: int = field(default=0, metadata=_within("records", 0, 1 << 53))
    memory_max_bytes: Size = field(default=64 * MIB, metadata=_bytes(0, 16 * TIB))
    max_shards: int = field(default=1_000_000, metadata=_within("shards", 1, 100_000_000))


@attrs.frozen
class SealingConfig:
    """When closed log segments become Parquet files."""

    enabled: bool = True
    min_bytes: Size = field(default=4 * MIB, metadata=_bytes(0, 64 * GIB))
    max_age_s: int = field(default=3_600, metadata=_within("seconds", 0, 3_153_600_000))


@attrs.frozen
class LimitsConfig:
    """What one peer can make the server hold."""

    max_connections: int = field(default=10_000, metadata=_within("connections", 1, 1_000_000))
    max_frame_bytes: Size = field(default=16 * MIB, metadata=_bytes(64 * KIB, 1 * GIB))
    max_batch_bytes: Size = field(default=8 * MIB, metadata=_bytes(4 * KIB, 512 * MIB))
    max_inflight_bytes_per_connection: Size = field(default=32 * MIB, metadata=_bytes(64 * KIB, 16 * GIB))
    max_output_bytes_per_connection: Size = field(default=16 * MIB, metadata=_bytes(64 * KIB, 16 * GIB))
    max_subscriptions_per_connection: int = field(default=1_000, metadata=_within("subscriptions", 1, 1_000_000))
    max_handles_per_connection: int = field(default=200_000, metadata=_within("handles", 1, 100_000_000))
    max_wait_ms: int = field(default=60_000, metadata=_within("milliseconds", 0, 3_600_000))
    hello_timeout_s: int = field(default=10, metadata=_within("seconds", 1, 3_600))


@attrs.frozen
class LogConfig:
    """What the server says of itself, on standard error."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.CONSOLE


@attrs.frozen
class ServerConfig:
    """Every setting of a server."""

    listen: ListenConfig = ListenConfig()
    storage: StorageConfig = StorageConfig()
    shards: ShardsConfig = ShardsConfig()
    sealing: SealingConfig = SealingConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()


_SECTION_CLASSES: dict[str, type[AttrsInstance]] = {
    "listen": ListenConfig,
    "storage": StorageConfig,
    "shards": ShardsConfig,
    "sealing": SealingConfig,
    "limits": LimitsConfig,
    "log": LogConfig,
}

SECTIONS: dict[str, dict[str, attrs.Attribute[Any]]] = {
    name: attrs.fields_dict(attrs.resolve_types(section_class)) for name, section_class in _SECTION_CLASSES.items()
}
"""All settings by section and name. ``metadata`` holds ``unit`` and ``bounds`` of those that have them."""

_RELATIONS = (
    ("storage.journal_budget_bytes", 2, 0, "storage.journal_file_bytes", "one file is written while one is recycled"),
    ("storage.journal_file_bytes", 1, 4 * KIB, "limits.max_batch_bytes", "a batch lies in one journal file"),
    ("storage.memory_budget_bytes", 1, 0, "storage.memory_segment_bytes", "it holds at least one segment"),
    ("limits.max_frame_bytes", 1, 4 * KIB, "limits.max_batch_bytes", "a batch travels in one frame"),
    ("limits.max_inflight_bytes_per_connection", 1, 0, "limits.max_frame_bytes", "a frame is received whole"),
    ("limits.max_output_bytes_per_connection", 1, 0, "limits.max_frame_bytes", "a frame is sent whole"),
)
"""Rules between settings: the first is at least ``factor`` times the second plus ``room`` bytes, and why."""


def load_config(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, object] = {},
) -> ServerConfig:
    """Read a settings file.

    Args:
        path: A TOML file; None takes the defaults alone.
        overrides: Values that win over the file's, by dotted name: ``{"storage.segment_bytes": "1 GiB"}``.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown, of a wrong kind or out of bounds. The
            message has one line for each such setting.
    """
    loader = _Loader("the defaults" if path is None else os.fspath(path), overrides)
    values = {} if path is None else _read(os.fspath(path))
    return loader.load(values)


def parse_address(address: str) -> tuple[str, int] | None:
    """Part ``host:port``; None for the empty address that stands for "do not listen".

    Raises:
        ValueError: It is neither.
    """
    if not address:
        return None
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):(\d{1,5})", address)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"{address!r} is no address")
    return match[1] or match[2], int(match[3])


def parse_size(value: object) -> int:
    """Return bytes from an integer or a text like ``"256 MiB"``.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB|TiB)", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is no size; write a whole number of bytes or a text like "256 MiB" (B, KiB, MiB, GiB, TiB)')
    size = Fraction(match[1]) * _UNITS[match[2]]
    if size.denominator != 1:
        raise ValueError("is no whole number of bytes")
    return size.numerator


def format_size(size_bytes: int) -> str:
    """Write bytes in the largest unit that needs no fraction: ``256 MiB``."""
    for unit, factor in reversed(_UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def allowed(attribute: attrs.Attribute[Any]) -> str:
    """Say what a setting may be, as the error messages and the comments in ``conf/journal.toml`` put it."""
    if attribute.type == Address:
        return '"host:port", or "" for off'
    if isinstance(attribute.type, type) and issubclass(attribute.type, enum.StrEnum):
        return " or ".join(f'"{member.value}"' for member in attribute.type)
    if "bounds" not in attribute.metadata:
        return "true or false"
    low, high = attribute.metadata["bounds"]
    if attribute.type == Size:
        return f"{format_size(low)} to {format_size(high)}"
    return f"{low} to {high}"


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; name an existing settings file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error


class _Loader:
    """Puts one file and its overrides together, and words what is wrong with them."""

    def __init__(self, source: str, overrides: Mapping[str, object]) -> None:
        self._source = source
        self._overrides = overrides
        self._problems: list[str] = []

    def load(self, values: dict[str, object]) -> ServerConfig:
        merged = self._merge(values)
        try:
            config = _converter.structure(merged, ServerConfig)
        except ClassValidationError as error:
            self._collect(error, merged)
            self._give_up(error)
        self._check_bounds(config, merged)
        self._check_relations(config)
        if self._problems:
            self._give_up(None)
        return config

    def _merge(self, values: dict[str, object]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for section, settings in values.items():
            if isinstance(settings, dict):
                merged[section] = dict(settings)
            elif section in SECTIONS:
                self._problems.append(f"{self._source}: {section} = {settings!r} must be a section: [{section}]")
            else:
                self._problems.append(f"{self._source}: {self._unknown(section, SECTIONS)}")
        for name, value in self._overrides.items():
            section, dot, key = name.partition(".")
            if dot:
                merged.setdefault(section, {})[key] = value
            else:
                self._problems.append(f"override {name}: {name} is no dotted name; write it like log.level")
        return merged

    def _collect(self, error: ClassValidationError, merged: dict[str, Any]) -> None:
        """Word cattrs' tree of errors: whole sections at its top, settings below."""
        for problem, note in error.group_exceptions()[0]:
            if isinstance(problem, ClassValidationError):
                self._collect_section(problem, note.name, merged[note.name])
        for problem in error.group_exceptions()[1]:
            if isinstance(problem, ForbiddenExtraKeysError):
                for section in sorted(problem.extra_fields):
                    source = self._source_of(f"{section}.{next(iter(merged[section]), '')}")
                    self._problems.append(f"{source}: {self._unknown(f'[{section}]', SECTIONS)}")

    def _collect_section(self, error: ClassValidationError, section: str, settings: dict[str, object]) -> None:
        attributes = SECTIONS[section]
        for problem, note in error.group_exceptions()[0]:
            self._add(section, note.name, settings[note.name], str(problem))
        for problem in error.group_exceptions()[1]:
            if isinstance(problem, ForbiddenExtraKeysError):
                for key in sorted(problem.extra_fields):
                    source = self._source_of(f"{section}.{key}")
                    found = f"{key} = {settings[key]!r}"
                    self._problems.append(f"{source}: [{section}] {self._unknown(found, attributes, key)}")

    def _check_bounds(self, config: ServerConfig, merged: dict[str, Any]) -> None:
        for section, attributes in SECTIONS.items():
            for key, attribute in attributes.items():
                value = getattr(getattr(config, section), key)
                low, high = attribute.metadata.get("bounds", (value, value))
                if not low <= value <= high:
                    self._add(section, key, merged[section][key], "is out of bounds")

    def _check_relations(self, config: ServerConfig) -> None:
        for name, factor, room, other_name, why in _RELATIONS:
            value, other = attrgetter(name, other_name)(config)
            if value < (needed := factor * other + room):
                self._problems.append(
                    f"{self._source}: {name} = {format_size(value)} is too small, as {why}: with {other_name} = "
                    f"{format_size(other)} it must be at least {format_size(needed)}; raise it or lower the other"
                )

    def _add(self, section: str, key: str, value: object, problem: str) -> None:
        attribute = SECTIONS[section][key]
        self._problems.append(
            f"{self._source_of(f'{section}.{key}')}: [{section}] {key} = {value!r} {problem}; "
            f"allowed: {allowed(attribute)}"
        )

    def _source_of(self, name: str) -> str:
        return f"override {name}" if name in self._overrides else self._source

    def _unknown(self, found: str, known: Iterable[str], name: str | None = None) -> str:
        names = sorted(known)
        close = difflib.get_close_matches((name or found).strip("[]"), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
        return f"{found} is unknown; {hint}"

    def _give_up(self, cause: Exception | None) -> NoReturn:
        raise ConfigurationError("\n".join(self._problems)) from cause


def _structure_int(value: object, _: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("is no whole number")
    return value


def _structure_bool(value: object, _: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("is neither true nor false")
    return value


def _structure_address(value: object, _: object) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text")
    try:
        parse_address(value)
    except ValueError as error:
        raise ValueError("is no address") from error
    return value


def _structure_choice(value: object, kind: type[enum.StrEnum]) -> enum.StrEnum:
    for member in kind:
        if member == value:
            return member
    raise ValueError("is not one of the choices")


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
_converter.register_structure_hook(int, _structure_int)
_converter.register_structure_hook(bool, _structure_bool)
_converter.register_structure_hook_func(lambda kind: kind == Size, lambda value, _: parse_size(value))
_converter.register_structure_hook_func(lambda kind: kind == Address, _structure_address)
for _kind in (Mode, LogLevel, LogFormat):
    _converter.register_structure_hook(_kind, _structure_choice)
