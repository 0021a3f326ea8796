"""A shared subscription lives as long as it has members, wherever they are, and begins again after that."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import SessionTakenOverError
from broker_adapter.mqtt.session.keys import share
from broker_adapter.mqtt.session.stored import ShareRecord
from broker_adapter.state_forms import decode
from shards.subscriptions.group_assignment import STICKY_PREFIX
from tests.mqtt.session.brokers import Cluster, cluster
from tests.mqtt.session.faults import Path


async def members(brokers: Cluster, group: str = "g", topic_filter: str = "a/#") -> int:
    value = await brokers.store.get_state(share(group, topic_filter))
    return 0 if value is None else decode(ShareRecord, value.key, value.value).member_count


async def test_members_share_one_group_and_where_it_began(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        first, second = (await one.open("a")).session, (await two.open("b", expiry_s=0)).session
        founded = await one.sessions.join_share(first, "g", "a/#", after=Position(70))
        assert founded.after == Position(70)
        assert await two.sessions.join_share(second, "g", "a/#", after=Position(90)) == founded
        assert await one.sessions.join_share(first, "g", "a/#", after=Position(95)) == founded
        assert await members(brokers) == 2
        other = await one.sessions.join_share(first, "h", "a/#", after=Position(80))
        assert other.group != founded.group


async def test_the_name_of_a_share_makes_its_group_sticky(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open("a")).session
        for group, sticks in (("sticky-orders", True), ("orders", False), ("orders-sticky-", False)):
            membership = await one.sessions.join_share(session, group, "a/#", after=Position(0))
            assert membership.group.startswith(STICKY_PREFIX) == sticks


async def test_members_that_join_and_leave_at_once_are_counted(autojump_clock: MockClock) -> None:
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: 0.01)) as brokers:
        all_of_them = [await brokers.start(name) for name in ("one", "two", "three")]
        sessions = [
            (broker, (await broker.open(f"{broker.name}{n}")).session) for broker in all_of_them for n in range(4)
        ]
        groups = set()

        async def join(broker: object, session: object) -> None:
            membership = await broker.sessions.join_share(session, "g", "a/#", after=Position(1))  # type: ignore[attr-defined]
            groups.add(membership.group)

        async with trio.open_nursery() as nursery:
            for broker, session in sessions:
                nursery.start_soon(join, broker, session)
        assert len(groups) == 1
        assert await members(brokers) == 12
        async with trio.open_nursery() as nursery:
            for broker, session in sessions[1:]:
                nursery.start_soon(broker.sessions.leave_share, session, "g", "a/#")
        assert await members(brokers) == 1


async def test_a_group_whose_last_member_left_begins_anew_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        old = await one.sessions.join_share(session, "g", "a/#", after=Position(0))
        for shard in ("a/1", "a/2", "b", "$mqtt/live/3"):
            await brokers.store.create_shard(shard)
            await brokers.store.append(shard, [b"v"])
            await brokers.store.commit_cursor(shard, f"group/{old.group}", 1)
        await one.sessions.leave_share(session, "g", "a/#")
        await one.sessions.leave_share(session, "g", "a/#")
        assert session.memberships == {}
        assert await members(brokers) == 0
        new = await one.sessions.join_share(session, "g", "a/#", after=Position(500))
        assert new.group != old.group
        assert new.after == Position(500)
        await trio.sleep(10)
        for shard, kept in (("a/1", 0), ("a/2", 0), ("b", 1), ("$mqtt/live/3", 0)):
            assert len(await brokers.store.list_cursors(shard)) == kept
        assert not [key for key in await brokers.keys() if key.startswith("timer/")]


async def test_a_group_of_one_topic_is_cleared_away_too_though_its_shard_is_gone(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        for topic in ("there", "gone"):
            membership = await one.sessions.join_share(session, "g", topic, after=Position(0))
            await brokers.store.create_shard(topic)
            await brokers.store.commit_cursor(topic, f"group/{membership.group}", 0)
        await brokers.store.delete_shard("gone")
        await one.sessions.close(session, publish_will=False, expiry_interval_s=0)
        await trio.sleep(10)
        assert await brokers.store.list_cursors("there") == []
        assert await brokers.keys() == []


async def test_a_membership_outlives_the_connection_like_its_session(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open(expiry_s=100)).session
        session.subscriptions["$share/g/a/#"] = SubscriptionOptions(1)
        membership = await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        await one.sessions.close(session, publish_will=False)
        assert await members(brokers) == 1
        again = (await two.open(expiry_s=100)).session
        assert again.memberships == {("g", "a/#"): membership}
        assert list(again.subscriptions) == ["$share/g/a/#"], "joining stored the subscriptions too"
        assert await two.sessions.join_share(again, "g", "a/#", after=Position(999)) == membership
        await two.sessions.close(again, publish_will=False)
        await trio.sleep(110)
        assert await members(brokers) == 0
        assert await brokers.keys() == []


@pytest.mark.parametrize("end", ["close", "crash", "clean start", "taken over"])
async def test_a_membership_ends_with_its_session(autojump_clock: MockClock, end: str) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open(expiry_s=0)).session
        await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        assert await members(brokers) == 1
        if end == "close":
            await one.sessions.close(session, publish_will=False)
        elif end == "crash":
            one.crash()
            await trio.sleep(60)
        else:
            await two.open(clean_start=end == "clean start")
        assert await members(brokers) == 0


async def test_a_fenced_session_joins_nothing(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open()).session

        async def deaf(*args: object) -> None:
            await trio.lowlevel.checkpoint()

        one.sessions._peer_channel._handle = deaf  # type: ignore[method-assign]
        await two.open()
        with pytest.raises(SessionTakenOverError):
            await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        assert await members(brokers) == 0
        assert session.memberships == {}


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("leaving", [False, True])
async def test_a_member_counts_once_though_the_answer_is_lost(
    autojump_clock: MockClock, carried_out: bool, leaving: bool
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        other, session = (await one.open("other")).session, (await one.open("c")).session
        await one.sessions.join_share(other, "g", "a/#", after=Position(5))
        if leaving:
            await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        one.adapter.fail(lambda name, argument: name == "commit", carried_out=carried_out)
        if leaving:
            await one.sessions.leave_share(session, "g", "a/#")
        else:
            await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        assert await members(brokers) == (1 if leaving else 2)


async def test_joining_that_was_given_up_counts_once_when_it_is_done_again(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        other, session = (await one.open("other")).session, (await one.open("c")).session
        await one.sessions.join_share(other, "g", "a/#", after=Position(5))
        one.adapter.lose_answers("commit")
        with trio.move_on_after(1):
            await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        one.adapter.thaw()
        assert session.memberships == {}
        assert await members(brokers) == 2
        await one.sessions.join_share(session, "g", "a/#", after=Position(5))
        assert await members(brokers) == 2
        await one.sessions.leave_share(session, "g", "a/#")
        assert await members(brokers) == 1


async def test_group_names_and_filters_of_any_kind_make_names_that_the_store_takes(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        await brokers.store.create_shard("s")
        names = ["g", "Gruppe Ä", "\x01\x7f", "g" * 3000]
        stored = set()
        for name in names:
            membership = await one.sessions.join_share(session, name, "x" * 1000 + "/#", after=Position(1))
            await brokers.store.commit_cursor("s", f"group/{membership.group}", 0)
            stored.add(membership.group)
        assert len(stored) == len(names)
        for name in names:
            await one.sessions.leave_share(session, name, "x" * 1000 + "/#")
        assert not [key for key in await brokers.keys() if key.startswith(("share/", "member/"))]
