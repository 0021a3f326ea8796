"""How long to wait before the store is asked once more."""

from __future__ import annotations

import random
from typing import Final

import trio

_FIRST_S: Final = 0.05
_LONGEST_S: Final = 2.0


async def pause(attempt: int) -> None:
    """Wait before the next attempt: longer each time, and not all at once."""
    await trio.sleep(min(_LONGEST_S, _FIRST_S * 2 ** min(attempt, 10)) * random.uniform(0.5, 1))
