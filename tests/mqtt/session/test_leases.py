"""Which brokers are dead, decided without comparing clocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from broker_adapter import StorageAdapter
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.mqtt.session import BrokerReplacedError, keys
from broker_adapter.mqtt.session.stored import Lease
from broker_adapter.state_forms import decode, encode
from tests.mqtt.session.brokers import cluster
from tests.mqtt.session.faults import Path

LEASE_S, MAX_GAP_S = 15.0, 10.0


def test_a_lease_that_does_not_change_for_a_whole_period_has_run_out() -> None:
    watch = LeaseWatch(LEASE_S, MAX_GAP_S)
    for at in (0.0, 5.0, 10.0):
        assert watch.look(at, at, {"a": 1, "b": int(at) + 1})[1] == []
    assert watch.look(15, 15, {"a": 1, "b": 16}) == (["b"], ["a"])


def test_time_without_a_look_proves_nothing() -> None:
    watch = LeaseWatch(LEASE_S, MAX_GAP_S)
    watch.look(0, 0, {"a": 1})
    watch.look(5, 5, {"a": 1})
    assert watch.look(500, 500, {"a": 1})[1] == []
    assert watch.look(510, 510, {"a": 1})[1] == []
    assert watch.look(515, 515, {"a": 1})[1] == ["a"]


def test_a_look_that_takes_long_counts_from_where_it_can_be_relied_on() -> None:
    watch = LeaseWatch(LEASE_S, MAX_GAP_S)
    watch.look(0, 4, {"a": 1})  # the lease was seen at some time until 4
    watch.look(9, 10, {"a": 1})
    assert watch.look(15, 19, {"a": 1})[1] == []  # and here perhaps as early as 15
    assert watch.look(19, 19, {"a": 1})[1] == ["a"]


def test_a_lease_that_is_gone_is_forgotten() -> None:
    watch = LeaseWatch(LEASE_S, MAX_GAP_S)
    for at in (0.0, 5.0, 10.0):
        watch.look(at, at, {"a": 1})
    watch.look(14, 14, {})
    assert watch.look(15, 15, {"a": 1})[1] == []


@given(
    st.lists(st.floats(0.1, 20), min_size=1, max_size=40),
    st.lists(st.floats(0.1, 4.9), min_size=1, max_size=200),
    st.floats(0, 3),
)
def test_who_renews_in_time_is_never_taken_for_dead(pauses: list[float], renewals: list[float], read_s: float) -> None:
    """Looks come at any times and take their time; a renewal is at most a third of the period after the last one."""
    watch = LeaseWatch(LEASE_S, MAX_GAP_S)
    renewed_at = [0.0]
    while renewed_at[-1] < 1000:
        renewed_at.append(renewed_at[-1] + renewals[len(renewed_at) % len(renewals)])
    now_s = 0.0
    for pause in pauses:
        now_s += pause
        seen_at = now_s + read_s * 0.5
        version = sum(at <= seen_at for at in renewed_at)
        assert watch.look(now_s, now_s + read_s, {"a": version})[1] == []
        now_s += read_s


async def test_a_second_process_of_the_same_name_stops_the_first(autojump_clock: MockClock) -> None:
    with pytest.raises(BrokerReplacedError, match="needs an id of its own"):
        async with cluster() as brokers:
            await brokers.start("one")
            await brokers.start("one")
            await trio.sleep(20)


async def test_a_broker_that_stops_in_good_order_leaves_no_lease(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=0)).session
        await one.sessions.close(session, publish_will=False)
        one.scope.cancel()
        await trio.sleep(1)
        assert [value async for value in brokers.store.scan_state(b"mqtt/")] == []


async def test_a_broker_that_stops_with_open_sessions_leaves_them_to_the_others(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        await one.open(expiry_s=0)
        one.scope.cancel()
        await trio.sleep(1)
        assert await brokers.store.get_state(keys.broker("one")) is not None
        await brokers.start("two")
        await trio.sleep(40)
        assert await brokers.keys() == []
        assert await brokers.store.get_state(keys.broker("one")) is None


@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_renewal_whose_answer_is_lost_is_no_reason_to_stop(
    autojump_clock: MockClock, carried_out: bool
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        for _ in range(5):
            one.adapter.fail(lambda name, argument: name == "put_state", carried_out=carried_out)
            await trio.sleep(7)
        assert one.adapter.failed_count == 5
        await one.sessions.save(session)


async def test_a_store_that_cannot_be_looked_at_for_a_while_stops_no_broker(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        for _ in range(20):
            one.adapter.fail(lambda name, argument: name == "scan_state", carried_out=False)
        await trio.sleep(30)
        assert one.adapter.failed_count == 20
        await one.open()


class Named:
    """A store that is a server for many clients, each of which has a name."""

    def __init__(self, store: StorageAdapter, ended: list[str], names: Iterator[int]) -> None:
        self._store = store
        self._ended = ended
        self.client_name = f"client-{next(names)}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def end_client(self, name: str) -> int:
        await trio.lowlevel.checkpoint()
        self._ended.append(name)
        return 1


async def test_a_dead_brokers_shares_in_groups_stay_its_own_when_its_sessions_are_adopted(
    autojump_clock: MockClock,
) -> None:
    """Its connection to the store may live on: the store has to learn that its members are gone."""
    ended: list[str] = []
    names = itertools.count()
    async with cluster(wrap=lambda store: Named(store, ended, names)) as brokers:
        one = await brokers.start("one")
        await brokers.start("two")
        one.crash()
        await trio.sleep(60)
        assert set(ended) == {"client-0"}


async def test_a_process_that_takes_the_place_of_another_ends_the_connection_of_that_one(
    autojump_clock: MockClock,
) -> None:
    """The one before may be frozen with messages that it has not stored yet."""
    ended: list[str] = []
    names = itertools.count()
    async with cluster(wrap=lambda store: Named(store, ended, names)) as brokers:
        (await brokers.start("one")).crash()
        await brokers.start("one")
        assert ended == ["client-0"]


async def test_a_process_that_dies_before_it_ended_the_connection_of_another_leaves_that_to_the_next_one(
    autojump_clock: MockClock,
) -> None:
    """Only its own name was in the lease then, and the connection of the earlier one was not ended."""
    ended: list[str] = []
    names = itertools.count()
    is_stuck = False

    class Stuck(Named):
        async def end_client(self, name: str) -> int:
            if is_stuck:
                await trio.sleep_forever()
            return await super().end_client(name)

    async with cluster(wrap=lambda store: Stuck(store, ended, names)) as brokers:
        (await brokers.start("one")).crash()
        is_stuck = True
        with trio.move_on_after(10):
            await brokers.start("one")
        is_stuck = False
        third = await brokers.start("one")
        assert sorted(ended) == ["client-0", "client-1"]
        await trio.sleep(60)
        third.crash()
        ended.clear()
        await brokers.start("one")
        assert ended == ["client-2"], "what was done is not done again"


async def test_who_takes_a_session_by_force_ends_the_connection_of_its_owner_first(autojump_clock: MockClock) -> None:
    """What the owner had sent is stored before the client is let in, or never."""
    ended: list[str] = []
    names = itertools.count()
    async with cluster(wrap=lambda store: Named(store, ended, names)) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        for number in range(20):
            await one.open(f"c{number}")
        await two.open("c0")
        assert ended == []
        one.crash()
        await two.open("c1")
        assert ended == ["client-0"]
        async with trio.open_nursery() as nursery:
            for number in range(2, 20):
                nursery.start_soon(two.open, f"c{number}")
        assert set(ended) == {"client-0"}
        assert len(ended) <= 3, "many that are taken at once share one end"


async def test_a_broker_that_was_declared_dead_loses_its_sessions_before_they_are_closed(
    autojump_clock: MockClock,
) -> None:
    """Another broker may be closing them: a client that comes back there must not meet what is stored here."""
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        lease = await brokers.store.get_state(keys.broker("one"))
        assert lease is not None
        found = decode(Lease, lease.key, lease.value)
        await brokers.store.put_state(lease.key, encode(Lease(found.instance, found.renewal_number, "two")))
        await trio.sleep(7)
        assert one.fenced == [session]
        await one.open()
        await trio.sleep(20)
        assert one.fenced == [session]
