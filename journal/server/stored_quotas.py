"""Measures the number and size of shards for quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from journal.access.quotas import Account, Quotas
from journal.engine import Engine
from journal.engine.time_slice import TimeSlice
from shards.errors import ShardNotFoundError

_INTERVAL_S: Final = 1.0
_LARGEST_SHARE: Final = 20


class StoredQuotas:
    """Measures the shards of every account that has a quota for them.

    Args:
        engine: The engine with the shards.
        quotas: The accounts.
    """

    def __init__(self, engine: Engine, quotas: Quotas) -> None:
        self._engine = engine
        self._quotas = quotas

    async def run(self, changed: Callable[[], None]) -> None:
        """Measure about once a second until cancelled, using at most a twentieth of the time.

        Args:
            changed: Called when an account has become full, or has room again.
        """
        while self._quotas.measure:
            started = trio.current_time()
            for account in list(self._quotas.accounts):
                # At once: until the handles are updated, appends are refused for a quota that has room again.
                if account.measures and await self._measure(account):
                    changed()
            await trio.sleep(max(_INTERVAL_S, _LARGEST_SHARE * (trio.current_time() - started)))

    async def measure(self, accounts: Iterable[Account]) -> None:
        """Make sure that each account was measured at least once."""
        for account in accounts:
            if account.measures and not account.was_measured:
                await self._measure(account)

    async def _measure(self, account: Account) -> bool:
        """Measure an account; returns whether it has become full, or has room again."""
        was_full = account.is_full
        shards = stored_bytes = 0
        for at, topic_filter in enumerate(account.filters):
            scan, step = self._engine.scan_names(topic_filter), TimeSlice()
            while (names := await scan.more()) is not None:
                for name in names:
                    if not account.counts_earlier(name, at):
                        shards += 1
                        stored_bytes += self._size_bytes(name)
                    if step.is_over:
                        await step.rest()
        account.shards, account.stored_bytes, account.was_measured = shards, stored_bytes, True
        return account.is_full != was_full

    def _size_bytes(self, name: str) -> int:
        try:
            return self._engine.describe_shard(name, with_segments=False).size_bytes
        except ShardNotFoundError:
            # It was deleted a moment ago.
            return 0
