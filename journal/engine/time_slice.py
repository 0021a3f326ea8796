"""Splitting long work on the event loop into short steps: a checkpoint whenever a step has taken long enough."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

import trio

_STEP_S: Final = 0.002
_SORTED_AT_ONCE: Final = 1000
_FREED_AT_ONCE: Final = 1000

Item = TypeVar("Item")


class TimeSlice:
    """Keeps the steps of one piece of work short. Between two steps the data it works on may change."""

    def __init__(self) -> None:
        self._ends_s = perf_counter() + _STEP_S

    @property
    def is_over(self) -> bool:
        """Whether it is time to call `rest`."""
        return perf_counter() >= self._ends_s

    async def rest(self) -> None:
        """Let other tasks run, and begin the next step."""
        await trio.lowlevel.checkpoint()
        self._ends_s = perf_counter() + _STEP_S


async def collect(items: Iterable[Item]) -> list[Item]:
    """Return the items as a list, with pauses."""
    found = []
    step = TimeSlice()
    for item in items:
        found.append(item)
        if step.is_over:
            await step.rest()
    return found


async def release(items: list[Any]) -> None:
    """Remove all items of a list, with pauses: to free a hundred thousand objects at once takes tens of milliseconds.

    Args:
        items: Nobody else uses it any more.
    """
    step = TimeSlice()
    while items:
        del items[-_FREED_AT_ONCE:]
        if step.is_over:
            await step.rest()


async def in_order_of(items: Sequence[Item], key: Callable[[Item], Any]) -> list[Item]:
    """Sort items, with pauses.

    Args:
        items: Must not change in the meantime; neither may the keys.
        key: As for `sorted`.
    """
    runs: list[list[Item]] = []
    step = TimeSlice()
    for start in range(0, len(items), _SORTED_AT_ONCE):
        runs.append(sorted(items[start : start + _SORTED_AT_ONCE], key=key))
        if step.is_over:
            await step.rest()
    return await collect(heapq.merge(*runs, key=key))
