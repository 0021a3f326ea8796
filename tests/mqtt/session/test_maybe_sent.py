"""Which messages the next owner of a session takes for sent, after each way in which an owner can end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from broker_adapter import StorageAdapter
from broker_adapter.errors import VersionConflictError
from broker_adapter.mqtt.model.position import Position, ReachedLsn, RetainedScan
from broker_adapter.mqtt.session import Session, StoreUnavailableError
from shards.errors import ShardNotFoundError
from tests.mqtt.session.brokers import Broker, Cluster, cluster
from tests.mqtt.session.faults import Path


async def appended_lsn(store: StorageAdapter) -> int:
    """Append a record, and return its lsn."""
    try:
        appended = await store.append("t", [b"x"])
    except ShardNotFoundError:
        await store.create_shard("t")
        appended = await store.append("t", [b"x"])
    result = await store.read("t", appended.base_offset)
    return int(result.records[0].lsn)


async def taken_by_force(brokers: Cluster) -> tuple[Broker, Session]:
    """A broker that has the session of a broker that crashed."""
    one, two = await brokers.start("one"), await brokers.start("two")
    await one.open()
    one.crash()
    return two, (await two.open()).session


@pytest.mark.parametrize("how", ["closed", "handed over", "opened again at the same broker"])
@pytest.mark.parametrize("answer", ["comes", "is lost", "is an error"])
async def test_after_an_orderly_end_all_is_known(autojump_clock: MockClock, how: str, answer: str) -> None:
    async with cluster(wrap=Path) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open()).session
        assert session.out.maybe_sent_lsn == 0, "it is new"
        await appended_lsn(brokers.store)
        if answer != "comes":
            one.adapter.fail(lambda name, _: name == "commit", carried_out=answer == "is lost")
        if how == "closed":
            await one.sessions.close(session, publish_will=False)
        again = await (one if how == "opened again at the same broker" else two).open()
        assert again.present
        assert again.session.out.maybe_sent_lsn == 0
        assert two.sessions.statistics.forced_count == 0


@pytest.mark.parametrize("where", ["elsewhere", "restarted"])
@pytest.mark.parametrize("answer", ["comes", "is lost", "is an error", "conflicts"])
async def test_after_a_crash_all_before_the_takeover_may_have_been_sent(
    autojump_clock: MockClock, where: str, answer: str
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        await one.open()
        one.crash()
        next_owner = await brokers.start("one" if where == "restarted" else "two")
        before_lsn = await appended_lsn(brokers.store)

        def is_commit(name: str, _: object) -> bool:
            return name == "commit"

        if answer == "conflicts":  # so often that the session is taken in two steps
            for _ in range(2):
                next_owner.adapter.fail(
                    is_commit, carried_out=False, error=lambda: VersionConflictError("mqtt/session/c", 1, 2)
                )
        elif answer != "comes":
            next_owner.adapter.fail(is_commit, carried_out=answer == "is lost")
        opened = await next_owner.open()
        assert opened.present
        assert next_owner.adapter.failed_count == {"comes": 0, "conflicts": 2}.get(answer, 1)
        assert before_lsn < opened.session.out.maybe_sent_lsn < await appended_lsn(brokers.store)


@pytest.mark.parametrize("where", ["elsewhere", "restarted"])
async def test_what_came_after_the_session_of_a_dead_broker_was_closed_was_not_sent(
    autojump_clock: MockClock, where: str
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        await one.open()
        one.crash()
        before_lsn = await appended_lsn(brokers.store)
        adopter = await brokers.start("one" if where == "restarted" else "two")
        while not adopter.sessions.statistics.adopted_count:
            await trio.sleep(0.1)
        away_lsn = await appended_lsn(brokers.store)
        opened = await adopter.open()
        assert before_lsn < opened.session.out.maybe_sent_lsn < away_lsn


async def test_a_session_that_was_handed_over_and_not_taken_is_known_still(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await one.open()

        async def dies_before_it_takes(*args: object) -> None:
            two.crash()
            await trio.sleep_forever()

        two.sessions._commits.make = dies_before_it_takes  # type: ignore[method-assign, assignment]
        with pytest.raises(StoreUnavailableError):
            await two.open()
        while not one.sessions.statistics.adopted_count:
            await trio.sleep(0.1)
        assert (await one.open()).session.out.maybe_sent_lsn == 0


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("left", ["messages", "retained messages"])
async def test_an_orderly_end_does_not_make_known_what_an_earlier_owner_sent(
    autojump_clock: MockClock, is_closed: bool, left: str
) -> None:
    async with cluster() as brokers:
        two, session = await taken_by_force(brokers)
        three = await brokers.start("three")
        before = session.out.maybe_sent_lsn
        assert before > 0
        if left == "retained messages":
            session.advance(ReachedLsn(before))
            session.retained.append(RetainedScan("a", Position(before - 1), 1))
        else:
            session.advance(ReachedLsn(before - 2))
        if is_closed:
            await two.sessions.close(session, publish_will=False)
        again = (await three.open()).session
        assert before <= again.out.maybe_sent_lsn < await appended_lsn(brokers.store)

        again.advance(ReachedLsn(again.out.maybe_sent_lsn - 1))
        again.retained.clear()
        if is_closed:
            await three.sessions.close(again, publish_will=False)
        assert (await two.open()).session.out.maybe_sent_lsn == 0, "it has sent all of them again"


async def test_a_session_that_begins_again_has_nothing_that_was_sent(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await one.open()
        one.crash()
        opened = await two.open(clean_start=True)
        assert not opened.present
        assert opened.session.out.maybe_sent_lsn == 0
