"""Waiting for what other threads and processes do: until a condition holds, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from demo.errors import DemoError

WAIT_S: Final = 30.0
LOOK_INTERVAL_S: Final = 0.02
_ASK_INTERVAL_S: Final = 0.1


async def until(otherwise: str, is_so: Callable[[], bool], *, within_s: float = WAIT_S) -> None:
    """Wait until a condition holds.

    Raises:
        DemoError: It took too long.
    """
    with deadline(otherwise, within_s=within_s):
        await look_until(is_so)


async def look_until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, without a limit."""
    while not is_so():  # noqa: ASYNC110  it is paho's threads that make it so, and they know of no trio
        await trio.sleep(LOOK_INTERVAL_S)


async def ask_until(otherwise: str, is_so: Callable[[], Awaitable[bool]], *, within_s: float = WAIT_S) -> None:
    """Ask other processes until a condition holds.

    Raises:
        DemoError: It took too long.
    """
    with deadline(otherwise, within_s=within_s):
        while not await is_so():  # noqa: ASYNC110  it is other processes that make it so
            await trio.sleep(_ASK_INTERVAL_S)


@contextmanager
def deadline(otherwise: str, *, within_s: float = WAIT_S) -> Iterator[None]:
    """A time limit for the context.

    Raises:
        DemoError: It took longer; the message begins with ``otherwise``.
    """
    try:
        with trio.fail_after(within_s):
            yield
    except trio.TooSlowError:
        raise DemoError(f"{otherwise}, within {within_s:.0f} s") from None


def now_us() -> int:
    """The time by the wall clock, in microseconds."""
    return time.time_ns() // 1000
