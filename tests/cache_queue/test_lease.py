"""Who drives a queue: exactly one at a time, whatever happens to the candidates and their ways to the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import LeaseSettings, QueueLease, names
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease import Grant
from shards.model import StateValue
from tests.mqtt.session.faults import Path as StorePath

QUEUE = "plant"
SETTINGS = LeaseSettings(lease_s=9.0, renew_interval_s=2.0)


@attrs.define
class Candidates:
    """Candidates for one queue, each on a way to the store of its own.

    Attributes:
        holders: Those who believe that they hold the lease.
        epochs: Of all grants, in their order.
        lost: Names of those that got the error that they had lost it.
    """

    store: StorageAdapter
    nursery: trio.Nursery
    holders: list[str] = attrs.Factory(list)
    epochs: list[int] = attrs.Factory(list)
    lost: list[str] = attrs.Factory(list)

    def start(self, name: str) -> tuple[StorePath, trio.CancelScope]:
        path, scope = StorePath(self.store), trio.CancelScope()
        self.nursery.start_soon(self._compete, name, path, scope)
        return path, scope

    async def _compete(self, name: str, path: StorePath, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    async with QueueLease(path, QUEUE, name, SETTINGS).hold() as grant:
                        await self._hold(grant, name)
                except QueueLostError:
                    self.lost.append(name)

    async def _hold(self, grant: Grant, name: str) -> None:
        assert not self.holders, f"{name} holds it beside {self.holders}"
        self.holders.append(name)
        self.epochs.append(grant.epoch)
        try:
            await trio.sleep_forever()
        finally:
            self.holders.remove(name)


@asynccontextmanager
async def candidates() -> AsyncIterator[Candidates]:
    async with open_adapter("memory:") as store, trio.open_nursery() as nursery:
        yield Candidates(store, nursery)
        nursery.cancel_scope.cancel()


async def test_of_many_exactly_one_holds_it(autojump_clock: MockClock) -> None:
    async with candidates() as all_of_them:
        for name in "abcde":
            all_of_them.start(name)
        for _ in range(50):
            await trio.sleep(1.3)
            assert len(all_of_them.holders) == 1
        assert all_of_them.epochs == [1]


async def test_it_is_taken_over_a_period_after_its_holder_froze(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        path, _ = both.start("a")
        await trio.sleep(1)
        both.start("b")
        await trio.sleep(20)
        assert both.holders == ["a"]
        path.freeze()
        await trio.sleep(SETTINGS.safe_s + SETTINGS.renew_interval_s)
        assert both.holders == []
        assert both.lost == ["a"]
        await trio.sleep(SETTINGS.lease_s)
        assert both.holders == ["b"]
        assert both.epochs == [1, 2]


async def test_a_holder_that_cannot_renew_lets_go_before_anybody_may_take_over(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        path, _ = both.start("a")
        await trio.sleep(1)
        path.lose_answers()
        # The renewals arrive, but it does not know that.
        await trio.sleep(SETTINGS.safe_s + 0.1)
        assert both.holders == []


async def test_one_that_comes_back_finds_that_it_is_another_ones(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        path, _ = both.start("a")
        await trio.sleep(1)
        both.start("b")
        await trio.sleep(1)
        path.freeze()
        await trio.sleep(40)
        path.thaw()
        await trio.sleep(40)
        assert both.holders == ["b"]


async def test_it_is_given_back_and_taken_at_once(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        _, scope = both.start("a")
        await trio.sleep(1)
        both.start("b")
        await trio.sleep(1)
        scope.cancel()
        await trio.sleep(SETTINGS.renew_interval_s + 0.1)
        assert both.holders == ["b"]
        assert both.lost == []


async def test_it_is_given_back_also_when_that_cuts_off_a_renewal(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        path, scope = both.start("a")
        await trio.sleep(1)
        both.start("b")
        path.lose_answers(of="put_state")
        # By now a renewal is stored, and its answer on the way.
        await trio.sleep(SETTINGS.renew_interval_s)
        path.thaw()
        scope.cancel()
        await trio.sleep(SETTINGS.renew_interval_s + 0.1)
        assert both.holders == ["b"]


async def test_a_holder_that_is_killed_is_waited_for_as_long_as_it_may_live(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        path, scope = both.start("a")
        await trio.sleep(1)
        both.start("b")
        await trio.sleep(3)
        path.freeze()  # so that nothing is given back
        scope.cancel()
        began_s = trio.current_time()
        while both.holders != ["b"]:
            await trio.sleep(0.1)
        assert SETTINGS.lease_s - SETTINGS.renew_interval_s <= trio.current_time() - began_s
        assert trio.current_time() - began_s <= SETTINGS.lease_s + 2 * SETTINGS.renew_interval_s


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_to_a_renewal_costs_nothing(autojump_clock: MockClock, carried_out: bool) -> None:
    async with candidates() as both:
        path, _ = both.start("a")
        await trio.sleep(1)
        both.start("b")
        for _ in range(5):
            path.fail(lambda name, _: name == "put_state", carried_out=carried_out)
            await trio.sleep(5)
        assert path.failed_count == 5
        assert both.holders == ["a"]
        assert both.lost == []


async def test_an_answer_that_is_lost_while_another_is_looked_for_costs_nothing(autojump_clock: MockClock) -> None:
    """The renewal was carried out without an answer, and the question whether it was fails as well."""
    async with candidates() as both:
        path, _ = both.start("a")
        await trio.sleep(1)
        path.fail(lambda name, _: name == "put_state", carried_out=True)
        path.fail(lambda name, key: name == "get_state" and key == names.lease_key(QUEUE), carried_out=True)
        await trio.sleep(5)
        assert path.failed_count == 2
        assert (both.holders, both.lost) == (["a"], [])


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_to_taking_it_leaves_it_with_one(autojump_clock: MockClock, carried_out: bool) -> None:
    async with candidates() as both:
        path, _ = both.start("a")
        path.fail(lambda name, _: name == "put_state", carried_out=carried_out)
        await trio.sleep(3)
        both.start("b")
        await trio.sleep(30)
        assert both.holders == ["a"]


async def test_a_holder_whose_taking_took_long_counts_from_its_beginning(autojump_clock: MockClock) -> None:
    """The store had it at once, the answer came late: others counted from then on."""
    async with candidates() as both:
        slow = SlowAnswers(both.store, SETTINGS.safe_s - 1)
        taken_s = trio.current_time()
        lost_s = None

        async def take() -> None:
            nonlocal lost_s
            try:
                async with QueueLease(slow, QUEUE, "slow", SETTINGS).hold():
                    slow.freeze()
                    await trio.sleep_forever()
            except QueueLostError:
                lost_s = trio.current_time()

        both.nursery.start_soon(take)
        await trio.sleep(40)
        assert lost_s is not None
        assert lost_s - taken_s <= SETTINGS.safe_s


async def test_an_answer_that_comes_too_late_is_no_lease(autojump_clock: MockClock) -> None:
    async with candidates() as both:
        slow = SlowAnswers(both.store, SETTINGS.lease_s + 1)

        async def take() -> None:
            async with QueueLease(slow, QUEUE, "slow", SETTINGS).hold():
                raise AssertionError("others may have it by now")

        both.nursery.start_soon(take)
        await trio.sleep(1)
        both.start("b")
        await trio.sleep(60)
        assert both.holders == ["b"]


async def test_the_error_of_who_holds_it_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    async with open_adapter("memory:") as store:
        lease = QueueLease(store, QUEUE, "a", SETTINGS)
        with pytest.raises(ZeroDivisionError):
            async with lease.hold():
                raise ZeroDivisionError
        with trio.fail_after(SETTINGS.renew_interval_s):
            async with QueueLease(store, QUEUE, "b", SETTINGS).hold() as grant:
                assert grant == Grant(QUEUE, "b", 2)


async def test_losing_it_names_who_and_what(autojump_clock: MockClock) -> None:
    async with open_adapter("memory:") as store:
        with pytest.raises(QueueLostError, match=r"broker 1 does not drive the cache queue 'plant' any more"):
            async with QueueLease(store, QUEUE, "broker 1", SETTINGS).hold():
                await store.put_state(names.lease_key(QUEUE), await _another_ones(store))
                await trio.sleep(60)


async def _another_ones(store: StorageAdapter) -> bytes:
    from broker_adapter.cache_queue.stored import Lease
    from broker_adapter.state_forms import encode

    return encode(Lease("somebody", "else", 7, 0))


FAULTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["freeze", "thaw", "lose_answers", "restart"]), st.floats(0.1, 15)),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(FAULTS)
@example([(number, fault, 5.0) for fault in ("freeze", "lose_answers") * 2 for number in range(3)])
def test_whatever_happens_no_two_hold_it_and_in_the_end_one_does(faults: list[tuple[int, str, float]]) -> None:
    trio.run(_no_two_hold_it, faults, clock=MockClock(autojump_threshold=0))


async def _no_two_hold_it(faults: list[tuple[int, str, float]]) -> None:
    async with candidates() as three:
        running = {number: three.start(f"c{number}") for number in range(3)}
        for number, fault, then_s in faults:
            path, scope = running[number]
            if fault == "restart":
                path.freeze()
                scope.cancel()
                running[number] = three.start(f"c{number}")
            else:
                getattr(path, fault)()
            await trio.sleep(then_s)
        for path, _ in running.values():
            path.thaw()
        await trio.sleep(5 * SETTINGS.lease_s)
        assert len(three.holders) == 1
        assert three.epochs == sorted(set(three.epochs))


class SlowAnswers(StorePath):
    """A way on which answers to puts take their time."""

    def __init__(self, store: StorageAdapter, answer_s: float) -> None:
        super().__init__(store)
        self._answer_s = answer_s

    async def put_state(self, key: bytes, value: bytes, **options: Any) -> StateValue:
        stored = await super().put_state(key, value, **options)
        await trio.sleep(self._answer_s)
        return stored
