"""Brokers' sessions over a real journal server, whose connections break while all of them work."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter.background_tasks import background_tasks
from broker_adapter.changes import Changes
from broker_adapter.engines.journal import JournalAdapter
from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import Session, SessionSettings, SessionTakenOverError, StoreUnavailableError
from journal.client import open_client
from shards.back_off import BackOff
from shards.format.record import Record, StoredRecord
from shards.seams.clock import SystemClock
from tests.mqtt.session.brokers import Broker, Cluster, will
from tests.patience import PATIENCE_S
from tests.server.serving import serving

QUICK = SessionSettings(
    lease_s=2.0,
    renew_interval_s=0.3,
    yield_timeout_s=0.3,
    save_interval_s=0.1,
    timer_interval_s=0.1,
    preference_s=0.2,
    audit_interval_s=1.0,
    max_backoff_s=0.2,
)


class Link:
    """A TCP connection to the server that can be cut, with whatever is under way on it."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        self._scopes: set[trio.CancelScope] = set()
        self.port = 0
        self.cut_count = 0

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()
        self.cut_count += 1

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass_on, listeners)

    async def _pass_on(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with client:
                    try:
                        server = await trio.open_tcp_stream("127.0.0.1", self.server_port)
                    except OSError:
                        return  # nothing listens there
                    async with server, trio.open_nursery() as nursery:
                        nursery.start_soon(_copy, client, server, scope)
                        nursery.start_soon(_copy, server, client, scope)
            finally:
                self._scopes.discard(scope)


async def _copy(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(65536):
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()


PATIENT = attrs.evolve(QUICK, lease_s=PATIENCE_S, yield_timeout_s=PATIENCE_S)
"""For a test in which every broker answers: on a busy machine an answer may take longer than `QUICK` waits."""


@asynccontextmanager
async def journal_cluster(
    path: Path, names: str, settings: SessionSettings = QUICK
) -> AsyncIterator[tuple[Cluster, list[Broker], list[Link]]]:
    """Brokers that reach one server over a link each, and a store that nothing happens to."""
    async with serving(path) as served, AsyncExitStack() as stack:
        store = JournalAdapter(await stack.enter_async_context(open_client(served.address)))
        links = [Link(served.ports["tcp"]) for _ in names]
        tasks = await stack.enter_async_context(background_tasks())
        adapters = []
        for link in links:
            await tasks.start(link.run)
            client = await stack.enter_async_context(open_client(f"127.0.0.1:{link.port}", backoff=BackOff(0.05, 0.1)))
            adapters.append(JournalAdapter(client))
        ways = iter(adapters)
        brokers_tasks = await stack.enter_async_context(background_tasks())
        brokers = Cluster(store, brokers_tasks, settings, lambda _: next(ways), SystemClock())  # type: ignore[arg-type]
        yield brokers, [await brokers.start(name) for name in names], links


def incoming(number: int) -> Changes:
    return Changes(appends=(("in", [Record(b"%d" % number)]),))


async def stored(brokers: Cluster, shard: str) -> list[bytes]:
    values: list[bytes] = []
    offset = 0
    while True:
        found = await brokers.store.read(shard, offset)
        if not found.records:
            return values
        values += [record.value for record in found.records if isinstance(record, StoredRecord)]
        offset = found.next_offset


async def test_a_session_lives_and_moves_on_a_journal_server(tmp_path: Path) -> None:
    async with journal_cluster(tmp_path, "ab", PATIENT) as (brokers, (one, two), _):
        session = (await one.open(will=will(delay_s=100))).session
        session.subscriptions["t/#"] = SubscriptionOptions(2)
        await one.sessions.save_subscriptions(session)
        session.out.assign(Message("t", b"", 2, shard="t", offset=0, lsn=5), 2)
        await one.sessions.save(session)
        membership = await one.sessions.join_share(session, "g", "t/#", after=Position(3))
        opened = await two.open()
        assert opened.present
        assert len(opened.session.out) == 1
        assert opened.session.memberships == {("g", "t/#"): membership}
        assert one.fenced == [session]
        with pytest.raises(SessionTakenOverError):
            await one.sessions.save(session)
        assert two.sessions.statistics.forced_count == 0
        await two.sessions.close(opened.session, publish_will=True, expiry_interval_s=1)
        with trio.fail_after(PATIENCE_S):
            while await brokers.keys():
                await trio.sleep(0.05)


async def test_of_two_writers_the_store_refuses_the_one_that_lost_the_session(tmp_path: Path) -> None:
    async with journal_cluster(tmp_path, "ab") as (brokers, (deaf, two), _):
        await brokers.store.create_shard("in")
        deaf.sessions._peer_channel._handle = _deaf  # type: ignore[method-assign]
        session = (await deaf.open()).session
        stored_numbers: list[int] = []

        async def write_on() -> None:
            for number in range(1, 65_535):
                try:
                    await deaf.sessions.commit(session, incoming(number), received={number: 0})
                except SessionTakenOverError:
                    return
                stored_numbers.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            await trio.sleep(0.3)
            opened = await two.open()
        # The answer to the last write is lost with the connection that is ended; it was carried out or not.
        received = sorted(opened.session.inbound)
        assert received in (stored_numbers, [*stored_numbers, len(stored_numbers) + 1])
        assert await stored(brokers, "in") == [b"%d" % number for number in received]


async def _deaf(*args: object) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.slow("many connections are cut")
async def test_nothing_is_lost_or_doubled_while_connections_break(tmp_path: Path) -> None:
    """Three brokers commit, save, move sessions and fire timers for some seconds; links break at random."""
    chance = random.Random(7)
    clients = [f"c{number}" for number in range(6)]
    committed: dict[str, set[int]] = {client: set() for client in clients}
    delayed = commit_count = 0
    async with journal_cluster(tmp_path, "abc") as (brokers, all_of_them, links):
        await brokers.store.create_shard("in")
        working = True

        async def client(name: str, first: int) -> None:
            nonlocal commit_count
            number = first
            while working:
                broker = chance.choice(all_of_them)
                try:
                    session = (await broker.open(name)).session
                except StoreUnavailableError:
                    continue
                assert committed[name] <= set(session.inbound), "what was acknowledged went along"
                committed[name] = set(session.inbound)
                try:
                    for _ in range(chance.randrange(40)):
                        number += 1
                        await broker.sessions.commit(session, incoming(number), received={number: 0})
                        committed[name].add(number)
                        commit_count += 1
                except SessionTakenOverError:
                    continue
                if chance.random() < 0.5:
                    await broker.sessions.close(session, publish_will=False)

        async def cut() -> None:
            while working:
                await trio.sleep(chance.uniform(0.02, 0.2))
                chance.choice(links).cut()

        async def delay() -> None:
            nonlocal delayed
            while working:
                message = Message("late", b"%d" % delayed, 1)
                puts = all_of_them[0].sessions.delay(message, DelayedPublish(brokers.clock.now_us() + 300_000))
                await brokers.store.commit(Changes(puts=puts))
                delayed += 1
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            for at, name in enumerate(clients):
                nursery.start_soon(client, name, 10_000 * at)
            nursery.start_soon(cut)
            nursery.start_soon(delay)
            await trio.sleep(4)
            with trio.fail_after(PATIENCE_S):
                # A busy machine gets less done in the same time.
                while commit_count <= 200 or sum(link.cut_count for link in links) <= 10:
                    await trio.sleep(0.05)
            working = False
        sessions: list[Session] = [(await all_of_them[0].open(name)).session for name in clients]
        for session in sessions:
            assert committed[session.client_id] <= set(session.inbound)
        values = [int(value) for value in await stored(brokers, "in")]
        assert len(values) == len(set(values)), "nothing twice"
        assert set(values) == set().union(*(set(session.inbound) for session in sessions))
        assert len(values) >= commit_count
        with trio.fail_after(PATIENCE_S):
            while len(await stored(brokers, "late")) < delayed:
                await trio.sleep(0.05)
        await trio.sleep(0.5)
        assert sorted(int(value) for value in await stored(brokers, "late")) == list(range(delayed))


async def serve(path: Path, until: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
    async with serving(path) as served:
        task_status.started(served.ports["tcp"])
        await until.wait()


@pytest.mark.slow("starts servers again and again")
async def test_brokers_live_through_a_server_that_restarts(tmp_path: Path) -> None:
    """The server stops and starts on the same data; clients stay, and go on as if nothing had happened."""
    async with background_tasks() as servers, background_tasks() as tasks:
        stop = trio.Event()
        link = Link(await servers.start(serve, tmp_path, stop))
        await tasks.start(link.run)
        async with (
            open_client(f"127.0.0.1:{link.port}", backoff=BackOff(0.05, 0.1)) as client,
            background_tasks() as running,
        ):
            adapter = JournalAdapter(client)
            brokers = Cluster(adapter, running, QUICK, lambda way: way, SystemClock())  # type: ignore[arg-type]
            one = await brokers.start("one")
            session = (await one.open(will=will())).session
            await adapter.create_shard("in")
            await one.sessions.commit(session, incoming(1), received={1: 0})
            stop.set()
            link.cut()
            done = trio.Event()

            async def commit() -> None:
                await one.sessions.commit(session, incoming(2), received={2: 0})
                done.set()

            running.start_soon(commit)
            await trio.sleep(2 * QUICK.lease_s)
            assert not done.is_set()
            link.server_port = await servers.start(serve, tmp_path, trio.Event())
            with trio.fail_after(PATIENCE_S):
                await done.wait()
            two = await brokers.start("two")
            await trio.sleep(2 * QUICK.lease_s)
            assert one.fenced == []
            assert await stored(brokers, "in") == [b"1", b"2"]
            assert await brokers.published() == []
            assert set((await two.open()).session.inbound) == {1, 2}
