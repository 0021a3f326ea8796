"""Looking at queues, twice where that takes to know how fast they fill and drain."""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue.cli.view import QueueView, measured_rates, told_rates
from broker_adapter.cache_queue.errors import QueueNotFoundError
from broker_adapter.cache_queue.queue import QueueState, look

MEASURED_S = 1.0
"""Time between two looks."""


def now_us() -> int:
    """The time of day."""
    return time.time_ns() // 1_000


async def view_all(adapter: StorageAdapter, names: Sequence[str]) -> list[QueueView]:
    """See several queues; those that are gone meanwhile are left out.

    It takes `MEASURED_S` longer when one of them has no driver that tells the rates.
    """
    began_s = trio.current_time()
    before = await _look_at(adapter, names)
    seen_us = now_us()
    if all(told_rates(state, seen_us) is not None for state in before.values()):
        return [QueueView(state, seen_us, told_rates(state, seen_us)) for state in before.values()]
    await trio.sleep(MEASURED_S)
    seconds = trio.current_time() - began_s
    after = await _look_at(adapter, list(before))
    seen_us = now_us()
    return [
        QueueView(state, seen_us, told_rates(state, seen_us) or measured_rates(before[name], state, seconds))
        for name, state in after.items()
    ]


async def view_at_once(adapter: StorageAdapter, names: Sequence[str]) -> list[QueueView]:
    """See several queues in one look, with rates only where a driver tells them."""
    states = await _look_at(adapter, names)
    seen_us = now_us()
    return [QueueView(state, seen_us, told_rates(state, seen_us)) for state in states.values()]


async def view_one(adapter: StorageAdapter, name: str) -> QueueView:
    """See one queue.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    await look(adapter, name)
    for view in await view_all(adapter, [name]):
        return view
    raise QueueNotFoundError(f"the cache queue {name!r} is gone")


async def _look_at(adapter: StorageAdapter, names: Sequence[str]) -> dict[str, QueueState]:
    found = {}
    for name in names:
        try:
            found[name] = await look(adapter, name)
        except QueueNotFoundError:
            continue
    return found
