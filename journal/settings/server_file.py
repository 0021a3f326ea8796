"""The server's settings as a file has them: rules between settings, and `load_config`. It needs cattrs.

The settings themselves are `journal.settings.server`, which an engine in a broker's process uses without any file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from journal.settings.access import access_problems
from journal.settings.file import Relation, Schema
from journal.settings.server import ServerConfig
from journal.settings.values import KIB


def _check(config: ServerConfig) -> Iterable[str]:
    listen = {"tcp": config.listen.tcp, "websocket": config.listen.websocket, "http": config.listen.http}
    yield from access_problems(listen, config.tls, config.access, config.quotas)


RENAMED: Final = {"sealing": "conversion"}
"""New names of sections and settings, by their old names; a file with an old one is refused with the new one."""

_SCHEMA = Schema(
    ServerConfig,
    (
        Relation(
            "storage.journal_budget_bytes",
            2,
            0,
            "storage.journal_file_bytes",
            "one file is written while one is recycled",
        ),
        Relation("storage.journal_file_bytes", 1, 4 * KIB, "limits.max_batch_bytes", "a batch is in one journal file"),
        Relation("storage.memory_budget_bytes", 1, 0, "storage.memory_segment_bytes", "it holds at least one segment"),
        Relation("limits.max_frame_bytes", 1, 4 * KIB, "limits.max_batch_bytes", "a batch is sent in one frame"),
        Relation(
            "limits.max_inflight_bytes_per_connection", 1, 0, "limits.max_frame_bytes", "a frame is received whole"
        ),
        Relation("limits.max_output_bytes_per_connection", 1, 0, "limits.max_frame_bytes", "a frame is sent whole"),
    ),
    _check,
    RENAMED,
)

SECTIONS = _SCHEMA.sections
"""All settings by section and name. ``metadata`` has their ``unit`` and ``bounds``, if any."""

TABLES = _SCHEMA.tables
"""The settings of each list of tables, by its dotted name."""


def load_config(path: str | os.PathLike[str] | None, overrides: Mapping[str, object] = {}) -> ServerConfig:
    """Read a settings file; see `journal.settings.file.Schema.load`.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown, of a wrong type or out of bounds.
    """
    return _SCHEMA.load(path, overrides)
