"""Tasks that run as long as an ``async with`` block, for callers that must not expose a nursery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks are cancelled at the end of the block.

    A nursery raises groups of exceptions, even for a single one. Here the block's own error, or that of the one task
    that failed, is raised as it is, so that ``except ShardNotFoundError`` around the block works. That is also so if
    a scope around the block was cancelled meanwhile: the next checkpoint within that scope is cancelled.
    """
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        errors = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        if len(errors) != 1:
            raise
        raise errors[0] from None


def single_error(error: BaseException) -> BaseException:
    """The one error in an exception group of one (nurseries wrap what their tasks raise), else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
