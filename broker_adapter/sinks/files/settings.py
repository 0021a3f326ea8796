"""Settings of the sink ``files``."""

from __future__ import annotations

import enum
import os
from typing import Annotated

import attrs
from attrs import field

from broker_adapter.sinks.column_types import ColumnType
from broker_adapter.sinks.setting_kinds import Texts, timeout_s
from journal.settings.values import Kind, parse_text


def _parse_directory(value: object) -> str:
    path = parse_text(value)
    if not os.path.isabs(path):
        raise ValueError("is not an absolute path")
    return path


Directory = Annotated[str, Kind(_parse_directory, "the absolute path of a directory that exists")]


class Format(enum.StrEnum):
    """Formats of the files."""

    PARQUET = "parquet"
    NDJSON = "ndjson"


@attrs.frozen
class FilesSettings:
    """Settings of the sink ``files``.

    Attributes:
        directory: Where files are stored. It is not created: otherwise files might go into an empty mount point.
        format: ``parquet``, compressed with zstd, or ``ndjson``: one object per line.
        types: Types of columns of Parquet files, by name; see `column_types` for the defaults.
        timeout_s: Longest time for writing a file, in seconds.
    """

    directory: Directory
    format: Format = Format.PARQUET
    types: Texts = field(factory=dict)
    timeout_s: int = timeout_s()


def check(settings: FilesSettings) -> tuple[str, ...]:
    """Problems of settings that are valid each by itself."""
    known = tuple(each.value for each in ColumnType)
    problems = [
        f"types.{column} = {name!r} is not a type; allowed: {', '.join(known)}"
        for column, name in settings.types.items()
        if name not in known
    ]
    if settings.types and settings.format is not Format.PARQUET:
        problems.append(f"types is given, but files of format {settings.format.value} have none; leave it out")
    return tuple(problems)
