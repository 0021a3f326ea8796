"""Counters of a running server; the metrics page and STATUS read them."""

from __future__ import annotations

from typing import Final

import attrs

from shards.errors import StorageError

CLOSING_REASONS: Final = ("max_connections", "protocol", "stalled", "refused", "silent", "tls")
"""Why the server refused or closed a connection."""


@attrs.define(slots=True)
class ServerStatistics:
    """Counters since the start; where it matters they are incremented once for each chunk or commit group."""

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
        """Count a connection that the server refused or closed, by reason."""
        self.connections_closed[reason] = self.connections_closed.get(reason, 0) + 1
