"""A session has one owner, whichever brokers take it, die, freeze or continue."""

from __future__ import annotations

import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker_adapter.changes import Changes
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import ClientGoneError, Session, SessionSettings, SessionTakenOverError
from broker_adapter.mqtt.session import keys as state_keys
from broker_adapter.mqtt.session.peer_channel import CONTROL_SHARD
from broker_adapter.mqtt.session.takeover import SessionRequest
from broker_adapter.mqtt_codec import Version
from shards.format.record import Record
from tests.mqtt.session.brokers import Broker, cluster, will
from tests.mqtt.session.faults import Path


def message(offset: int) -> Message:
    return Message("t", b"", 2, shard="t", offset=offset, lsn=100 + offset)


async def test_a_session_moves_with_everything_and_its_old_owner_is_notified(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        old = (await one.open()).session
        old.subscriptions["a"] = SubscriptionOptions(2)
        await one.sessions.save_subscriptions(old)
        for offset in range(5):
            old.out.assign(message(offset), 1)
        began_s = trio.current_time()
        opened = await two.open()
        assert trio.current_time() - began_s < 0.1, "no timeout was waited for"
        assert opened.present
        assert list(opened.session.subscriptions) == ["a"]
        assert len(opened.session.out) == 5, "the old owner stored what was under way before it let go"
        assert one.fenced == [old]
        assert (two.sessions.statistics.taken_over_count, two.sessions.statistics.forced_count) == (1, 0)
        with pytest.raises(SessionTakenOverError):
            await one.sessions.save(old)
        await one.sessions.close(old, publish_will=True)
        await trio.sleep(200)
        assert opened.session.is_open
        assert await brokers.keys() == ["owned/two/c", "progress/c", "session/c"]


async def test_a_client_that_goes_elsewhere_while_its_session_is_asked_for_keeps_it_there(
    autojump_clock: MockClock,
) -> None:
    """A broker that was frozen while it asked the owner went on, and took the session from where the client was."""
    async with cluster() as brokers:
        one, two, three = [await brokers.start(name) for name in ("one", "two", "three")]
        await one.open()
        one.crash()
        has_gone = False
        refused: list[ClientGoneError] = []

        async def open_late() -> None:
            try:
                await two.sessions.open(
                    SessionRequest(
                        client_id="c", version=Version.V5, clean_start=False, expiry_interval_s=3600, will=None
                    ),
                    may_have_left=lambda is_owned: has_gone and is_owned,
                )
            except ClientGoneError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_late)
            await trio.sleep(0.01)
            has_gone = True
            elsewhere = (await three.open()).session
        assert len(refused) == 1
        assert elsewhere.is_open
        assert await brokers.keys() == ["owned/three/c", "progress/c", "session/c"]


async def test_a_session_goes_to_and_fro(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        both = [await brokers.start("one"), await brokers.start("two")]
        for turn in range(10):
            opened = await both[turn % 2].open()
            assert opened.present is (turn > 0)
            assert opened.session.epoch == turn + 1
            opened.session.out.assign(message(turn), 2)
            await both[turn % 2].sessions.save(opened.session)
            assert len(opened.session.out) == turn + 1
        assert sum(broker.sessions.statistics.forced_count for broker in both) == 0


async def test_an_owner_that_died_is_waited_for_once_only(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        for number in range(20):
            session = (await one.open(f"c{number}")).session
            session.out.assign(message(number), 2)
            await one.sessions.save(session)
        one.crash()
        began_s = trio.current_time()
        assert (await two.open("c0")).present
        assert trio.current_time() - began_s == pytest.approx(1.0, abs=0.1)
        began_s = trio.current_time()
        for number in range(1, 20):
            opened = await two.open(f"c{number}")
            assert [entry.offset for entry in opened.session.out] == [number]
        assert trio.current_time() - began_s < 0.1
        assert two.sessions.statistics.forced_count == 20


async def test_a_zombie_is_refused_at_its_first_write_and_ends_its_clients(autojump_clock: MockClock) -> None:
    """A broker that slept through its lease wakes up and goes on as if nothing had happened."""
    async with cluster(wrap=Path) as brokers:
        zombie, two = await brokers.start("zombie"), await brokers.start("two")
        taken, adopted = (await zombie.open("taken")).session, (await zombie.open("adopted", will=will())).session
        path = zombie.adapter
        assert isinstance(path, Path)
        path.freeze()
        await trio.sleep(5)
        mine = (await two.open("taken")).session
        await trio.sleep(60)
        assert await brokers.published() == [b"gone"], "the will of a dead broker's client"
        assert two.sessions.statistics.adopted_count == 1
        refused = []

        async def go_on(session: Session) -> None:
            session.out.assign(message(1), 2)
            try:
                await zombie.sessions.save(session)
            except SessionTakenOverError:
                refused.append(session.client_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on, taken)
            nursery.start_soon(go_on, adopted)
            await trio.sleep(1)
            path.thaw()
        assert sorted(refused) == ["adopted", "taken"]
        assert {session.client_id for session in zombie.fenced} == {"taken", "adopted"}
        assert mine.is_open
        await two.sessions.save(mine)
        assert len((await two.open("adopted")).session.out) == 0


async def test_a_zombie_finds_out_by_itself_what_it_has_lost(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        zombie, two = await brokers.start("zombie", audit_interval_s=10**6), await brokers.start("two")
        lost = [(await zombie.open(f"c{number}", expiry_s=0)).session for number in range(5)]
        path = zombie.adapter
        assert isinstance(path, Path)
        path.freeze()
        await trio.sleep(100)
        assert await brokers.keys() == [], "sessions that do not outlive their connection ended with their broker"
        await two.open("c0")
        path.thaw()
        await trio.sleep(10)
        assert {session.client_id for session in zombie.fenced} == {session.client_id for session in lost}
        again = await zombie.open("c1")
        await zombie.sessions.save(again.session)


async def test_a_broker_that_is_only_slow_keeps_its_sessions(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        slow, two = await brokers.start("slow"), await brokers.start("two")
        session = (await slow.open(will=will())).session
        path = slow.adapter
        assert isinstance(path, Path)
        for _ in range(5):
            path.freeze()
            await trio.sleep(9)
            path.thaw()
            await trio.sleep(6)
        assert slow.fenced == []
        await slow.sessions.save(session)
        assert await brokers.published() == []
        assert two.sessions.statistics.adopted_count == 0


async def test_no_broker_is_declared_dead_because_the_store_was_away(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        all_of_them = [await brokers.start(name) for name in ("one", "two", "three")]
        sessions = [(await broker.open(broker.name, will=will())).session for broker in all_of_them]
        for broker in all_of_them:
            broker.adapter.freeze()  # type: ignore[attr-defined]
        await trio.sleep(300)
        for at, broker in enumerate(all_of_them):
            # The store is back; not all brokers notice at the same time.
            await trio.sleep(4 * at)
            broker.adapter.thaw()  # type: ignore[attr-defined]
        await trio.sleep(100)
        for broker, session in zip(all_of_them, sessions, strict=True):
            assert broker.fenced == []
            await broker.sessions.save(session)
        assert await brokers.published() == []


@pytest.mark.slow("waits for the lease of a broker")
async def test_the_sessions_of_a_dead_broker_are_closed_by_one_of_the_others(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two, three = [await brokers.start(name) for name in ("one", "two", "three")]
        for number in range(450):
            await one.open(f"c{number}", expiry_s=1000 if number % 2 else 0, will=will(payload=b"%d" % number))
        one.crash()
        await trio.sleep(14)
        assert await brokers.published() == [], "it may still be alive"
        await trio.sleep(30)
        assert sorted(await brokers.published(), key=int) == [b"%d" % number for number in range(450)]
        assert two.sessions.statistics.adopted_count + three.sessions.statistics.adopted_count == 450
        assert not [key for key in await brokers.keys() if key.startswith("owned/")]
        leases = [value.key async for value in brokers.store.scan_state(state_keys.BROKERS)]
        assert leases == [state_keys.broker("three"), state_keys.broker("two")]
        await trio.sleep(1000)
        assert await brokers.keys() == []


async def test_adoption_continues_when_the_adopter_dies_too(autojump_clock: MockClock) -> None:
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: 0.02)) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        for number in range(300):
            await one.open(f"c{number}", expiry_s=1000, will=will(payload=b"%d" % number))
        one.crash()
        while not two.sessions.statistics.adopted_count:
            await trio.sleep(0.01)
        two.crash()
        three = await brokers.start("three")
        assert 0 < len(await brokers.published()) < 300
        await trio.sleep(60)
        assert sorted(await brokers.published(), key=int) == [b"%d" % number for number in range(300)]
        assert three.sessions.statistics.adopted_count > 0


async def test_a_broker_that_starts_again_closes_what_it_had_before(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        before = await brokers.start("one")
        await before.open("a", will=will())
        before.crash()
        await brokers.start("one")
        await trio.sleep(2)
        assert await brokers.published() == [b"gone"], "it was not necessary to wait for the end of a lease"


async def test_a_session_that_was_given_up_and_not_taken_is_closed_by_its_owner(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await one.open("c", will=will())

        async def dies_before_it_takes(*args: object) -> None:
            two.crash()
            await trio.sleep_forever()

        two.sessions._commits.make = dies_before_it_takes  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.open, "c")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(one.fenced) == 1
        await trio.sleep(30)
        assert await brokers.published() == [b"gone"]
        assert not [key for key in await brokers.keys() if key.startswith("owned/")]


async def test_a_client_that_leaves_while_its_session_is_opened_leaves_no_owner_behind(
    autojump_clock: MockClock,
) -> None:
    async with cluster(wrap=Path) as brokers:
        one = await brokers.start("one")
        await trio.sleep(2)
        path = one.adapter
        assert isinstance(path, Path)
        with trio.move_on_after(1):
            path.lose_answers()  # the commit is carried out, but its answer is lost
            await one.open("c", expiry_s=100)
        path.thaw()
        await trio.sleep(10)
        assert not [key for key in await brokers.keys() if key.startswith("owned/")]
        await trio.sleep(120)
        assert await brokers.keys() == []


async def test_an_audit_does_not_close_what_is_just_being_opened(autojump_clock: MockClock) -> None:
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: 0.05)) as brokers:
        one = await brokers.start("one")
        sessions = []

        async def connect(number: int) -> None:
            await trio.sleep(0.01 * number)
            sessions.append((await one.open(f"c{number}", will=will())).session)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(connect, number)
            for _ in range(5):
                await one.sessions._orphan_cleanup.audit()
        for session in sessions:
            await one.sessions.save(session)
        assert await brokers.published() == []
        assert one.sessions.statistics.adopted_count == 0


async def test_a_deleted_control_shard_is_made_again(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await brokers.store.delete_shard(CONTROL_SHARD)
        await trio.sleep(5)
        await one.open()
        assert (await two.open()).present
        assert two.sessions.statistics.forced_count == 0


async def test_what_is_not_understood_on_the_control_shard_is_passed_over(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await brokers.store.append(CONTROL_SHARD, [b"", b"\x01\xc1", b"\x07newer", b"\x01\x91\x01"])
        await one.open()
        await two.open()
        assert two.sessions.statistics.forced_count == 0


async def test_a_session_taken_while_the_control_shard_was_deaf_is_noticed_by_the_audit(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open(expiry_s=0)).session
        one.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        await two.open()
        assert two.sessions.statistics.forced_count == 1
        assert session.is_open
        await trio.sleep(70)
        assert one.fenced == [session]


async def _deaf(*args: object) -> None:
    await trio.lowlevel.checkpoint()


async def owners(brokers: list[Broker], client_id: str) -> list[Broker]:
    """Those that have the session open and whose next write the store takes."""
    found = []
    for broker in brokers:
        session = broker.sessions.find(client_id)
        if session is not None:
            try:
                await broker.sessions.save(session)
                found.append(broker)
            except SessionTakenOverError:
                pass
    return found


@given(
    seed=st.integers(0, 2**32),
    opening=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.3)), min_size=2, max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_of_competing_brokers_exactly_one_wins(seed: int, opening: list[tuple[int, float]]) -> None:
    """Clients connect everywhere at once while calls to the store take their time."""
    trio.run(compete, seed, opening, clock=MockClock(autojump_threshold=0))


async def compete(seed: int, opening: list[tuple[int, float]]) -> None:
    delays = random.Random(seed)
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: delays.uniform(0, 0.05))) as brokers:
        all_of_them = [await brokers.start(name) for name in ("one", "two", "three")]
        count = 0

        async def connect(broker: Broker, after_s: float) -> None:
            nonlocal count
            await trio.sleep(after_s)
            session = (await broker.open()).session
            count += 1
            for offset in range(1000 * count, 1000 * count + 3):
                try:
                    session.out.assign(message(offset), 2)
                    await broker.sessions.save(session)
                except SessionTakenOverError:
                    assert session in broker.fenced
                    return
                safe.add(offset)

        safe: set[int] = set()
        async with trio.open_nursery() as nursery:
            for number, after_s in opening:
                nursery.start_soon(connect, all_of_them[number], after_s)
        (owner,) = await owners(all_of_them, "c")
        session = owner.sessions.find("c")
        assert session is not None
        assert safe <= {entry.offset for entry in session.out}, "what was stored went along"
        fenced = sum(len(broker.fenced) for broker in all_of_them)
        assert fenced == len(opening) - 1, "each of the others was told, once"


async def test_nothing_that_an_owner_stored_is_lost_when_another_takes_over(autojump_clock: MockClock) -> None:
    """The old owner does not get the request to stop, and writes on while the other one takes the session."""
    delays = random.Random(5)

    def wrap(adapter: object) -> Path:
        return Path(adapter, delay_s=lambda: delays.uniform(0, 0.01))  # type: ignore[arg-type]

    async with cluster(wrap=wrap) as brokers:
        deaf, two = await brokers.start("deaf"), await brokers.start("two")
        deaf.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        await brokers.store.create_shard("in")
        session = (await deaf.open()).session
        stored: list[int] = []

        async def write_on() -> None:
            for number in range(10_000):
                change = Changes(appends=(("in", [Record(b"%d" % number)]),))
                try:
                    await deaf.sessions.commit(session, change, received={number + 1: 0})
                except SessionTakenOverError:
                    return
                stored.append(number + 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            await trio.sleep(0.5)
            opened = await two.open()
        assert set(opened.session.inbound) == set(stored)
        assert len((await brokers.store.read("in", 0)).records) == len(stored)
        assert len(stored) > 20


@pytest.mark.parametrize("moment", ["before", "between", "after"])
async def test_a_takeover_while_the_old_owner_looks_does_not_let_it_write_once_more(
    autojump_clock: MockClock, moment: str
) -> None:
    """It read a record that was still its own and then a progress that was not, and wrote over it."""
    async with cluster(wrap=Path) as brokers:
        deaf, two = await brokers.start("deaf"), await brokers.start("two")
        deaf.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        await brokers.store.create_shard("in")
        session = (await deaf.open()).session
        get_state = deaf.adapter.get_state
        opened = []
        looks = 0

        async def takeover_in_between(key: bytes) -> object:
            nonlocal looks
            looks += 1
            if (looks, moment) in ((1, "before"), (2, "between")):
                opened.append((await two.open()).session)
            found = await get_state(key)
            if (looks, moment) == (2, "after"):
                opened.append((await two.open()).session)
            return found

        deaf.adapter.get_state = takeover_in_between
        deaf.adapter.fail(lambda name, argument: name == "commit", carried_out=False)
        with pytest.raises(SessionTakenOverError):
            await deaf.sessions.commit(session, Changes(appends=(("in", [Record(b"v")]),)), received={1: 0})
        assert (await brokers.store.read("in", 0)).records == []
        (new,) = opened
        assert set(new.inbound) == set()
        await two.sessions.save(new)
        assert two.sessions.statistics.conflict_count == 0


async def test_an_owner_of_the_past_commits_a_publish_of_a_session_that_is_not_durable(
    autojump_clock: MockClock,
) -> None:
    """The store has nothing of what is under way in such a session, so nothing there refused its first write."""
    async with cluster() as brokers:
        deaf, two = await brokers.start("deaf"), await brokers.start("two")
        deaf.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        await brokers.store.create_shard("in")
        old = (await deaf.open(expiry_s=0)).session
        new = (await two.open(expiry_s=0)).session
        with pytest.raises(SessionTakenOverError):
            await deaf.sessions.commit(old, Changes(appends=(("in", [Record(b"old")]),)), received={1: 0})
        await two.sessions.commit(new, Changes(appends=(("in", [Record(b"new")]),)), received={2: 0})
        values = [record.value for record in (await brokers.store.read("in", 0)).records]
        assert values == [b"new"]
        assert set(new.inbound) == {2}
        with pytest.raises(SessionTakenOverError):
            await deaf.sessions.commit(old, Changes(appends=(("in", [Record(b"older")]),)), received={3: 0})


def takes_the_record_alone(name: str, argument: object) -> bool:
    return isinstance(argument, Changes) and state_keys.progress("c") not in keys_of(argument)


def takes_the_rest(name: str, argument: object) -> bool:
    return isinstance(argument, Changes) and keys_of(argument) == {state_keys.progress("c")}


def keys_of(changes: Changes) -> set[bytes]:
    return {one.key for one in (*changes.puts, *changes.deletes)}


@pytest.mark.parametrize("answer", ["heard", "lost", "lost and not done"])
@pytest.mark.parametrize("expiry_s", [0, 3600])
async def test_an_owner_that_writes_without_a_pause_does_not_keep_others_out(
    autojump_clock: MockClock, expiry_s: int, answer: str
) -> None:
    """Each of its writes came between the reading and the commit of who wanted the session, for as long as it liked."""
    async with cluster(wrap=lambda adapter: Path(adapter, delay_s=lambda: 0.01)) as brokers:
        deaf, two = await brokers.start("deaf"), await brokers.start("two")
        deaf.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        await brokers.store.create_shard("in")
        session = (await deaf.open()).session
        stored: list[int] = []

        async def write_on() -> None:
            for number in range(1, 65_535):
                change = Changes(appends=(("in", [Record(b"%d" % number)]),))
                try:
                    await deaf.sessions.commit(session, change, received={number: 0})
                except SessionTakenOverError:
                    return
                stored.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            await trio.sleep(0.5)
            began_s = trio.current_time()
            if answer != "heard":
                for is_step in (takes_the_record_alone, takes_the_rest):
                    two.adapter.fail(is_step, carried_out=answer == "lost")
            opened = await two.open(expiry_s=expiry_s)
            assert two.adapter.failed_count == (0 if answer == "heard" else 2)
            assert trio.current_time() - began_s < 3
        assert opened.present
        assert set(opened.session.inbound) == set(stored)
        assert len((await brokers.store.read("in", 0)).records) == len(stored)
        assert deaf.fenced == [session]
        await two.sessions.save(opened.session)
        await two.sessions.close(opened.session, publish_will=False)
        assert set((await deaf.open()).session.inbound) == (set(stored) if expiry_s else set())


async def test_settings_of_one_broker_do_not_stop_the_others(autojump_clock: MockClock) -> None:
    async with cluster(settings=SessionSettings(yield_timeout_s=0.2)) as brokers:
        one, two = await brokers.start("one"), await brokers.start("two", open_timeout_s=1.0)
        await one.open()
        one.crash()
        assert (await two.open()).present


async def test_the_control_shard_does_not_grow(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        await brokers.start("one")
        info = await brokers.store.describe_shard(CONTROL_SHARD)
        assert info.config.retention.max_bytes > 0
        assert info.config.mode == "memory"
