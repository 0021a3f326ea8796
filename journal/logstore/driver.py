"""Carries the steps of an algorithm out on a store: in the calling thread, or under trio with requests in threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import outcome
import trio
from trio.to_thread import run_sync

from journal.logstore.steps import Answer, Create, Delete, Get, ListAfter, Operation, Pause, Paused, Steps
from journal.logstore.store import LogStore
from shards.back_off import BackOff

_T = TypeVar("_T")

DELAYS: Final = BackOff(first_s=0.01, longest_s=1.0)
"""Delays between attempts at one request."""


def perform(store: LogStore, operation: Operation, delays: BackOff = DELAYS) -> Answer:
    """Carry one operation out, in the calling thread."""
    match operation:
        case Create(key, data):
            return store.create(key, data)
        case Get(key):
            return store.get(key)
        case ListAfter(key):
            return store.list_after(key)
        case Delete(key):
            store.delete(key)
        case Pause(failures):
            time.sleep(delays.delay_s(failures))
    return None


def run(
    store: LogStore, steps: Steps[_T], delays: BackOff = DELAYS, gives_up: Callable[[], bool] = lambda: False
) -> _T:
    """Carry all steps out, in the calling thread.

    Args:
        gives_up: Is asked before each repetition of a request whether there are to be no more.
    """
    try:
        operation = next(steps)
        while True:
            if isinstance(operation, Pause) and gives_up():
                operation = steps.send(Paused.GIVE_UP)
                continue
            operation = outcome.capture(perform, store, operation, delays).send(steps)
    except StopIteration as end:
        result: _T = end.value
        return result


async def _perform_in_thread(
    store: LogStore, operation: Operation, limiter: trio.CapacityLimiter, delays: BackOff
) -> Answer:
    if isinstance(operation, Pause):
        await trio.sleep(delays.delay_s(operation.failures))
        return None
    return await run_sync(perform, store, operation, delays, limiter=limiter)


def _unknown(_: str) -> None:
    return None


async def drive(
    store: LogStore,
    steps: Steps[_T],
    limiter: trio.CapacityLimiter,
    delays: BackOff = DELAYS,
    known: Callable[[str], bytes | None] = _unknown,
) -> _T:
    """Carry all steps out, each request in a thread.

    A cancellation takes effect at a pause, or after the request that is under way: its thread is not abandoned.

    Args:
        limiter: How many requests may be under way at a time.
        known: Returns the object under a key if it was read already: it is not read again.
    """
    try:
        operation = next(steps)
        while True:
            if isinstance(operation, Get) and (data := known(operation.key)) is not None:
                await trio.lowlevel.checkpoint()
                operation = steps.send(data)
                continue
            result = await outcome.acapture(_perform_in_thread, store, operation, limiter, delays)
            operation = result.send(steps)
    except StopIteration as end:
        value: _T = end.value
        return value
    finally:
        steps.close()
