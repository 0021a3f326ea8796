"""Callers that want a checkpoint and something done directly after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from shards.errors import StorageFailedError, afresh


class _Request:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.done = trio.Event()
        self.error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        self.error = error
        self.done.set()


class CheckpointRequests:
    """The requests of one engine, in the order in which they came."""

    def __init__(self) -> None:
        self._requests: list[_Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    async def wait(self, work: Callable[[], Awaitable[None]], wake: Callable[[], None]) -> None:
        """Add a request and return when its work is done. Cancelling ends the wait, not the work.

        Args:
            work: What is to be done after the checkpoint.
            wake: Wakes the task that carries the requests out.

        Raises:
            Exception: Any error of the work, or with which the request was ended.
        """
        request = _Request(work)
        self._requests.append(request)
        wake()
        await request.done.wait()
        if request.error is not None:
            raise request.error

    async def carry_out(self, refused: Exception | None) -> None:
        """Do the work of all requests, those that come meanwhile included.

        Args:
            refused: Why no checkpoint could be made; then they end with this error.
        """
        while self._requests:
            request = self._requests[0]
            error = refused
            if refused is None:
                try:
                    await request.work()
                except Exception as raised:  # noqa: BLE001 the caller gets it
                    error = raised
            request.end(error)
            self._requests.remove(request)

    def end(self, failure: StorageFailedError) -> None:
        """End all waits: no checkpoint will be made any more."""
        requests, self._requests = self._requests, []
        for request in requests:
            request.end(afresh(failure))
