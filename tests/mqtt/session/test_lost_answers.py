"""The store goes away in the middle of things: what was carried out counts once, what was not is done later."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker_adapter.changes import Changes
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import SessionTakenOverError, StoreUnavailableError
from journal.protocol.errors import ShuttingDownError
from shards.errors import DiskFullError, LimitExceededError, StorageError, StorageFailedError
from shards.format.record import Record
from tests.mqtt.session.brokers import Cluster, cluster, will
from tests.mqtt.session.faults import Path


def message(offset: int) -> Message:
    return Message("t", b"", 2, shard="t", offset=offset, lsn=100 + offset)


def is_commit(name: str, argument: Any) -> bool:
    return name == "commit"


def incoming(number: int) -> Changes:
    return Changes(appends=(("in", [Record(b"%d" % number)]),))


async def received(brokers: Cluster) -> list[bytes]:
    return [record.value for record in (await brokers.store.read("in", 0)).records]  # type: ignore[union-attr]


@pytest.mark.parametrize("expiry_s", [0, 3600])
@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_message_and_its_identifier_are_stored_once_though_the_answer_is_lost(
    autojump_clock: MockClock, carried_out: bool, expiry_s: int
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("in")
        session = (await one.open(expiry_s=expiry_s)).session
        for number in range(1, 6):
            one.adapter.fail(is_commit, carried_out=carried_out)
            await one.sessions.commit(session, incoming(number), received={number: 0})
        assert await received(brokers) == [b"1", b"2", b"3", b"4", b"5"]
        assert set(session.inbound) == {1, 2, 3, 4, 5}
        if expiry_s:
            assert set((await brokers.stored_progress("c")).inbound) == set(session.inbound)
        assert one.fenced == []


@given(st.lists(st.sampled_from(["ok", "lost", "done but lost", "given up", "given up but done"]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_identifiers_and_messages_agree_whatever_became_of_the_answers(fates: list[str]) -> None:
    trio.run(commit_with, fates, clock=MockClock(autojump_threshold=0))


async def commit_with(fates: list[str]) -> None:
    """A commit that was given up may still be carried out: the session learns of it before it writes anything else."""
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("in")
        session = (await one.open()).session
        path = one.adapter
        for number, fate in enumerate(fates, 1):
            if fate in ("lost", "done but lost"):
                path.fail(is_commit, carried_out=fate == "done but lost")
            if fate == "given up":
                path.freeze()
            elif fate == "given up but done":
                path.lose_answers()
            with trio.move_on_after(0.5):
                await one.sessions.commit(session, incoming(number), received={number: 0})
            path.thaw()
        await one.sessions.save(session)
        stored = {int(value) for value in await received(brokers)}
        assert len(stored) == len(await received(brokers)), "nothing twice"
        assert set(session.inbound) == stored == set((await brokers.stored_progress("c")).inbound)
        assert {number for number, fate in enumerate(fates, 1) if not fate.startswith("given up")} <= stored
        two = await brokers.start("two")
        assert set((await two.open()).session.inbound) == stored


async def test_a_write_that_arrives_late_is_not_mistaken_for_another(autojump_clock: MockClock) -> None:
    """The first write was given up while it was under way, and is carried out only after the next one was sent."""
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("in")
        session = (await one.open()).session
        commit = brokers.store.commit
        first_is_held = trio.Event()
        numbers = itertools.count(1)

        async def held(changes: Changes) -> object:
            number = next(numbers)
            if number == 1:
                try:
                    await trio.sleep_forever()
                finally:
                    late.append(changes)
            if number == 2:
                await commit(late[0])
                first_is_held.set()
            return await commit(changes)

        late: list[Changes] = []
        one.adapter._store = Replacing(brokers.store, held)
        with trio.move_on_after(1):
            await one.sessions.commit(session, incoming(1), received={1: 0})
        assert set(session.inbound) == set()
        await one.sessions.commit(session, incoming(2), received={2: 0})
        assert first_is_held.is_set()
        assert await received(brokers) == [b"1", b"2"]
        assert set(session.inbound) == {1, 2}
        assert set((await brokers.stored_progress("c")).inbound) == {1, 2}


class Replacing:
    """A store with another commit."""

    def __init__(self, store: Any, commit: Callable[[Changes], Any]) -> None:
        self._store = store
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_session_opens_once_though_the_answer_is_lost(autojump_clock: MockClock, carried_out: bool) -> None:
    async with cluster(wrap=Path) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await one.open(expiry_s=0, will=will(payload=b"first"))
        two.adapter.fail(is_commit, carried_out=carried_out)
        opened = await two.open(expiry_s=0, will=will(payload=b"second"))
        assert opened.session.epoch == 2
        assert await brokers.published() == [b"first"], "its own will is not taken for that of an owner before"
        opened.session.subscriptions["a"] = SubscriptionOptions(1)
        await two.sessions.join_share(opened.session, "g", "a", after=Position(0))
        await two.sessions.close(opened.session, publish_will=True)
        assert await brokers.published() == [b"first", b"second"]


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("expiry_s", [0, 50])
async def test_a_session_closes_once_though_the_answer_is_lost(
    autojump_clock: MockClock, expiry_s: int, carried_out: bool
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=expiry_s, will=will())).session
        one.adapter.fail(is_commit, carried_out=carried_out)
        await one.sessions.close(session, publish_will=True)
        assert await brokers.published() == [b"gone"]
        await trio.sleep(60)
        assert await brokers.published() == [b"gone"]
        assert await brokers.keys() == []


@pytest.mark.parametrize("error", [ShuttingDownError, DiskFullError, StorageFailedError])
async def test_saving_waits_for_a_store_that_is_in_trouble(
    autojump_clock: MockClock, error: type[StorageError]
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        session.out.assign(message(0), 2)
        for _ in range(5):
            one.adapter.fail(is_commit, carried_out=False, error=lambda: error("in trouble"))
        await one.sessions.save(session)
        assert len((await brokers.stored_progress("c")).publishes) == 1
        assert one.sessions.statistics.retry_count >= 5


@pytest.mark.parametrize("error", [DiskFullError, LimitExceededError])
async def test_a_publish_is_refused_if_the_store_has_no_room(
    autojump_clock: MockClock, error: type[StorageError]
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        await brokers.store.create_shard("in")
        one.adapter.fail(is_commit, carried_out=False, error=lambda: error("full"))
        with pytest.raises(error):
            await one.sessions.commit(session, incoming(1), received={1: 0})
        assert set(session.inbound) == set()
        await one.sessions.commit(session, incoming(2), received={2: 0})
        assert set(session.inbound) == {2}


@pytest.mark.parametrize("carried_out", [False, True])
async def test_what_a_failed_store_has_carried_out_turns_out_with_the_next_write(
    autojump_clock: MockClock, carried_out: bool
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        await brokers.store.create_shard("in")
        one.adapter.fail(is_commit, carried_out=carried_out, error=lambda: StorageFailedError("fsync"))
        with pytest.raises(StorageFailedError):
            await one.sessions.commit(session, incoming(1), received={1: 0})
        await one.sessions.save(session)
        assert set(session.inbound) == ({1} if carried_out else set())


async def test_opening_gives_up_in_time_and_later_works(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        one.adapter.freeze()
        began_s = trio.current_time()
        with pytest.raises(StoreUnavailableError, match="did not answer within 5 s"):
            await one.open()
        assert trio.current_time() - began_s == pytest.approx(5)
        one.adapter.thaw()
        assert not (await one.open()).present


async def test_clients_stay_through_an_outage_and_go_on_where_they_were(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open(will=will())).session
        await brokers.store.create_shard("in")
        for broker in (one, two):
            broker.adapter.freeze()
        done = []

        async def publish(number: int) -> None:
            await one.sessions.commit(session, incoming(number), received={number: 0})
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(1, 11):
                nursery.start_soon(publish, number)
            await trio.sleep(600)
            assert done == []
            for broker in (one, two):
                broker.adapter.thaw()
        assert sorted(await received(brokers), key=int) == [b"%d" % number for number in range(1, 11)]
        await trio.sleep(100)
        assert one.fenced == []
        assert await brokers.published() == []


async def test_closing_waits_for_the_store_and_a_close_that_is_given_up_is_made_up_for(
    autojump_clock: MockClock,
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        first, second = (await one.open("a", will=will())).session, (await one.open("b", will=will())).session
        one.adapter.freeze()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one.sessions.close(first, publish_will=True))
            with trio.move_on_after(5):
                await one.sessions.close(second, publish_will=True)
            await trio.sleep(100)
            assert await brokers.published() == []
            one.adapter.thaw()
        await trio.sleep(5)
        assert await brokers.published() == [b"gone", b"gone"]
        assert one.sessions.statistics.connected_count == 0
        assert not [key for key in await brokers.keys() if key.startswith("owned/")]


async def test_many_positions_are_stored_together_and_one_that_is_fenced_spoils_none(
    autojump_clock: MockClock,
) -> None:
    async with cluster(wrap=Path) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        sessions = [(await one.open(f"c{number}")).session for number in range(40)]

        async def deaf(*args: object) -> None:
            await trio.lowlevel.checkpoint()

        one.sessions._peer_channel._handle = deaf  # type: ignore[method-assign]
        await two.open("c7")
        commits = 0
        commit = one.adapter.commit

        async def counted(changes: Changes) -> object:
            nonlocal commits
            commits += 1
            return await commit(changes)

        one.adapter.commit = counted
        for session in sessions:
            session.advance(500)
            one.sessions.save_soon(session)
        await trio.sleep(2)
        assert one.fenced == [sessions[7]]
        for session in sessions:
            if session is not sessions[7]:
                assert (await brokers.stored_progress(session.client_id)).position_lsn == 500
        for session in sessions:
            session.advance(600)
            one.sessions.save_soon(session)
        commits = 0
        await trio.sleep(2)
        assert commits == 1
        with pytest.raises(SessionTakenOverError):
            await one.sessions.save(sessions[7])


async def test_a_session_that_is_just_being_written_is_stored_with_the_next_ones(autojump_clock: MockClock) -> None:
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: 0.7)) as brokers:
        one = await brokers.start("one")
        busy, idle = (await one.open("busy")).session, (await one.open("idle")).session

        async def write_on() -> None:
            for _ in range(10):
                await one.sessions.save(busy)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            for lsn in range(1, 30):
                for session in (busy, idle):
                    session.advance(lsn)
                    one.sessions.save_soon(session)
                await trio.sleep(0.3)
        await trio.sleep(5)
        for session in (busy, idle):
            assert (await brokers.stored_progress(session.client_id)).position_lsn == 29


async def test_positions_of_an_outage_are_stored_after_it(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        one.adapter.fail(is_commit, carried_out=True)
        session.advance(500)
        one.sessions.save_soon(session)
        await trio.sleep(3)
        session.advance(600)
        one.sessions.save_soon(session)
        await trio.sleep(3)
        assert (await brokers.stored_progress("c")).position_lsn == 600
