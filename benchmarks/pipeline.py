"""A deep pipeline of appends through the client, or through the storage adapter, which accept them without waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from benchmarks.load import RateClock, Timing
from benchmarks.sizes import VALUE_BYTES
from shards.errors import OverloadedError
from shards.model import Appended

VALUE = b"x" * VALUE_BYTES
BURST_RECORDS = 1024
# The least that a record occupies in the client's window in addition to its value.
OVERHEAD_BYTES = 128


class Pending(Protocol):
    """A pending append."""

    @property
    def is_done(self) -> bool:
        """Whether its outcome is known."""

    async def wait(self) -> Appended:
        """Wait for the outcome."""

    def result_nowait(self) -> Appended:
        """The outcome, once it is known."""


class Appending(Protocol):
    """An object that accepts appends."""

    def append_nowait(self, shard: str, records: list[bytes], /) -> Pending:
        """Queue an append; raises an error if too many bytes are in flight."""

    async def wait_for_room(self, size_bytes: int = ..., /) -> None:
        """Wait until an append may be accepted."""


async def keep_full(target: Appending, choose: Callable[[], str], values: list[bytes], timing: Timing) -> float:
    """Keep the target's window full and return acknowledged records per second."""
    waiting: deque[Pending] = deque()
    acknowledged = 0
    burst = max(1, BURST_RECORDS // len(values))
    room_bytes = (VALUE_BYTES + OVERHEAD_BYTES) * len(values)
    clock = RateClock(timing)
    while not clock.ended(acknowledged):
        try:
            for _ in range(burst):
                waiting.append(target.append_nowait(choose(), values))
        except OverloadedError:
            await target.wait_for_room(room_bytes)
        else:
            await trio.lowlevel.checkpoint()
        while waiting and waiting[0].is_done:
            waiting.popleft().result_nowait()
            acknowledged += len(values)
    while waiting:
        await waiting.popleft().wait()
    return clock.rate()
