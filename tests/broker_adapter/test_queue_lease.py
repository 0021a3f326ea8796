"""Which driver has the lease of a cache queue: it keeps it for ever, and releases it to a process that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import LeaseSettings, QueueLease
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease_request import OwnRequest, find_request
from broker_adapter.cache_queue.names import lease_key
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.state_forms import encode

QUEUE = "plant"
SETTINGS = LeaseSettings(lease_s=9.0, renew_interval_s=2.0)


@pytest.fixture
async def adapter() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as opened:
        yield opened


def lease_of(adapter: StorageAdapter, holder: str) -> QueueLease:
    return QueueLease(adapter, QUEUE, holder, SETTINGS)


@attrs.define
class Turns:
    """Who held the lease, in order, and who does now."""

    order: list[str] = attrs.Factory(list)
    now: set[str] = attrs.Factory(set)
    reasons: list[str] = attrs.Factory(list)
    changed: trio.Event = attrs.Factory(trio.Event)

    @asynccontextmanager
    async def of(self, holder: str) -> AsyncIterator[None]:
        assert not self.now, f"{holder} beside {self.now}"
        self.order.append(holder)
        self.now.add(holder)
        self._tell()
        try:
            yield
        finally:
            # The lease must not be given back before its holder has ended what it did.
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)
            self.now.remove(holder)
            self._tell()

    async def wait_for(self, *holders: str) -> None:
        while self.now != set(holders):
            await self.changed.wait()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def drive(self, adapter: StorageAdapter, holder: str) -> None:
        """What the driver of a bridge does with the lease."""
        lease = lease_of(adapter, holder)
        while True:
            try:
                async with lease.hold(), self.of(holder):
                    await trio.sleep_forever()
            except QueueLostError as error:
                self.reasons.append(str(error))


async def test_a_driver_releases_the_lease_on_request_and_comes_back(
    adapter: StorageAdapter, autojump_clock: MockClock
) -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.drive, adapter, "bridge")
        await turns.wait_for("bridge")
        began_s = trio.current_time()
        async with lease_of(adapter, "spark").hold(ask=True) as grant, turns.of("spark"):
            assert trio.current_time() - began_s <= 3 * SETTINGS.renew_interval_s
            assert grant.epoch == 2
            # Long enough for the driver to take it, if it would.
            await trio.sleep(10 * SETTINGS.lease_s)
        await turns.wait_for("bridge")
        assert await find_request(adapter, QUEUE) is None
        nursery.cancel_scope.cancel()
    assert turns.order == ["bridge", "spark", "bridge"]
    assert turns.reasons == ["bridge does not drive the cache queue 'plant' any more: spark requested it"]


async def test_of_many_drivers_none_takes_it_before_who_asks(
    adapter: StorageAdapter, autojump_clock: MockClock
) -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(turns.drive, adapter, f"bridge {number}")
        while not turns.now:
            await turns.changed.wait()
        async with lease_of(adapter, "spark").hold(ask=True), turns.of("spark"):
            await trio.sleep(20.0)
        nursery.cancel_scope.cancel()
    assert turns.order[1] == "spark"


async def test_those_who_ask_have_it_one_after_the_other(adapter: StorageAdapter, autojump_clock: MockClock) -> None:
    turns = Turns()

    async def ask(holder: str) -> None:
        async with lease_of(adapter, holder).hold(ask=True), turns.of(holder):
            # A process that asked for the lease keeps it when the next one asks: its work would start again.
            await trio.sleep(30.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.drive, adapter, "bridge")
        await turns.wait_for("bridge")
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, "first")
            await turns.wait_for("first")
            asking.start_soon(ask, "second")
            asking.start_soon(ask, "third")
        await turns.wait_for("bridge")
        nursery.cancel_scope.cancel()
    assert turns.order[:2] == ["bridge", "first"]
    # The driver may get the lease between two of them; each of them gets it.
    assert sorted(each for each in turns.order if each != "bridge") == ["first", "second", "third"]


async def test_the_request_of_who_gave_up_waiting_is_withdrawn(
    adapter: StorageAdapter, autojump_clock: MockClock
) -> None:
    turns = Turns()
    # Who holds it does not see the request: it asked itself.
    async with lease_of(adapter, "busy").hold(ask=True):
        with trio.move_on_after(5.0) as patience:
            async with lease_of(adapter, "spark").hold(ask=True):
                pytest.fail("two hold the lease")
        assert patience.cancelled_caught
        assert await lease_of(adapter, "spark").holder() == "busy"
        assert await find_request(adapter, QUEUE) is None
    async with trio.open_nursery() as nursery:
        began_s = trio.current_time()
        nursery.start_soon(turns.drive, adapter, "bridge")
        await turns.wait_for("bridge")
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_a_driver_comes_back_when_who_asked_is_gone(adapter: StorageAdapter, autojump_clock: MockClock) -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.drive, adapter, "bridge")
        await turns.wait_for("bridge")
        # A process that is killed right after it asked.
        await OwnRequest(adapter, QUEUE, "spark").renew(None)
        await turns.wait_for()
        began_s = trio.current_time()
        await turns.wait_for("bridge")
        assert SETTINGS.lease_s <= trio.current_time() - began_s <= SETTINGS.lease_s + 2 * SETTINGS.renew_interval_s
        assert await find_request(adapter, QUEUE) is None
        nursery.cancel_scope.cancel()


async def test_who_asks_takes_the_lease_of_a_driver_that_is_gone(
    adapter: StorageAdapter, autojump_clock: MockClock
) -> None:
    await adapter.put_state(lease_key(QUEUE), encode(Lease("dead bridge", "claim", 7, 3)))
    began_s = trio.current_time()
    async with lease_of(adapter, "spark").hold(ask=True) as grant:
        assert grant.epoch == 8
        assert SETTINGS.lease_s <= trio.current_time() - began_s


async def test_a_requester_that_lost_the_lease_gets_an_error(
    adapter: StorageAdapter, autojump_clock: MockClock
) -> None:
    with pytest.raises(
        QueueLostError, match=r"spark does not drive the cache queue 'plant' .*: another process took it over"
    ):
        async with lease_of(adapter, "spark").hold(ask=True):
            await adapter.put_state(lease_key(QUEUE), encode(Lease("usurper", "claim", 9, 0)))
            await trio.sleep_forever()
    # It is not released: another process has it.
    assert await lease_of(adapter, "spark").holder() == "usurper"
