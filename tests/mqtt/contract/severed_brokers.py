"""Brokers in this process that crash without a last word: they lose their store first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import trio

from broker_adapter import StorageAdapter
from tests.mqtt.contract.severed import SeveredStore
from tests.mqtt.serving import Serving, serving

OpenStore = Callable[[], AbstractAsyncContextManager[StorageAdapter]]


class SeveredBrokers:
    """Brokers over one store; see `history.Cluster`.

    Args:
        open_store: Gives each broker its way to the store.
        tasks: Runs the brokers.
        options: Of every broker, see `serving`.
    """

    def __init__(self, open_store: OpenStore, tasks: trio.Nursery, **options: Any) -> None:
        self._open_store = open_store
        self._tasks = tasks
        self._options = options
        self.brokers: list[Serving] = []
        self._stores: list[SeveredStore] = []
        self._scopes: list[trio.CancelScope] = []
        self._is_over = trio.Event()
        self._ended: list[trio.Event] = []

    async def start(self, count: int) -> None:
        """Start so many brokers."""
        for number in range(count):
            await self._start(number)

    async def crash(self, number: int) -> None:
        """End a broker without a last word, and start another one under its name."""
        self._stores[number].sever()
        self._scopes[number].cancel()
        await self._start(number)

    async def stop(self) -> None:
        """End all brokers in good order."""
        self._is_over.set()
        for ended in self._ended:
            await ended.wait()

    async def _start(self, number: int) -> None:
        scope = trio.CancelScope()
        ended = trio.Event()

        async def run(*, task_status: trio.TaskStatus[tuple[Serving, SeveredStore]]) -> None:
            with scope:
                async with self._open_store() as opened:
                    store = SeveredStore(opened)
                    async with serving(
                        cast("StorageAdapter", store), broker_id=f"broker-{number}", **self._options
                    ) as served:
                        task_status.started((served, store))
                        await self._is_over.wait()
            ended.set()

        served, store = await self._tasks.start(run)
        self.brokers[number : number + 1] = [served]
        self._stores[number : number + 1] = [store]
        self._scopes[number : number + 1] = [scope]
        self._ended.append(ended)
