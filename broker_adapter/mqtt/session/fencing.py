"""Fencing: ending the connection to the store of a broker whose session was taken by force."""

from __future__ import annotations

import math
from typing import Final

import trio

from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.keyed_lock import KeyedLock
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.mqtt.session.stored import Lease
from broker_adapter.state_forms import decode

_INTERVAL_S: Final = 1.0


class Fencing:
    """The brokers whose connections to the store this broker has to end.

    After its connection has ended, nothing that a broker sent over it is stored any more; after it has connected again,
    it first finds out which sessions it has lost (`verification`).

    Args:
        store_retry: The store.
    """

    def __init__(self, store_retry: StoreRetry) -> None:
        self._store_retry = store_retry
        self._locks = KeyedLock()
        self._pending: dict[str, int] = {}
        self._ended_at_s: dict[str, float] = {}

    def add(self, broker_id: str) -> None:
        """Note that a session was taken from a broker: `settle` ends that broker's present connection."""
        self._pending[broker_id] = self._pending.get(broker_id, 0) + 1

    async def settle(self) -> None:
        """Return when the connections of all brokers noted before this call are ended.

        Concurrent calls share one end. After a connection was ended, the next one is not ended for a second, so that a
        broker that is alive and was only slow to answer can work.

        Raises:
            StorageError: The store refused to end a connection.
        """
        for broker_id in list(self._pending):
            async with self._locks.take(broker_id):
                if broker_id not in self._pending:
                    continue  # another call did it meanwhile
                await trio.sleep_until(self._ended_at_s.get(broker_id, -math.inf) + _INTERVAL_S)
                count = self._pending[broker_id]
                lease = await self._store_retry.get(keys.broker(broker_id))
                self._ended_at_s.pop(broker_id, None)
                names = decode(Lease, lease.key, lease.value).clients if lease is not None else ()
                for name in names:
                    if await self._store_retry.end_client(name):
                        self._ended_at_s[broker_id] = trio.current_time()
                if self._pending[broker_id] == count:
                    del self._pending[broker_id]
