"""Calls after a wait, for appends that tests make up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from shards.errors import StorageError


async def call_after(wait: Callable[[], Awaitable[object]], call: Callable[[], None]) -> None:
    """Call ``call`` when ``wait`` has returned or failed; run it in a task of its own."""
    with suppress(StorageError):
        await wait()
    call()
