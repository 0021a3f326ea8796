"""Errors leave the block of `background_tasks` as they are, not in groups."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from broker_adapter.background_tasks import background_tasks
from broker_adapter.errors import ConnectionLostError


async def test_the_error_of_the_block_is_raised_as_it_is() -> None:
    with pytest.raises(ConnectionLostError):
        async with background_tasks() as tasks:
            tasks.start_soon(trio.sleep_forever)
            raise ConnectionLostError("lost")


async def test_the_error_of_a_task_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise ConnectionLostError("lost")

    with pytest.raises(ConnectionLostError):
        async with background_tasks() as tasks:
            tasks.start_soon(fail)
            await trio.sleep_forever()


async def test_the_error_is_raised_as_it_is_though_a_scope_around_the_block_was_cancelled() -> None:
    """A driver of a bridge ended for good when two of its tasks noticed at the same time that the store was lost."""
    is_caught = False
    with trio.CancelScope() as scope:
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                raise ConnectionLostError("lost")
        except ConnectionLostError:
            is_caught = True
        await trio.sleep_forever()
    assert is_caught
    assert scope.cancelled_caught


async def test_a_scope_around_the_block_cancels_it() -> None:
    with trio.CancelScope() as scope:
        async with background_tasks() as tasks:
            tasks.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_two_errors_are_a_group() -> None:
    async def fail() -> None:
        raise ValueError

    with pytest.raises(ExceptionGroup) as raised:
        async with background_tasks() as tasks:
            tasks.start_soon(fail)
            tasks.start_soon(fail)
            await trio.sleep_forever()
    assert len(raised.value.exceptions) == 2
