"""A message of QoS 2 goes to one member of a shared subscription, whatever becomes of connections and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker_adapter import Delivery, StorageAdapter, Subscription, open_adapter
from broker_adapter.changes import Changes, Committed
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.session import SessionSettings, keys
from broker_adapter.mqtt.session.claims import Claim
from broker_adapter.mqtt_codec.packets import Puback, Publish
from broker_adapter.mqtt_codec.properties import Properties
from journal.protocol.errors import ConnectionLostError
from tests.mqtt.delivery.delivering import until
from tests.mqtt.serving import Client, Serving, serving
from tests.mqtt.session.brokers import cluster
from tests.patience import PATIENCE_S

KEPT = Properties(session_expiry_interval=3600)
FILTER = "$share/g/jobs/#"


class Faulty:
    """A store with faults that a test plans. All else is the store's own.

    Attributes:
        loses_acknowledgements: What members acknowledge does not reach the store.
        on_commit: Called with each commit before it is carried out.
    """

    def __init__(self, store: StorageAdapter) -> None:
        self._store = store
        self.loses_acknowledgements = False
        self.on_commit: Callable[[Changes], Awaitable[None]] | None = None
        self.loses_answer_of: Callable[[Changes], bool] = lambda _changes: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, changes: Changes) -> Committed:
        if self.on_commit is not None:
            await self.on_commit(changes)
        committed = await self._store.commit(changes)
        if self.loses_answer_of(changes):
            raise ConnectionLostError("the answer is lost")
        return committed

    @asynccontextmanager
    async def subscribe(self, *arguments: Any, **options: Any) -> AsyncIterator[Subscription]:
        async with self._store.subscribe(*arguments, **options) as subscription:
            yield _Subscription(self, subscription)


class _Subscription(Subscription):
    def __init__(self, store: Faulty, subscription: Subscription) -> None:
        self._store = store
        self._subscription = subscription

    async def __anext__(self) -> Delivery:
        delivery = await self._subscription.__anext__()

        async def acknowledge() -> None:
            if not self._store.loses_acknowledgements:
                await delivery.acknowledge()

        return Delivery(delivery.shard, delivery.records, delivery.next_offset, acknowledge=acknowledge)


@asynccontextmanager
async def faulty(**settings: float) -> AsyncIterator[tuple[Serving, Faulty]]:
    async with open_adapter("memory:") as opened:
        store = Faulty(opened)
        async with serving(store, session_settings=SessionSettings(**settings)) as served:  # type: ignore[arg-type]
            yield served, store


async def member(served: Serving, name: str, properties: Properties = KEPT) -> Client:
    return await served.client(name, clean_start=False, properties=properties)


async def drop(client: Client, served: Serving) -> None:
    """Lose a connection without a word, and wait until the broker has noticed."""
    before = served.broker.sessions.statistics.connected_count
    await client.stream.aclose()
    await until(lambda: served.broker.sessions.statistics.connected_count < before)


def concerns_progress(name: str) -> Callable[[Changes], bool]:
    return lambda changes: any(put.key == keys.progress(name) for put in changes.puts)


async def test_a_message_comes_to_two_members_when_the_first_drops_its_connection_while_it_is_stored() -> None:
    """The session kept it as being under way, and the group, which had no acknowledgement, gave it to the other."""
    async with faulty() as (served, store):
        first, publisher = await member(served, "first"), await served.client("publisher")
        await first.subscribe(FILTER, qos=2)
        stored, held = trio.Event(), concerns_progress("first")

        async def hold(changes: Changes) -> None:
            if held(changes) and not stored.is_set():
                stored.set()
                await trio.sleep_forever()

        store.on_commit = hold
        await publisher.publish("jobs/1", b"once", 2)
        await stored.wait()
        await drop(first, served)
        second = await member(served, "second")
        await second.subscribe(FILTER, qos=2)
        assert (await second.message()).payload == b"once"
        again = await member(served, "first")
        await again.silent()


@pytest.mark.parametrize("expiry_s", [3600, 0], ids=["session stays", "session ends"])
async def test_a_message_comes_to_two_members_when_the_acknowledgement_of_the_first_is_lost(expiry_s: int) -> None:
    """As it is when its broker is killed between the two steps, or the store before the group's place is stored."""
    async with faulty() as (served, store):
        first = await member(served, "first", Properties(session_expiry_interval=expiry_s))
        publisher = await served.client("publisher")
        await first.subscribe(FILTER, qos=2)
        store.loses_acknowledgements = True
        await publisher.publish("jobs/1", b"once", 2)
        assert (await first.expect(Publish)).payload == b"once"
        await drop(first, served)
        store.loses_acknowledgements = False
        second = await member(served, "second")
        await second.subscribe(FILTER, qos=2)
        await publisher.publish("jobs/2", b"next", 2)
        assert (await second.message()).payload == b"next"
        if expiry_s:
            again = await member(served, "first")
            assert (await again.message()).payload == b"once"


async def test_a_message_whose_claim_was_made_and_not_answered_is_sent_once() -> None:
    async with faulty() as (served, store):
        first, publisher = await member(served, "first"), await served.client("publisher")
        await first.subscribe(FILTER, qos=2)
        wanted, lost = concerns_progress("first"), []

        def lose(changes: Changes) -> bool:
            if wanted(changes) and not lost:
                lost.append(changes)
                return True
            return False

        store.loses_answer_of = lose
        await publisher.publish("jobs/1", b"once", 2)
        assert (await first.message()).payload == b"once"
        await first.silent()
        assert lost


async def test_claims_are_deleted_when_the_group_has_passed_their_messages() -> None:
    async with faulty(claims_interval_s=0.02, audit_interval_s=0.05) as (served, store):
        first, publisher = await member(served, "first"), await served.client("publisher")
        await first.subscribe(FILTER, qos=2)
        for number in range(20):
            await publisher.publish(f"jobs/{number % 3}", b"%d" % number, 2)
            await first.message()

        async def count() -> int:
            return len([value async for value in store.scan_state(b"mqtt/claim/")])

        with trio.fail_after(PATIENCE_S):
            while await count():
                await trio.sleep(0.01)


async def test_a_claim_that_comes_when_the_group_has_passed_the_message_is_refused() -> None:
    """The claim of the member that had it is deleted by then: only the group's cursor shows it."""
    async with cluster() as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("jobs/1")
        await brokers.store.append("jobs/1", [b"a", b"b", b"c"])
        await brokers.store.commit_cursor("jobs/1", "group/g", 2)
        session = (await one.open()).session
        messages = [Message("jobs/1", b"", 2, shard="jobs/1", offset=offset, lsn=5 + offset) for offset in (1, 2)]
        passed, free = [session.out.assign(message, 2, origin=Origin.GROUP, is_claimed=False) for message in messages]
        await one.sessions.claim(
            session, {Claim("g", "jobs/1", entry.offset, entry.lsn): entry for entry in (passed, free)}
        )
        assert (passed.is_claimed, free.is_claimed) == (False, True)
        session.out.give_up(passed)
        one.crash()
        two = await brokers.start("two")
        again = (await two.open()).session
        assert [entry.offset for entry in again.out.publishes()] == [2]


async def test_a_member_at_qos_1_hands_what_it_did_not_acknowledge_to_the_others() -> None:
    async with faulty() as (served, _):
        first, publisher = await member(served, "first"), await served.client("publisher")
        await first.subscribe(FILTER, qos=1)
        await publisher.publish("jobs/1", b"at least once", 2)
        assert (await first.expect(Publish)).qos == 1
        await drop(first, served)
        second = await member(served, "second")
        await second.subscribe(FILTER, qos=1)
        message = await second.expect(Publish)
        await second.send(Puback(message.packet_id))
        assert message.payload == b"at least once"
