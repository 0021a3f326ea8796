"""Carries the steps of an algorithm out on a store: in the calling thread, or under trio with requests in threads."""

from __future__ import annotations

import time
from functools import partial
from typing import Final, TypeVar

import trio
from trio.to_thread import run_sync

from journal.logstore.errors import LogStoreError
from journal.logstore.steps import Answer, Create, Delete, Get, ListAfter, Operation, Pause, Steps
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


def run(store: LogStore, steps: Steps[_T], delays: BackOff = DELAYS) -> _T:
    """Carry all steps out, in the calling thread."""
    try:
        operation = next(steps)
        while True:
            try:
                answer = perform(store, operation, delays)
            except LogStoreError as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result


async def drive(store: LogStore, steps: Steps[_T], limiter: trio.CapacityLimiter, delays: BackOff = DELAYS) -> _T:
    """Carry all steps out, each request in a thread.

    A cancellation takes effect at a pause, or after the request that is under way: its thread is not abandoned.

    Args:
        limiter: How many requests may be under way at a time.
    """
    try:
        operation = next(steps)
        while True:
            try:
                if isinstance(operation, Pause):
                    await trio.sleep(delays.delay_s(operation.failures))
                    answer = None
                else:
                    answer = await run_sync(partial(perform, store, operation), limiter=limiter)
            except LogStoreError as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        steps.close()
