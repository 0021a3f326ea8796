"""What may be set for the sink ``files``."""

from __future__ import annotations

import enum
import os
from typing import Annotated

import attrs
from attrs import field

from broker_adapter.sinks.files.column_types import ColumnType
from broker_adapter.sinks.setting_kinds import Texts, timeout_s
from journal.settings.values import Kind, parse_text


def _parse_directory(value: object) -> str:
    path = parse_text(value)
    if not os.path.isabs(path):
        raise ValueError("is no absolute path")
    return path


Directory = Annotated[str, Kind(_parse_directory, "the absolute path of a directory that exists")]


class Format(enum.StrEnum):
    """What files are."""

    PARQUET = "parquet"
    NDJSON = "ndjson"


@attrs.frozen
class FilesSettings:
    """Settings of the sink ``files``.

    Attributes:
        directory: Where files are put. It is not made: an empty mount point would else be filled instead of what
            belongs there.
        format: ``parquet``, compressed with zstd, or ``ndjson``: an object a line.
        types: What columns of Parquet files are, by name; see `column_types` for what others are.
        timeout_s: How long a file may take.
    """

    directory: Directory
    format: Format = Format.PARQUET
    types: Texts = field(factory=dict)
    timeout_s: int = timeout_s()


def check(settings: FilesSettings) -> tuple[str, ...]:
    """Tell what is wrong with settings that are each for themselves as they should be."""
    known = tuple(each.value for each in ColumnType)
    problems = [
        f"types.{column} = {name!r} is no type; allowed: {', '.join(known)}"
        for column, name in settings.types.items()
        if name not in known
    ]
    if settings.types and settings.format is not Format.PARQUET:
        problems.append(f"types is given, but files of format {settings.format.value} have none; leave it out")
    return tuple(problems)
