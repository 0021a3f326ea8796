"""Retries of calls to the store: which errors are temporary, and how long to wait between attempts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import Changes, Committed
from broker_adapter.errors import StorageError, StorageFailedError, VersionConflictError, is_retriable
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.statistics import SessionStatistics
from shards.back_off import BackOff
from shards.model import StateValue

Answer = TypeVar("Answer")


def may_pass(error: StorageError) -> bool:
    """Whether the same call may succeed later. A failed store counts: another one may be started at its address."""
    return is_retriable(error) or isinstance(error, StorageFailedError)


def concerns(error: VersionConflictError, key: bytes) -> bool:
    """Whether the conflict was about this key of the state store."""
    return error.what == f"state key {key!r}"


class StoreRetry:
    """Calls of one broker to the store, repeated where that is safe.

    Args:
        adapter: The store.
    """

    def __init__(self, adapter: StorageAdapter, settings: SessionSettings, statistics: SessionStatistics) -> None:
        self.adapter = adapter
        self._back_off = BackOff(settings.min_backoff_s, settings.max_backoff_s)
        self._statistics = statistics

    async def pause(self, attempt: int) -> None:
        """Wait before an attempt.

        Args:
            attempt: Number of earlier attempts.
        """
        self._statistics.retry_count += 1
        await trio.sleep(self._back_off.delay_s(attempt))

    async def pause_after_conflict(self, attempt: int) -> None:
        """Wait briefly after a version conflict; not at all the first time."""
        self._statistics.conflict_count += 1
        if attempt:
            await self.pause(min(attempt - 1, 3))

    async def pause_after(self, error: StorageError, attempt: int) -> None:
        """Wait before a change is decided again: after a conflict, or when the store does not answer.

        Args:
            error: The error of the change.
            attempt: Number of earlier attempts.

        Raises:
            StorageError: The error, if a retry cannot help.
        """
        if isinstance(error, VersionConflictError):
            await self.pause_after_conflict(attempt)
        elif may_pass(error):
            await self.pause(attempt)
        else:
            raise error

    async def until_answered(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a call until the store answers. It must be a call that may be carried out twice.

        Raises:
            StorageError: The store refuses the call.
        """
        attempt = 0
        while True:
            try:
                return await call()
            except StorageError as error:
                if not may_pass(error):
                    raise
            await self.pause(attempt)
            attempt += 1

    async def get(self, key: bytes) -> StateValue | None:
        """The value of a key; retries as long as the store does not answer."""
        return await self.until_answered(partial(self.adapter.get_state, key))

    @property
    def restored_lsn(self) -> int:
        """Everything up to this lsn comes from a backup; 0 if the store was not restored."""
        return max([gap.lsn_before for gap in self.adapter.restores], default=0)

    async def end_client(self, name: str) -> int:
        """End the connections of another client; retries as long as needed; returns how many it had."""
        return await self.until_answered(partial(self.adapter.end_client, name))

    async def commit(self, changes: Changes) -> Committed:
        """Commit changes, without a retry."""
        return await self.adapter.commit(changes)

    def scan(self, prefix: bytes) -> aclosing[AsyncGenerator[StateValue, None]]:
        """Values with a key prefix, for a loop that may be left before the end."""
        return aclosing(self.adapter.scan_state(prefix))
