"""Ends a test in Trio that takes too long from within, so that the failure shows where each of its tasks waited.

pytest-timeout raises an exception in whatever runs when the time is up. For a test in Trio that is the loop, which
cannot go on after it: the failure shows the loop in place of the test, what the test would print of its servers is
missing, and the tests after it in the same process fail, too.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Final

import pytest
import trio

_PART: Final = 0.9
"""Of the time after which pytest-timeout ends the process or the test."""


class TookTooLongError(Exception):
    """A test was not done in time; its cause has the places where its tasks waited."""


def limit_time(item: pytest.Item) -> None:
    """Let a test in Trio end by itself before pytest-timeout has to end it; other tests stay as they are."""
    function = getattr(item, "obj", None)
    if not iscoroutinefunction(function) or item.config.pluginmanager.get_plugin("timeout") is None:
        return
    mark = item.get_closest_marker("timeout")
    given = mark.args[0] if mark is not None and mark.args else item.config.getoption("timeout", None)
    seconds = float(given if given is not None else item.config.getini("timeout") or 0)
    if seconds > 0:
        item.obj = ends_within(seconds * _PART, function)  # type: ignore[attr-defined]


def ends_within(seconds: float, function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The same function, which is cancelled after so many seconds of the real time, whatever clock Trio has.

    Raises:
        TookTooLongError: It was cancelled.
    """

    @functools.wraps(function)
    async def limited(*args: Any, **named: Any) -> None:
        token = trio.lowlevel.current_trio_token()

        def cancel() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)

        timer = threading.Timer(seconds, cancel)
        timer.daemon = True
        with trio.CancelScope() as scope:
            timer.start()
            try:
                await function(*args, **named)
            except BaseException as error:
                if scope.cancel_called:
                    raise TookTooLongError(f"not done after {seconds:g} s") from error
                raise
            finally:
                timer.cancel()

    return limited
