"""Several brokers' sessions over one store, in one process, with a clock that goes with trio's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from broker_adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.engines.embedded import open_memory
from broker_adapter.mqtt.model.message import Message, message_of, record_of
from broker_adapter.mqtt.session import OpenedSession, Retained, Session, Sessions, SessionSettings, keys
from broker_adapter.mqtt.session.stored import ProgressRecord
from broker_adapter.mqtt.session.takeover import SessionRequest
from broker_adapter.mqtt_codec.packets import Version, Will
from broker_adapter.mqtt_codec.properties import Properties
from broker_adapter.state_forms import decode
from shards.errors import ShardNotFoundError
from shards.format.record import StoredRecord

START_US = 1_700_000_000_000_000


class TrioClock:
    """The time of day as a test's virtual time has it."""

    def now_us(self) -> int:
        return START_US + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(trio.current_time() * 1_000_000)


def will(*, delay_s: int | None = None, topic: str = "will", payload: bytes = b"gone", retain: bool = False) -> Will:
    return Will(topic, payload, 1, retain, Properties(will_delay_interval=delay_s))


@attrs.define(eq=False)
class Broker:
    """One broker's sessions, with connections that only end on request."""

    name: str
    sessions: Sessions
    adapter: Any
    scope: trio.CancelScope
    fenced: list[Session] = attrs.Factory(list)
    unanswered: list[Session] = attrs.Factory(list)

    async def open(
        self,
        client_id: str = "c",
        *,
        clean_start: bool = False,
        expiry_s: int = 3600,
        will: Will | None = None,
        version: Version = Version.V5,
        user: str = "",
    ) -> OpenedSession:
        return await self.sessions.open(
            SessionRequest(
                client_id=client_id,
                user=user,
                version=version,
                clean_start=clean_start,
                expiry_interval_s=expiry_s,
                will=will,
            ),
            may_open=lambda owner: owner == user,
        )

    def crash(self) -> None:
        """Stop at once, as a killed process does: nothing is closed, nothing is given back."""
        self.sessions._give_back_lease = _nothing  # type: ignore[method-assign]
        self.scope.cancel()


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Cluster:
    """Brokers over one store.

    Attributes:
        wrap: Gives each broker its own way to the store.
    """

    store: StorageAdapter
    tasks: trio.Nursery
    settings: SessionSettings
    wrap: Callable[[StorageAdapter], Any]
    clock: TrioClock = attrs.Factory(TrioClock)

    async def start(self, name: str, **settings: Any) -> Broker:
        adapter = self.wrap(self.store)
        broker: Broker

        def on_fenced(session: Session) -> None:
            broker.fenced.append(session)

        def on_unanswered(session: Session) -> None:
            broker.unanswered.append(session)

        sessions = Sessions(
            adapter,
            name,
            changes_for=publisher(adapter, self.clock),
            on_fenced=on_fenced,
            on_unanswered=on_unanswered,
            on_kick=lambda _kick, _session: None,
            clock=self.clock,
            settings=attrs.evolve(self.settings, **settings),
        )
        broker = Broker(name, sessions, adapter, trio.CancelScope())

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with broker.scope:
                await sessions.run(task_status=task_status)

        await self.tasks.start(run)
        return broker

    async def published(self, topic: str = "will") -> list[bytes]:
        """Payloads of a topic's messages."""
        try:
            found = await self.store.read(topic, 0)
        except ShardNotFoundError:
            return []
        return [message_of(topic, one).payload for one in found.records if isinstance(one, StoredRecord)]

    async def keys(self, prefix: bytes = b"mqtt/") -> list[str]:
        """What is in the state store, but for leases."""
        found = [value.key.removeprefix(b"mqtt/").decode() async for value in self.store.scan_state(prefix)]
        return [key for key in found if not key.startswith("broker/")]

    async def stored_progress(self, client_id: str) -> ProgressRecord:
        """What the store has of a session's progress."""
        value = await self.store.get_state(keys.progress(client_id))
        assert value is not None
        return decode(ProgressRecord, value.key, value.value)


def publisher(adapter: StorageAdapter, clock: TrioClock) -> Callable[[Message], Awaitable[Changes]]:
    """Stores each topic in a shard of its own."""
    retained = Retained(adapter, clock=clock)

    async def changes_for(message: Message) -> Changes:
        await adapter.create_shard(message.topic, exist_ok=True)
        append = (message.topic, [record_of(message)])
        if not message.retain:
            return Changes(appends=(append,))
        change = retained.change_for(message)
        if isinstance(change, StatePut):
            return Changes(appends=(append,), puts=(change,))
        assert isinstance(change, StateDelete)
        return Changes(appends=(append,), deletes=(change,))

    return changes_for


@asynccontextmanager
async def cluster(
    *, settings: SessionSettings | None = None, wrap: Callable[[StorageAdapter], Any] | None = None
) -> AsyncIterator[Cluster]:
    """A cluster on a store in memory, whose time is trio's."""
    async with open_memory("memory:", TrioClock()) as store, background_tasks() as tasks:
        yield Cluster(store, tasks, settings or SessionSettings(), wrap or (lambda adapter: adapter))
