"""Where the outcome of an append from inside the process goes, and waiting for one."""

from __future__ import annotations

from typing import Protocol

import trio

from shards.errors import StorageError, afresh
from shards.model import Appended


class AppendResult(Protocol):
    """Takes the outcome of one append; called once, on the loop, and must not block."""

    def resolve(self, appended: Appended) -> None:
        """It is stored, at the level that is named."""

    def reject(self, error: StorageError) -> None:
        """The engine failed; whether it is stored is known after a restart."""


class PendingAck:
    """An `AppendResult` that a task waits for."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._result: Appended | StorageError | None = None

    def resolve(self, appended: Appended) -> None:
        self._result = appended
        self._done.set()

    def reject(self, error: StorageError) -> None:
        self._result = error
        self._done.set()

    async def wait(self) -> Appended:
        """Wait for the acknowledgement and return it.

        Raises:
            StorageFailedError: The engine failed; only after a restart it is known whether the batch is stored.
        """
        await self._done.wait()
        if isinstance(self._result, Appended):
            return self._result
        assert self._result is not None  # it is set before the event
        raise afresh(self._result)
