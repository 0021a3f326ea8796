"""Repeating what the log store refused or did not answer, until it gives what was asked for.

The requests of an algorithm are repeated inside as well (`journal.logstore.settling`), but not for ever, and not after
a refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from journal.logstore.errors import MAY_PASS
from shards.back_off import BackOff

_T = TypeVar("_T")

_DELAYS: Final = BackOff(first_s=0.1, longest_s=1.0)


async def until_answered(request: Callable[[], Awaitable[_T]]) -> _T:
    """Ask for something until the log store gives it. The health of the store says what is wrong meanwhile.

    Raises:
        LogStoreError: It will not give it without a change.
    """
    failures = 0
    while True:
        try:
            return await request()
        except MAY_PASS:
            failures += 1
            await trio.sleep(_DELAYS.delay_s(failures))
