"""The sessions of one broker: opened, stored, closed and handed on, by compare-and-set over the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import Changes, StatePut
from broker_adapter.mqtt.codec.properties import Properties
from broker_adapter.mqtt.codec.version import Version
from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.session.session import Membership, Session
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.topic_mapping import TopicMapping
from shards.clock import Clock


class Will(Protocol):
    """A will as CONNECT carries it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


@attrs.frozen(slots=True)
class OpenedSession:
    """A session that is this broker's now.

    Attributes:
        present: Whether it was there before; what CONNACK says.
    """

    session: Session
    present: bool


class Sessions:
    """The sessions that are open at this broker, and what brokers do for the sessions of each other.

    Args:
        adapter: The store.
        broker_id: Unique among the brokers of the store; no ``/``.
        changes_for: What storing a message takes: its append, and its retained value if it is retained.
        on_fenced: Called once when a session is lost to another connection, here or elsewhere. The connection must
            end (reason code 0x8E); it must not await in the call, and need not close the session.
        clock: Tells when timers are due.
        mapping: Where the messages of topics lie.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        broker_id: str,
        *,
        changes_for: Callable[[Message], Awaitable[Changes]],
        on_fenced: Callable[[Session], None],
        clock: Clock,
        mapping: TopicMapping | None = None,
        settings: SessionSettings | None = None,
    ) -> None:
        self.statistics = SessionStatistics()
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the lease, answer other brokers, fire timers, store positions, adopt sessions of dead brokers.

        It has started when sessions may be opened. Cancel it when the broker stops, after the sessions are closed.

        Raises:
            BrokerReplacedError: Another process has taken the broker id.
        """
        raise NotImplementedError

    async def open(
        self, client_id: str, *, clean_start: bool, expiry_interval_s: int, will: Will | None, version: Version
    ) -> OpenedSession:
        """Make the client's session this broker's, whoever had it, or begin a new one.

        Of MQTT 3.1.1: ``clean_start`` is clean session, and ``expiry_interval_s`` is 0 with it, else the longest that
        is configured. Must not return until the ownership is durable.

        Raises:
            StoreUnavailableError: The store did not answer in time.
        """
        raise NotImplementedError

    def find(self, client_id: str) -> Session | None:
        """The session of a client if it is open at this broker."""
        raise NotImplementedError

    async def save(self, session: Session) -> None:
        """Store what is under way, received and done. Returns when a state at least as new as now is durable.

        Many calls at once are one write. While the store is unreachable it waits. Of a session that is not durable
        there is nothing to store.

        Raises:
            SessionTakenOverError: It is somebody else's by now.
        """
        raise NotImplementedError

    def save_soon(self, session: Session) -> None:
        """Store the session within a second or so; for what may be lost, such as a position that moved."""
        raise NotImplementedError

    async def save_subscriptions(self, session: Session) -> None:
        """Store the subscriptions, like `save`."""
        raise NotImplementedError

    async def commit(self, session: Session, changes: Changes, *, received: Collection[int] = ()) -> None:
        """Carry out changes together with the session's progress, exactly once even if the connection is lost.

        Args:
            received: Packet identifiers of the QoS 2 messages among the changes; they are in `Session.inbound` when it
                returns, and in the store if and only if the messages are.

        Raises:
            SessionTakenOverError: It is somebody else's by now; nothing was carried out.
            StorageError: The store refused the changes; nothing was carried out.
        """
        raise NotImplementedError

    async def close(self, session: Session, *, publish_will: bool, expiry_interval_s: int | None = None) -> None:
        """The connection has ended. Closing a session that is not this broker's any more does nothing.

        Args:
            publish_will: Unless the client took leave without its will.
            expiry_interval_s: What DISCONNECT changed the interval to.
        """
        raise NotImplementedError

    async def join_share(self, session: Session, group: str, topic_filter: str, *, start_lsn: int) -> Membership:
        """Make the session a member of a shared subscription; joining twice changes nothing.

        It stores the subscriptions too. The first member founds the group, which begins after ``start_lsn``.
        """
        raise NotImplementedError

    async def leave_share(self, session: Session, group: str, topic_filter: str) -> None:
        """End a membership, and store the subscriptions. When the last member is gone the group is forgotten."""
        raise NotImplementedError

    def delay(self, message: Message, due_us: int) -> tuple[StatePut, ...]:
        """What to commit so that a message is published, exactly once, when it is due."""
        raise NotImplementedError
