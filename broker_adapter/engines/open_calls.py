"""Calls that wait inside an adapter, and how they end when the adapter is closed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import trio

from shards.errors import StorageError

_Result = TypeVar("_Result")


class OpenCalls:
    """The calls of one adapter that wait for something; closing ends them all with `trio.ClosedResourceError`."""

    def __init__(self) -> None:
        self._waiting: set[trio.CancelScope] = set()
        self.closed = False

    def require_open(self) -> None:
        """Raise `trio.ClosedResourceError` once the adapter is closed."""
        if self.closed:
            raise closed_error()

    async def run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for a call, but not beyond the end of the adapter."""
        if self.closed:
            call.close()
            raise closed_error()
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await call
            except StorageError:
                # What fails because of the closing is told as the closing.
                self.require_open()
                raise
            finally:
                self._waiting.discard(scope)
        raise closed_error()

    def close(self) -> None:
        """End the calls under way, and refuse all that follow."""
        self.closed = True
        for scope in self._waiting:
            scope.cancel()


def closed_error() -> trio.ClosedResourceError:
    """What a call on a closed adapter raises."""
    return trio.ClosedResourceError("the storage adapter is closed")
