"""Values that are dear to make: made once however many tasks want them, and kept within a bound, the newest used last.

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
    """A value that a task is making now, for all that wait for it."""

    __slots__ = ("done", "value")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.value: V | None = None


class SharedCache(Generic[K, V]):
    """A cache by cost.

    Args:
        capacity: Most that all values together may cost; a single value that costs more is given but not kept.
        cost_of: What a value costs.

    Attributes:
        cost: What the values kept now cost together.
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
        """The value if it is kept; it is the last to go from now on."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """The value, made if need be: by one task, while others that want it wait.

        When ``make`` raises, its own caller gets the error; those who waited try for themselves.
        """
        while (value := self.get_nowait(key)) is None:
            making = self._making.get(key)
            if making is None:
                return await self._make(key, make)
            await making.done.wait()
            if making.value is not None:
                # Taken from the hand of who made it: it may be too dear to be kept.
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
        """Do not keep this value any more."""
        value = self._kept.pop(key, None)
        if value is not None:
            self.cost -= self._cost_of(value)
