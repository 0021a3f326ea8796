"""Feeds of a single inbox. They wait while the inbox is full, so its watermark does not track them.

This module has their common part: they start before their caller continues, restart after errors, wait for shards that
do not exist yet, and can be ended at any time.
"""

from __future__ import annotations

import abc
import logging
from typing import ClassVar

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import ShardNotFoundError, StorageError
from broker_adapter.mqtt.delivery.inbox import Inbox, State
from broker_adapter.mqtt.delivery.outgoing_message import Arrival, size_bytes
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.model.position import Position
from broker_adapter.subscription import Delivery

_log = logging.getLogger(__name__)


class PrivateFeed(abc.ABC):
    """The part of a single inbox's feed that reads one target.

    Args:
        inbox: The inbox.
        target: Shard or filter over shards.
        after: If the shard does not exist yet, records behind this position are waited for.
    """

    what: ClassVar[str]

    def __init__(self, inbox: Inbox, target: str, after: Position) -> None:
        self._inbox = inbox
        self._target = target
        self._after = after
        self._scope = trio.CancelScope()
        self._has_begun = False
        self._failed_count = 0

    @property
    def has_ended(self) -> bool:
        """Whether it was ended."""
        return self._scope.cancel_called

    def end(self) -> None:
        """End the feed: it puts nothing more in."""
        self._scope.cancel()

    @abc.abstractmethod
    async def _receive(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        """Deliver the present records and new ones; return when the adapter is closed.

        Call `_began` as soon as no record can be missed any more.
        """

    async def run(
        self, adapter: StorageAdapter, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until ended; `task_status` is notified when no record can be missed any more.

        Raises:
            StorageError: It cannot begin. Later errors are logged, and it restarts.
        """
        with self._scope:
            await self._receive_again_and_again(adapter, task_status)
        self._began(task_status)

    async def _receive_again_and_again(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        is_missing = False
        while True:
            try:
                if is_missing:
                    await self._wait_for_shard(adapter, task_status)
                    is_missing = False
                await self._receive(adapter, task_status)
            except ShardNotFoundError:
                is_missing = True
                continue
            except trio.ClosedResourceError:
                return
            except StorageError as error:
                if not self._has_begun:
                    raise
                log = _log.debug if self._failed_count else _log.warning
                log(
                    "%s of %r for client %r was interrupted and restarts: %s",
                    self.what,
                    self._target,
                    self._inbox.client_id,
                    error,
                )
            else:
                return
            await trio.sleep(STORE_BACK_OFF.delay_s(self._failed_count))
            self._failed_count += 1

    def _began(self, task_status: trio.TaskStatus[None]) -> None:
        if not self._has_begun:
            self._has_begun = True
            task_status.started()

    async def _wait_for_shard(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        """Return when the shard has records.

        Raises:
            trio.ClosedResourceError: The adapter is closed.
        """
        async with adapter.follow(self._target, self._after.lsn, credit_bytes=1) as feed:
            self._began(task_status)
            async for item in feed:
                if isinstance(item, Delivery):
                    return
        raise trio.ClosedResourceError("the feed has ended")

    async def _put(self, arrivals: list[Arrival]) -> None:
        """Put arrivals in one after the other, waiting for room."""
        inbox = self._inbox
        self._failed_count = 0
        for arrival in arrivals:
            arrival_bytes = size_bytes(arrival)
            if not inbox.takes(1, arrival_bytes):
                inbox.ready()
                await inbox.wait_for_room()
            if inbox.state is State.CLOSED:
                return
            inbox.put((arrival,), arrival_bytes)
        inbox.ready()
