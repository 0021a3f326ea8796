"""Follows the bans of a store: a subscription notifies a broker of each change, and the broker applies it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import ShardNotFoundError, StorageError
from broker_adapter.mqtt.bans.store import StoredBans, read_bans, read_version
from broker_adapter.mqtt.bans.stored import BANS_FOLLOWERS, BANS_SHARD, BANS_SHARD_CONFIG
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.rules.followers import put_follower
from broker_adapter.mqtt.rules.stored import StoredFollower
from broker_adapter.mqtt.session.store_retry import may_pass

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


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
        attempt = 0
        while True:
            try:
                await self._read()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await self._adapter.create_shard(BANS_SHARD, BANS_SHARD_CONFIG, exist_ok=True)
                async with self._adapter.subscribe(BANS_SHARD) as subscription:
                    # After the subscription has started, so that no change is missed between the two.
                    await self._read()
                    async for _ in subscription:
                        attempt = 0
                        await self._read()
            except ShardNotFoundError:
                log.warning("the shard of bans was deleted; it is created again")
            except StorageError as error:
                if not may_pass(error):
                    raise
            else:
                return  # the adapter is being closed
            await trio.sleep(STORE_BACK_OFF.delay_s(attempt))
            attempt += 1

    async def _read(self) -> None:
        # Pushes that waited while the bans were read last are about changes that are known already.
        if await read_version(self._adapter) != self._version:
            stored = await read_bans(self._adapter)
            await self._change(stored)
            self._version = stored.version
        if self._reported != self._version:
            await put_follower(self._adapter, self._broker_id, StoredFollower(self._version), BANS_FOLLOWERS)
            self._reported = self._version
