"""Requests for the store's current position, shared by all callers that wait at the same time."""

from __future__ import annotations

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.model.position import BEGINNING, Position


@attrs.define(slots=True)
class _Answer:
    is_there: trio.Event = attrs.Factory(trio.Event)
    position: Position = BEGINNING
    error: StorageError | trio.ClosedResourceError | None = None


class CurrentPosition:
    """Finds the position by opening a feed, which reports where it begins.

    Args:
        adapter: The store.
        target: Target of the feed; one with few records is best.
        tasks: Nursery of the requests.
    """

    def __init__(self, adapter: StorageAdapter, target: str, tasks: trio.Nursery) -> None:
        self._adapter = adapter
        self._target = target
        self._tasks = tasks
        self._wanted: _Answer | None = None
        self._is_asking = False

    async def ask(self) -> Position:
        """A position that covers everything that the store acknowledged before this call.

        Raises:
            StorageError: The store does not answer.
        """
        # A call made during a request needs a later answer; it shares the next request with other such calls.
        answer = self._wanted
        if answer is None:
            answer = self._wanted = _Answer()
        if not self._is_asking:
            self._is_asking = True
            self._tasks.start_soon(self._ask_all)
        await answer.is_there.wait()
        if answer.error is not None:
            raise answer.error
        return answer.position

    async def _ask_all(self) -> None:
        try:
            while (answer := self._wanted) is not None:
                self._wanted = None
                try:
                    async with self._adapter.follow(self._target, credit_bytes=1) as feed:
                        answer.position = Position(feed.start_lsn)
                except (StorageError, trio.ClosedResourceError) as error:
                    answer.error = error
                answer.is_there.set()
        finally:
            self._is_asking = False
