"""Callers that wait until the closed segments of a shard are converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import trio

from journal.engine.parquet.gatherer import Chosen
from shards.errors import StorageError
from shards.segments.shard import Shard


@attrs.define(eq=False)
class ConversionRequest:
    """A caller waits until all closed segments below an offset are converted."""

    shard: Shard
    up_to: int
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _error: StorageError | None = attrs.field(default=None, init=False)

    @property
    def is_ended(self) -> bool:
        """Whether the caller waits no longer."""
        return self._done.is_set()

    def end(self, error: StorageError | None) -> None:
        """End the wait with an error, or without one if all is converted. Only the first end counts."""
        if not self.is_ended:
            self._error = error
            self._done.set()

    async def wait(self) -> None:
        """Return when all is converted.

        Raises:
            StorageError: The error with which the wait was ended.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error


class ConversionRequests:
    """The requests of one engine, in the order in which they came."""

    def __init__(self) -> None:
        self._requests: list[ConversionRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ConversionRequest]:
        """Those whose callers still wait."""
        return (request for request in self._requests if not request.is_ended)

    def add(self, request: ConversionRequest) -> None:
        """Add a request."""
        self._requests.append(request)

    def remove(self, request: ConversionRequest) -> None:
        """Remove a request, whose caller has stopped waiting."""
        self._requests.remove(request)

    def refuse(self, chosen: Iterable[Chosen], error: StorageError) -> None:
        """End the wait of all who wait for one of these segments."""
        first_ends: dict[int, int] = {}
        for shard, segment in chosen:
            end = segment.next_offset
            first_ends[shard.shard_id] = min(end, first_ends.get(shard.shard_id, end))
        for request in self:
            if first_ends.get(request.shard.shard_id, request.up_to + 1) <= request.up_to:
                request.end(error)
