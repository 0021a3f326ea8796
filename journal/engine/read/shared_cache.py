"""A cache for values that are expensive to create: each is created once for all waiting tasks; least recently used go.

For one event loop: nothing here is called from threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Making(Generic[V]):
    """A value that one task is creating, for all tasks that wait for it."""

    __slots__ = ("done", "value")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.value: V | None = None


class SharedCache(Generic[K, V]):
    """A cache by cost.

    Args:
        capacity: Bound on the summed cost of all values; a value that costs more is returned but not cached.
        cost_of: Returns the cost of a value.

    Attributes:
        cost: Summed cost of the cached values.
    """

    def __init__(self, capacity: int, cost_of: Callable[[V], int]) -> None:
        self._capacity = capacity
        self._cost_of = cost_of
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._making: dict[K, _Making[V]] = {}
        self.cost = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get_nowait(self, key: K) -> V | None:
        """Return the value if it is cached, and mark it as the most recently used."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value; if it is not cached, one task creates it while others wait for it.

        If ``make`` raises, its caller gets the error; the tasks that waited call their own ``make``.
        """
        while (value := self.get_nowait(key)) is None:
            making = self._making.get(key)
            if making is None:
                return await self._make(key, make)
            await making.done.wait()
            if making.value is not None:
                # Taken directly: it may cost too much to be cached.
                return making.value
        return value

    async def _make(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        making = self._making[key] = _Making[V]()
        try:
            value = making.value = await make()
        finally:
            del self._making[key]
            making.done.set()
        self._keep(key, value)
        return value

    def _keep(self, key: K, value: V) -> None:
        cost = self._cost_of(value)
        if cost > self._capacity:
            return
        self._kept[key] = value
        self.cost += cost
        while self.cost > self._capacity:
            _, oldest = self._kept.popitem(last=False)
            self.cost -= self._cost_of(oldest)

    def forget(self, key: K) -> None:
        """Remove a value from the cache."""
        value = self._kept.pop(key, None)
        if value is not None:
            self.cost -= self._cost_of(value)
