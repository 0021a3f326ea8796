"""What a client published at a broker that lost its session comes before what it publishes elsewhere, or never.

The brokers run in this process on a real server. Between one of them and the server is a link that is frozen on
request, as the process behind it does when it is frozen, or a network that loses everything.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.cache_queue import QueueSettings, names
from broker_adapter.engines.journal import JournalAdapter
from broker_adapter.mqtt.session import SessionSettings, keys
from broker_adapter.mqtt.session.stored import SessionRecord
from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from broker_adapter.results import PendingAppend
from broker_adapter.state_forms import decode
from journal.client import open_client
from shards.back_off import BackOff
from shards.errors import ShardNotFoundError
from shards.format.record import StoredRecord
from shards.model import Appended
from tests.mqtt.serving import Client, Serving
from tests.mqtt.serving import serving as serving_broker
from tests.mqtt.test_bridged_publish import bridge
from tests.mqtt.waiting_calls import call_after
from tests.patience import PATIENCE_S
from tests.server.serving import serving as serving_store

TOPIC = "plant/a"
KEPT = Properties(session_expiry_interval=3600)
QUICK = SessionSettings(yield_timeout_s=0.2, save_interval_s=0.1, max_backoff_s=0.1)


class Link:
    """A connection to the server that may be frozen: what is sent on it arrives later, or never."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._moves = trio.Event()
        self._moves.set()

    def hold(self) -> None:
        self._moves = trio.Event()

    def release(self) -> None:
        self._moves.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass_on, listeners)

    async def _pass_on(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", self._server_port) as server:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, client, server, nursery.cancel_scope)
                nursery.start_soon(self._copy, server, client, nursery.cancel_scope)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(65536):
                await self._moves.wait()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the other end is gone
        await self._moves.wait()
        scope.cancel()


@attrs.define
class Scene:
    """A broker behind a link, another one that has its own way to the server, and the store itself."""

    held: Serving
    other: Serving
    link: Link
    store: StorageAdapter
    address: str

    async def stored(self, shard: str = TOPIC) -> list[bytes]:
        return await stored(self.store, shard)


async def stored(store: StorageAdapter, shard: str = TOPIC) -> list[bytes]:
    try:
        found = await store.read(shard, 0)
    except ShardNotFoundError:
        return []
    return [record.value for record in found.records if isinstance(record, StoredRecord)]


@asynccontextmanager
async def scene(path: Path, *, with_queue: bool = False) -> AsyncIterator[Scene]:
    async with serving_store(path) as served, AsyncExitStack() as stack:
        link = Link(served.ports["tcp"])
        await (await stack.enter_async_context(background_tasks())).start(link.run)
        brokers: list[Serving] = []
        for number, port in enumerate((link.port, served.ports["tcp"])):
            client = await stack.enter_async_context(open_client(f"127.0.0.1:{port}", backoff=BackOff(0.05, 0.1)))
            adapter = JournalAdapter(client)
            options: dict[str, Any] = {}
            if with_queue:
                bridges = Bridges(adapter, [bridge(QueueSettings())], f"b{number}")
                await (await stack.enter_async_context(background_tasks())).start(bridges.run)
                options["queue_routing"] = bridges.queue_routing
            broker = serving_broker(adapter, broker_id=f"b{number}", session_settings=QUICK, **options)
            brokers.append(await stack.enter_async_context(broker))
        store = JournalAdapter(await stack.enter_async_context(open_client(served.address)))
        try:
            yield Scene(brokers[0], brokers[1], link, store, served.address)
        finally:
            link.release()


async def connected(
    broker: Serving, client_id: str = "client", version: Version = Version.V5, properties: Properties = KEPT
) -> Client:
    client = broker.dial(version)
    properties = properties if version is Version.V5 else Properties()
    assert (await client.connect(client_id, clean_start=False, properties=properties)).reason_code == 0
    return client


async def send(client: Client, payload: bytes, qos: int = 1, **options: Any) -> None:
    """Publish without waiting for the answer."""
    await client.send(Publish(TOPIC, payload, qos, packet_id=client.packet_id() if qos else 0, **options))


async def read_from(broker: Serving, count: int) -> None:
    """Wait until a broker has taken so many publishes from its clients."""
    with trio.fail_after(PATIENCE_S):
        while broker.broker.statistics.publishes_received < count:
            await trio.sleep(0.005)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_publish_held_up_in_a_broker_does_not_come_behind_those_of_the_next_one(
    tmp_path: Path, qos: int, retain: bool
) -> None:
    """It used to be stored when the broker went on, behind newer messages and as the retained one."""
    async with scene(tmp_path) as at:
        before = await connected(at.held)
        assert await before.publish(TOPIC, b"1", 1, retain=retain) < ReasonCode.UNSPECIFIED_ERROR
        at.link.hold()
        await send(before, b"2", qos, retain=retain)
        await read_from(at.held, 2)
        after = await connected(at.other)
        for payload in (b"2", b"3"):
            assert await after.publish(TOPIC, payload, 1, retain=retain) < ReasonCode.UNSPECIFIED_ERROR
        at.link.release()
        await before.refused(ReasonCode.SESSION_TAKEN_OVER)
        # What is published through the same broker shows that it has sent what it had to send.
        witness = await connected(at.held, "witness")
        assert await witness.publish(TOPIC, b"4", 1) < ReasonCode.UNSPECIFIED_ERROR
        assert await at.stored() == [b"1", b"2", b"3", b"4"]
        if retain:
            reader = await connected(at.other, "reader")
            await reader.subscribe(TOPIC, qos=1)
            assert (await reader.message()).payload == b"3"


class NeverEnding(JournalAdapter):
    """The store of a broker that dies between taking a session and ending the connection of its owner."""

    async def end_client(self, name: str) -> int:
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("is_durable", [True, False])
async def test_who_took_a_session_by_force_and_died_leaves_the_owner_before_to_the_next_broker(
    tmp_path: Path, is_durable: bool
) -> None:
    """Only the broker that had died was fenced; the one before it stored an old publish behind newer ones."""
    properties = KEPT if is_durable else Properties(session_expiry_interval=0)
    async with scene(tmp_path) as at, open_client(at.address) as between_client:
        before = await connected(at.held, properties=properties)
        assert await before.publish(TOPIC, b"1", 1) < ReasonCode.UNSPECIFIED_ERROR
        at.link.hold()
        await send(before, b"2")
        await read_from(at.held, 2)
        async with serving_broker(NeverEnding(between_client), broker_id="dying", session_settings=QUICK) as dying:
            lost = dying.dial(Version.V5)
            await lost.send(Connect("client", clean_start=False, properties=properties))
            with trio.fail_after(PATIENCE_S):
                while (await owner_of(at.store, "client")) != "dying":
                    await trio.sleep(0.01)
            if not is_durable:
                # The next broker ends the session, with the record that says who is still to be fenced.
                await at.other.broker.sessions._orphan_cleanup._close("dying", "client")
            after = await connected(at.other)
            for payload in (b"2", b"3"):
                assert await after.publish(TOPIC, payload, 1) < ReasonCode.UNSPECIFIED_ERROR
            at.link.release()
            await before.refused(ReasonCode.SESSION_TAKEN_OVER)
            witness = await connected(at.held, "witness")
            assert await witness.publish(TOPIC, b"4", 1) < ReasonCode.UNSPECIFIED_ERROR
            assert await at.stored() == [b"1", b"2", b"3", b"4"]


async def owner_of(store: StorageAdapter, client_id: str) -> str:
    key = keys.session(client_id)
    found = await store.get_state(key)
    assert found is not None
    return decode(SessionRecord, key, found.value).owner


async def test_a_publish_held_up_in_a_broker_does_not_come_late_to_a_cache_queue(tmp_path: Path) -> None:
    queue = names.shard_of("warehouse")
    async with scene(tmp_path, with_queue=True) as at:
        before = await connected(at.held)
        assert await before.publish(TOPIC, b"1", 1) == ReasonCode.SUCCESS
        at.link.hold()
        await send(before, b"2")
        await read_from(at.held, 2)
        after = await connected(at.other)
        for payload in (b"2", b"3"):
            assert await after.publish(TOPIC, payload, 1) == ReasonCode.SUCCESS
        at.link.release()
        await before.refused(ReasonCode.SESSION_TAKEN_OVER)
        witness = await connected(at.held, "witness")
        assert await witness.publish(TOPIC, b"4", 1) == ReasonCode.SUCCESS
        assert await at.stored(queue) == [b"1", b"2", b"3", b"4"]


async def test_sessions_that_were_not_taken_go_on_when_their_broker_finds_others_lost(tmp_path: Path) -> None:
    async with scene(tmp_path) as at:
        first, lost, kept = [await connected(at.held, name) for name in ("first", "lost", "kept")]
        assert await first.publish(TOPIC, b"1", 1) == ReasonCode.SUCCESS
        at.link.hold()
        # The first goes out; the others wait behind it, and would share the next batch.
        await send(first, b"2")
        await read_from(at.held, 2)
        for client in (lost, kept):
            await send(client, client.version.name.encode() + (b" lost" if client is lost else b" kept"))
        await read_from(at.held, 4)
        await connected(at.other, "lost")
        at.link.release()
        await lost.refused(ReasonCode.SESSION_TAKEN_OVER)
        for client in (first, kept):
            assert (await client.expect(Puback)).reason_code == ReasonCode.SUCCESS
        assert await at.stored() == [b"1", b"2", b"V5 kept"]


class HeldStore:
    """A store that appends of one broker reach late."""

    def __init__(self, store: StorageAdapter) -> None:
        self._store = store
        self.moves = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append_nowait(self, shard: str, records: Any, *, is_last: bool) -> PendingAppend:
        return HeldAppend(self, shard, records)


class HeldAppend:
    """An append that reaches the store when that moves."""

    def __init__(self, store: HeldStore, shard: str, records: Any) -> None:
        self._store = store
        self._shard = shard
        self._records = records
        self._pending: PendingAppend | None = None

    @property
    def is_done(self) -> bool:
        return self._pending is not None and self._pending.is_done

    async def wait(self) -> Appended:
        await self._store.moves.wait()
        if self._pending is None:
            self._pending = self._store._store.append_nowait(self._shard, self._records)
        return await self._pending.wait()

    def call_when_done(self, call: Callable[[], None]) -> None:
        trio.lowlevel.spawn_system_task(call_after, self.wait, call)

    def result_nowait(self) -> Appended:
        assert self._pending is not None
        return self._pending.result_nowait()


@pytest.mark.parametrize("goes_elsewhere", [False, True])
async def test_a_session_is_given_up_when_its_publishes_are_answered_and_not_before(goes_elsewhere: bool) -> None:
    """It used to be given up at once; what was under way was stored behind what the client published next."""
    patient = SessionSettings(yield_timeout_s=PATIENCE_S, open_timeout_s=PATIENCE_S)
    async with open_adapter("memory:") as store:
        await store.create_shard(TOPIC)
        held = HeldStore(store)
        async with (
            serving_broker(held, broker_id="one", session_settings=patient) as one,  # type: ignore[arg-type]
            serving_broker(store, broker_id="two", session_settings=patient) as two,
        ):
            before = await connected(one)
            await send(before, b"1")
            await read_from(one, 1)
            after = (two if goes_elsewhere else one).dial()
            await after.send(Connect("client", False, properties=KEPT))
            await before.refused(ReasonCode.SESSION_TAKEN_OVER)
            assert await stored(store) == []
            with trio.move_on_after(0.2):
                raise AssertionError(f"{await after.receive()} came before the store had answered")
            held.moves.set()
            assert (await after.expect(Connack)).session_present
            assert await stored(store) == [b"1"]


async def test_a_publish_behind_a_connect_is_not_stored_for_a_session_that_was_lost_meanwhile(tmp_path: Path) -> None:
    """A broker that is frozen finds both in its buffer when it goes on, long after the client went elsewhere."""
    async with scene(tmp_path) as at:
        await connected(at.other, "client")
        broker = at.held.broker
        opened = broker.sessions.open

        async def open_and_lose(*arguments: Any, **options: Any) -> Any:
            found = await opened(*arguments, **options)
            await at.other.broker.sessions.open(*arguments, **options)
            return found

        broker.sessions.open = open_and_lose  # type: ignore[method-assign]
        late = at.held.dial()
        await late.send(Connect("client", False, properties=KEPT), Publish(TOPIC, b"late", 1, packet_id=1))
        await late.refused(ReasonCode.SESSION_TAKEN_OVER)
        assert await at.stored() == []


@pytest.mark.parametrize(
    "behind",
    [
        [],
        [Disconnect()],
        [Pingreq()],
        [Subscribe(1, (SubscriptionRequest(TOPIC, 1),))],
        [Publish(TOPIC, b"old", 1, packet_id=1)],
        [Publish(TOPIC, b"old", 0, retain=True), Disconnect()],
    ],
    ids=lambda behind: " ".join(type(packet).__name__ for packet in behind) or "nothing behind",
)
async def test_a_connect_of_a_client_that_gave_up_waiting_does_not_take_its_session_from_where_it_went(
    behind: list[Packet],
) -> None:
    """When a frozen broker goes on, it finds the CONNECTs of all who tried it and went elsewhere."""
    async with (
        open_adapter("memory:") as store,
        serving_broker(store, broker_id="one") as one,
        serving_broker(store, broker_id="two") as two,
    ):
        client = await connected(two)
        assert await client.publish(TOPIC, b"new", 1) < ReasonCode.UNSPECIFIED_ERROR
        await leave(one, *behind)
        await client.silent()
        assert two.broker.statistics.ended["taken_over"] == 0
        assert await stored(store) == [b"new"]


async def test_a_client_that_waits_for_no_answer_publishes_all_the_same() -> None:
    """It sends everything at once and says that this was all. Its session has no owner, so nothing newer was stored."""
    async with open_adapter("memory:") as store, serving_broker(store) as broker:
        await leave(
            broker,
            Publish(TOPIC, b"1", 1, packet_id=1),
            Publish(TOPIC, b"2", 1, packet_id=2),
            Disconnect(),
            listens=True,
        )
        assert await stored(store) == [b"1", b"2"]


async def test_a_connect_that_may_be_old_is_refused_for_a_moment_after_a_standstill() -> None:
    """Its client may be elsewhere though the connection is open: what it sent to end it may be lost."""
    async with open_adapter("memory:") as store, serving_broker(store) as broker:
        services = broker.broker._services
        assert services is not None
        services.pause_detector._ended_at_s = trio.current_time()
        early = broker.dial()
        answer = await early.connect("client", clean_start=False, properties=KEPT)
        assert answer.reason_code == ReasonCode.SERVER_UNAVAILABLE
        services.pause_detector._ended_at_s -= 1
        await connected(broker)


async def leave(broker: Serving, *behind: Packet, listens: bool = False) -> None:
    """Send CONNECT with other packets behind it, end the connection, and return when the broker is done with it."""
    late = broker.dial()
    packets = (Connect("client", False, properties=KEPT), *behind)
    late.stream.send_nowait(b"".join(encode(packet, Version.V5) for packet in packets))  # type: ignore[attr-defined]
    if listens:
        late.stream._socket.shutdown(socket.SHUT_WR)  # type: ignore[attr-defined]
    else:
        await trio.aclose_forcefully(late.stream)
    with trio.fail_after(PATIENCE_S):
        while not broker.broker.statistics.sockets_total or broker.broker._connections:
            await trio.sleep(0.005)
