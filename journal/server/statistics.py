"""Counters of a running server; the metrics page and STATUS read them."""

from __future__ import annotations

from typing import Final

import attrs

from shards.errors import StorageError

CLOSING_REASONS: Final = ("max_connections", "protocol", "stalled", "refused", "silent", "tls")
"""Why the server turns a connection away or ends it."""


@attrs.define(slots=True)
class ServerStatistics:
    """Plain counters since the start; incremented once a chunk or commit group where it matters."""

    connections: int = 0
    connections_total: int = 0
    appends: int = 0
    append_bytes: int = 0
    pushed_bytes: int = 0
    fetched_bytes: int = 0
    errors: dict[str, int] = attrs.Factory(dict)
    connections_closed: dict[str, int] = attrs.Factory(dict)

    def count_error(self, error: StorageError) -> None:
        """Count a refusal by its code."""
        self.errors[error.code] = self.errors.get(error.code, 0) + 1

    def count_closed(self, reason: str) -> None:
        """Count a connection that the server turned away or ended, by a reason out of a few."""
        self.connections_closed[reason] = self.connections_closed.get(reason, 0) + 1
