"""What takes the place of an appender while another server owns the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journal.engine.wal.group import AckSink
from shards.errors import NotOwnerError
from shards.segments.shard import Shard


class NoAppends:
    """Takes the place of an appender where another server owns the store: handles of its clients permit no append."""

    run_end = 0

    def append_run(self, view: memoryview, start: int, end: int, handles: Sequence[Shard | None], sink: AckSink) -> int:
        """Take no append."""
        return start

    def append(self, view: memoryview, at: int, end: int, handles: Sequence[Shard | None], sink: AckSink) -> None:
        """Refuse an append.

        Raises:
            NotOwnerError: Always.
        """
        raise NotOwnerError("")

    def finish(self) -> None:
        """End a run without appends."""


NO_APPENDS: Final = NoAppends()
