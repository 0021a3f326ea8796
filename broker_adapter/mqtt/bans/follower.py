"""Follows the bans of a store: a subscription notifies a broker of each change, and the broker applies it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.bans.store import StoredBans, read_bans, read_version
from broker_adapter.mqtt.bans.stored import BANS_FOLLOWERS, BANS_SHARD, BANS_SHARD_CONFIG
from broker_adapter.mqtt.rules.followers import follow, put_follower
from broker_adapter.mqtt.rules.stored import StoredFollower


class BansFollower:
    """Keeps one broker at the newest bans of the store. While the store does not answer, those known so far hold.

    Args:
        adapter: The store.
        change: Applies other bans; returns when that is done.
        broker_id: Id under which the applied version is reported in the store.
    """

    def __init__(
        self, adapter: StorageAdapter, change: Callable[[StoredBans], Awaitable[None]], broker_id: str
    ) -> None:
        self._adapter = adapter
        self._change = change
        self._broker_id = broker_id
        self._version = -1
        self._reported = -1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled; `task_status` is notified when the bans of the store are applied.

        Raises:
            StorageError: The store refuses the subscription, or a newer program wrote the bans.
        """
        await follow(self._adapter, BANS_SHARD, BANS_SHARD_CONFIG, self._read, task_status=task_status)

    async def _read(self) -> None:
        # Pushes that waited while the bans were read last are about changes that are known already.
        if await read_version(self._adapter) != self._version:
            stored = await read_bans(self._adapter)
            await self._change(stored)
            self._version = stored.version
        if self._reported != self._version:
            await put_follower(self._adapter, self._broker_id, StoredFollower(self._version), BANS_FOLLOWERS)
            self._reported = self._version
