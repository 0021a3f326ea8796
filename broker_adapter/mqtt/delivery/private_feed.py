"""Feeds that belong to one inbox alone; they wait for it, so they need no place in its books.

What they have in common is here: they are begun before their owner goes on, begin anew when they break off, wait for
shards that are not there yet, and end at any time.
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
    """One target's part of what an inbox gets by itself.

    Args:
        inbox: Whose it is.
        target: Shard or filter over shards.
        after: What lies behind it is waited for, should the shard not be there yet.
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
        """Bring nothing any more."""
        self._scope.cancel()

    @abc.abstractmethod
    async def _receive(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        """Bring what there is and what comes; return when the adapter is closed.

        Call `_began` as soon as nothing is missed any more.
        """

    async def run(
        self, adapter: StorageAdapter, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until ended. It has started when it is sure of getting what it is to get.

        Raises:
            StorageError: It cannot begin. Later failures are logged and it begins anew.
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
                    "%s of %r for client %r broke off and begins anew: %s",
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
        """Return once the one shard has something.

        Raises:
            trio.ClosedResourceError: It never will, the adapter is closed.
        """
        async with adapter.follow(self._target, self._after.lsn, credit_bytes=1) as feed:
            self._began(task_status)
            async for item in feed:
                if isinstance(item, Delivery):
                    return
        raise trio.ClosedResourceError("the feed has ended")

    async def _put(self, arrivals: list[Arrival]) -> None:
        """Put arrivals in when there is room, one after the other."""
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
