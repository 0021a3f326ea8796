"""Sessions at one broker: begun, resumed, taken over by the same client, ended."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from broker_adapter.changes import Changes
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import Sessions, SessionTakenOverError
from broker_adapter.mqtt.session.session import NEVER_EXPIRES_S
from broker_adapter.mqtt_codec.packets import Version
from shards.errors import InvalidRequestError, ShardNotFoundError
from shards.format.record import Record
from tests.mqtt.session.brokers import TrioClock, cluster, publisher, will


def message(offset: int, qos: int = 2, lsn: int | None = None) -> Message:
    return Message("t", b"", qos, shard="t", offset=offset, lsn=100 + offset if lsn is None else lsn)


async def test_a_session_continues_with_all_that_it_had(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        opened = await one.open()
        assert not opened.present
        session = opened.session
        session.subscriptions["a/+"] = SubscriptionOptions(2, True, True, 1, 7, Position(50))
        await one.sessions.save_subscriptions(session)
        first, second = session.out.assign(message(0), 2), session.out.assign(message(1), 1)
        session.out.pubrec(first.packet_id)
        session.advance(100)
        await brokers.store.create_shard("in")
        await one.sessions.commit(session, Changes(appends=(("in", [Record(b"v")]),)), received={4: 0, 9: 0})
        await one.sessions.close(session, publish_will=False)

        again = await one.open()
        assert again.present
        assert again.session.subscriptions == session.subscriptions
        assert set(again.session.inbound) == {4, 9}
        assert again.session.position_lsn == 100
        assert [(entry.packet_id, entry.released) for entry in again.session.out.take_resends()] == [
            (first.packet_id, True),
            (second.packet_id, False),
        ]


async def test_a_position_that_was_never_stored_begins_where_the_first_subscription_did(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        session.subscriptions = {
            "a": SubscriptionOptions(1, since=Position(70)),
            "b": SubscriptionOptions(1, since=Position(50)),
        }
        await one.sessions.save_subscriptions(session)
        one.crash()
        two = await brokers.start("two")
        assert (await two.open()).session.position_lsn == 50


@pytest.mark.parametrize(
    ("expiry_s", "clean_start", "present"), [(3600, False, True), (3600, True, False), (0, False, False)]
)
async def test_a_session_is_present_if_it_outlived_its_connection_and_is_wanted(
    autojump_clock: MockClock, expiry_s: int, clean_start: bool, present: bool
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=expiry_s)).session
        session.subscriptions["a"] = SubscriptionOptions(1)
        await one.sessions.save_subscriptions(session)
        await one.sessions.close(session, publish_will=False)
        opened = await one.open(clean_start=clean_start)
        assert opened.present is present
        assert bool(opened.session.subscriptions) is present


async def test_a_session_that_is_resumed_without_expiry_continues_and_ends_with_this_connection(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        session.out.assign(message(0), 2)
        await one.sessions.save(session)
        await one.sessions.close(session, publish_will=False)
        opened = await one.open(expiry_s=0)
        assert opened.present
        assert len(opened.session.out) == 1
        await one.sessions.close(opened.session, publish_will=False)
        assert await brokers.keys() == []
        assert not (await one.open()).present


async def test_a_session_without_expiry_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=0)).session
        await brokers.store.create_shard("in")
        await one.sessions.commit(session, Changes(appends=(("in", [Record(b"v")]),)), received={1: 0})
        assert set(session.inbound) == {1}
        await one.sessions.save(session)
        await one.sessions.save_subscriptions(session)
        one.sessions.save_soon(session)
        await trio.sleep(3)
        await one.sessions.close(session, publish_will=False)
        assert await brokers.keys() == []


async def test_a_session_that_is_not_durable_stores_no_more_than_its_owner(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=0)).session
        session.subscriptions["a"] = SubscriptionOptions(1)
        await one.sessions.save_subscriptions(session)
        await one.sessions.save(session)
        assert await brokers.keys() == ["owned/one/c", "session/c"]


async def test_disconnect_can_end_a_durable_session_at_once(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        await one.sessions.close(session, publish_will=False, expiry_interval_s=0)
        assert await brokers.keys() == []


async def test_a_session_expires_when_its_time_is_over_and_not_before(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=100)).session
        await trio.sleep(500)
        await one.sessions.close(session, publish_will=False)
        await trio.sleep(99)
        assert "session/c" in await brokers.keys()
        await trio.sleep(5)
        assert await brokers.keys() == []
        assert one.sessions.statistics.expired_count == 1
        assert not (await one.open()).present


async def test_an_expired_session_is_not_present_before_it_is_removed(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one", timer_interval_s=1000.0)
        session = (await one.open(expiry_s=100, will=will(delay_s=200))).session
        session.subscriptions["a"] = SubscriptionOptions(1)
        await one.sessions.save_subscriptions(session)
        await one.sessions.close(session, publish_will=True)
        await trio.sleep(101)
        opened = await one.open(expiry_s=100)
        assert not opened.present
        assert not opened.session.subscriptions
        assert await brokers.published() == [b"gone"]


@pytest.mark.slow("days pass on a simulated clock")
async def test_a_session_that_never_expires_has_no_timer(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=NEVER_EXPIRES_S)).session
        await one.sessions.close(session, publish_will=False)
        assert await brokers.keys() == ["progress/c", "session/c"]
        await trio.sleep(5000)
        assert (await one.open()).present


async def test_a_client_that_returns_stops_the_clock(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        for _ in range(3):
            session = (await one.open(expiry_s=100)).session
            await one.sessions.close(session, publish_will=False)
            await trio.sleep(90)
        assert (await one.open(expiry_s=100)).present
        assert not [key for key in await brokers.keys() if key.startswith("timer/")]
        await trio.sleep(1000)
        assert "session/c" in await brokers.keys()


async def test_a_second_connection_takes_the_session_from_the_first(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        first = (await one.open()).session
        first.out.assign(message(0), 1)
        second = await one.open()
        assert second.present
        assert len(second.session.out) == 1, "what was under way was stored before the session moved"
        assert one.fenced == [first]
        assert not first.is_open
        for call in (
            one.sessions.save(first),
            one.sessions.save_subscriptions(first),
            one.sessions.commit(first, Changes()),
            one.sessions.join_share(first, "g", "a", after=Position(0)),
        ):
            with pytest.raises(SessionTakenOverError):
                await call
        one.sessions.save_soon(first)
        await one.sessions.close(first, publish_will=True)
        assert one.sessions.find("c") is second.session
        await one.sessions.save(second.session)


async def test_of_many_connections_at_once_the_last_to_be_served_has_the_session(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        opened = []

        async def connect() -> None:
            opened.append((await one.open()).session)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(connect)
        assert [session.is_open for session in opened] == [False] * 9 + [True]
        assert one.fenced == opened[:-1]
        assert [session.epoch for session in opened] == list(range(1, 11))


async def test_calls_to_save_that_wait_at_the_same_time_are_one_write(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        commits = 0
        commit = one.adapter.commit

        async def counted(changes: Changes) -> object:
            nonlocal commits
            commits += 1
            await trio.sleep(0.01)
            return await commit(changes)

        one.adapter.commit = counted  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one.sessions.save, session)
                nursery.start_soon(one.sessions.save_subscriptions, session)
        assert 1 <= commits <= 2


async def test_saving_returns_only_when_a_state_as_new_as_the_call_is_stored(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session

        async def save_one(offset: int) -> None:
            await trio.sleep(offset / 1000)
            session.out.assign(message(offset), 2)
            await one.sessions.save(session)
            assigned = len(session.out)
            stored = await brokers.stored_progress("c")
            assert offset in [entry.offset for entry in stored.publishes]
            assert len(stored.publishes) <= assigned

        async with trio.open_nursery() as nursery:
            for offset in range(20):
                nursery.start_soon(save_one, offset)


async def test_a_position_that_moves_is_stored_about_once_a_second(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        sessions = [(await one.open(f"c{number}")).session for number in range(200)]
        versions: list[set[int]] = [set() for _ in sessions]
        for lsn in range(1000, 1100):
            for session, seen in zip(sessions, versions, strict=True):
                session.advance(lsn)
                one.sessions.save_soon(session)
                seen.add((await brokers.stored_progress(session.client_id)).position_lsn)
            await trio.sleep(0.1)
        await trio.sleep(1.5)
        assert all(9 <= len(seen) <= 12 for seen in versions)
        for session in sessions:
            assert (await brokers.stored_progress(session.client_id)).position_lsn == 1099


async def test_a_refused_commit_leaves_the_session_as_it_was(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open()).session
        with pytest.raises(ShardNotFoundError):
            await one.sessions.commit(session, Changes(appends=(("nowhere", [Record(b"v")]),)), received={1: 0})
        assert set(session.inbound) == set()
        await one.sessions.save(session)
        assert (await brokers.stored_progress("c")).inbound == ()


async def test_client_identifiers_of_any_kind_are_distinguished(autojump_clock: MockClock) -> None:
    names = ["a", "a/b", "a/", "/", "é", "x" * 5000, "x" * 4999 + "y", "\x00", "owned/one/c"]
    async with cluster() as brokers:
        one = await brokers.start("one")
        for name in names:
            session = (await one.open(name, expiry_s=100)).session
            session.subscriptions[name[-3:]] = SubscriptionOptions(1)
            await one.sessions.save_subscriptions(session)
            await one.sessions.close(session, publish_will=False)
        for name in names:
            opened = await one.open(name, expiry_s=100)
            assert opened.present
            assert list(opened.session.subscriptions) == [name[-3:]]
            await one.sessions.close(opened.session, publish_will=False)
        await trio.sleep(110)
        assert await brokers.keys() == []


async def test_the_protocol_version_of_the_newest_connection_counts(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(version=Version.V311)).session
        assert session.version is Version.V311
        await one.sessions.close(session, publish_will=False)
        assert (await one.open(version=Version.V5)).session.version is Version.V5


async def test_counts_say_what_is_open(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        durable, other = (await one.open("a")).session, (await one.open("b", expiry_s=0)).session
        statistics = one.sessions.statistics
        assert (statistics.connected_count, statistics.durable_count, statistics.opened_count) == (2, 1, 2)
        await one.open("a")
        assert (statistics.connected_count, statistics.resumed_count, statistics.fenced_count) == (2, 1, 1)
        await one.sessions.close(other, publish_will=False)
        assert (statistics.connected_count, statistics.durable_count) == (1, 1)
        assert not durable.is_open


@pytest.mark.parametrize("broker_id", ["", "a/b"])
def test_a_broker_id_that_cannot_be_part_of_a_key_is_refused(broker_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="broker id"):
        Sessions(
            None,  # type: ignore[arg-type]
            broker_id,
            changes_for=publisher(None, TrioClock()),  # type: ignore[arg-type]
            on_fenced=lambda session: None,
            on_unanswered=lambda session: None,
            on_kick=lambda kick, session: None,
            clock=TrioClock(),
        )
