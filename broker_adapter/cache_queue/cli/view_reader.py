"""Reads the state of queues, twice if that is needed to measure how fast they fill and drain."""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue.cli.view import QueueView, measured_rates, reported_rates
from broker_adapter.cache_queue.errors import QueueNotFoundError
from broker_adapter.cache_queue.queue import QueueState, look

MEASURED_S = 1.0
"""Time between the two reads, in seconds."""


def now_us() -> int:
    """Present time, in microseconds since 1970."""
    return time.time_ns() // 1_000


async def view_all(adapter: StorageAdapter, names: Sequence[str]) -> list[QueueView]:
    """Views of several queues, without those that are deleted meanwhile.

    It takes `MEASURED_S` longer if one of them has no driver that reports its rates.
    """
    began_s = trio.current_time()
    before = await _look_at(adapter, names)
    seen_us = now_us()
    if all(reported_rates(state, seen_us) is not None for state in before.values()):
        return [QueueView(state, seen_us, reported_rates(state, seen_us)) for state in before.values()]
    await trio.sleep(MEASURED_S)
    seconds = trio.current_time() - began_s
    after = await _look_at(adapter, list(before))
    seen_us = now_us()
    return [
        QueueView(state, seen_us, reported_rates(state, seen_us) or measured_rates(before[name], state, seconds))
        for name, state in after.items()
    ]


async def view_at_once(adapter: StorageAdapter, names: Sequence[str]) -> list[QueueView]:
    """Views of several queues from one read, with rates only if a driver reports them."""
    states = await _look_at(adapter, names)
    seen_us = now_us()
    return [QueueView(state, seen_us, reported_rates(state, seen_us)) for state in states.values()]


async def view_one(adapter: StorageAdapter, name: str) -> QueueView:
    """View of one queue.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    await look(adapter, name)
    for view in await view_all(adapter, [name]):
        return view
    raise QueueNotFoundError(f"the cache queue {name!r} does not exist any more")


async def _look_at(adapter: StorageAdapter, names: Sequence[str]) -> dict[str, QueueState]:
    found = {}
    for name in names:
        try:
            found[name] = await look(adapter, name)
        except QueueNotFoundError:
            continue
    return found
