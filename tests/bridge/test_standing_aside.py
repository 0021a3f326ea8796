"""A bridge leaves its queue to who asks for it, and goes on behind what was taken out."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from broker_adapter import open_adapter
from broker_adapter.cache_queue import QueueDrain, QueueLease, look
from broker_adapter.cache_queue.stored import Counts
from tests.bridge.fakes import Shelf
from tests.bridge.test_driver import QUEUE, driven, numbers, put, spec_for, until_empty
from tests.patience import PATIENCE_S


async def test_a_bridge_writes_nothing_while_another_drains_and_continues_behind(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with open_adapter("memory:") as store:
        await put(store, 0, 25)
        async with driven(store, spec_for(shelf)):
            await until_empty(store)
            async with QueueLease(store, QUEUE, "spark").hold(ask=True) as grant:
                drain = QueueDrain(store, grant)
                await drain.begin()
                await put(store, 25, 60)
                # Many times as long as the bridge needs to bring them.
                await trio.sleep(100)
                assert shelf.values == numbers(0, 25)
                await drain.require_cursor()
                await drain.confirm(50, Counts(confirmed=25), 0)
            await until_empty(store)
            with trio.fail_after(PATIENCE_S):
                while (status := (await look(store, QUEUE)).status) is None or status.counts.confirmed < 60:
                    await trio.sleep(0.1)
    assert shelf.values == numbers(0, 25) + numbers(50, 60)
    assert (status.holder, status.counts.confirmed) == ("here", 60)


async def test_what_a_bridge_has_begun_is_confirmed_before_it_releases_its_lease(autojump_clock: MockClock) -> None:
    """It once left batches that the sink had taken to the process that asked, which then wrote them again."""
    shelf = Shelf(write_s=0.5)
    async with open_adapter("memory:") as store:
        await put(store, 0, 500)
        async with driven(store, spec_for(shelf)):
            await shelf.wait_for(30)
            async with QueueLease(store, QUEUE, "spark").hold(ask=True) as grant:
                drain = QueueDrain(store, grant)
                await drain.begin()
                assert numbers(0, drain.offset) == shelf.values
