"""One broker: its parts, its connections, and its periodic tasks.

All durable state is in the store. Streams (TCP, TLS, WebSocket) come from `transport.listeners`.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.queue_routing import NO_QUEUES, QueueRouting
from broker_adapter.changes import Changes
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.bans import Bans
from broker_adapter.mqtt.access.permissions import Access, Principal
from broker_adapter.mqtt.access.quotas import Quotas
from broker_adapter.mqtt.connection.connection import Connection
from broker_adapter.mqtt.connection.handshake import Handshake
from broker_adapter.mqtt.connection.services import ConnectBudget, PauseDetector, Services
from broker_adapter.mqtt.delivery import DeliveryStatistics, Distributor
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.statistics import BrokerStatistics, SystemTopics
from broker_adapter.mqtt.model.storage_rules import BrokerTopicMapping, Placements, StorageRules
from broker_adapter.mqtt.publish.publish_watch import PublishWatch
from broker_adapter.mqtt.publish.store_changes import Publisher
from broker_adapter.mqtt.session import Retained, Session, Sessions, SessionSettings
from broker_adapter.mqtt.session.kick import Kick
from broker_adapter.mqtt_codec import ReasonCode
from broker_adapter.topic_mapping import TopicMapping
from shards.model import ShardConfig
from shards.seams.clock import Clock, SystemClock

_SWEEP_S: Final = 1.0
_PUMPED_BETWEEN_CHECKPOINTS: Final = 32
_LOOKED_AT_BETWEEN_CHECKPOINTS: Final = 256
_REPORTED_EVERY_S: Final = 1.0
_LAST_END_S: Final = 6.0
"""A connection that is cancelled ends within 5 s."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class Broker:
    """An MQTT broker on a store.

    Use it as ``await nursery.start(broker.run)``, then `serve_stream` for each client, and `stop` at the end.

    Args:
        adapter: The store.
        broker_id: Unique among the brokers of the store.
        access: Authentication and permissions.
        mapping: The shards of topics; the same on all brokers of a store.
        rules: Which messages are kept, and how; the same on all brokers of a store.
        create: Configuration with which shards of topics are created, except for the mode.
        limits: Limits of connections.
        quotas: Limits of users.
        audit: The audit log; none without it.
        bans: Clients that may not connect; call `follow_bans` after they were replaced.
        session_settings: Timeouts towards other brokers and the store.
        system_interval_s: Interval at which statistics are published, in seconds; 0 for never.
        version: Name and version in the statistics.
        clock: Gives the time of day.

    Attributes:
        quotas: Limits of users, and what was refused because of them.
        bans: Clients that may not connect.
        blocked_count: Clients that did not read what was sent to them, at the last look.
        publish_watch: Knows how long the oldest publish has had no outcome.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        broker_id: str,
        *,
        access: Access,
        mapping: TopicMapping | None = None,
        rules: StorageRules | None = None,
        create: ShardConfig | None = None,
        limits: Limits | None = None,
        quotas: Quotas | None = None,
        audit: BrokerAudit | None = None,
        bans: Bans | None = None,
        session_settings: SessionSettings | None = None,
        system_interval_s: float = 10.0,
        version: str = "journal-broker",
        clock: Clock | None = None,
        queue_routing: QueueRouting = NO_QUEUES,
    ) -> None:
        self._adapter = adapter
        self._access = access
        self._limits = limits or Limits()
        self.quotas = quotas or Quotas()
        self._audit = audit or BrokerAudit()
        self._clock = clock or SystemClock()
        self.bans = Bans(self._clock.now_us) if bans is None else bans
        self._system_interval_s = system_interval_s
        self._rules = rules or StorageRules()
        topic_mapping = BrokerTopicMapping((mapping or TopicMapping()).rules)
        self.statistics = BrokerStatistics()
        self._system_topics = SystemTopics(self.statistics, version)
        self._system_messages: dict[str, Message] = {}
        self._retained = Retained(adapter, clock=self._clock)
        self.sessions = Sessions(
            adapter,
            broker_id,
            changes_for=self._changes_for,
            on_fenced=self._fenced,
            on_unanswered=self._unanswered,
            on_kick=self._kick,
            clock=self._clock,
            mapping=topic_mapping,
            may_publish_will=self._may_publish_will,
            quotas=self.quotas,
            settings=session_settings,
        )
        self._placements = Placements(self._rules, topic_mapping, create)
        self._publisher = Publisher(
            adapter,
            self._placements,
            max_packet_bytes=self._limits.max_packet_bytes,
            retained=self._retained,
            delay=self.sessions.delay,
            on_refused=self._refused,
            queue_routing=queue_routing,
        )
        self.distributor = Distributor(adapter, topic_mapping, keeps_offline=self._keeps_offline)
        self._connections: set[Connection] = set()
        self._by_client: dict[str, Connection] = {}
        self._ready: dict[Connection, None] = {}
        self._is_ready = trio.Event()
        self._gone = trio.lowlevel.ParkingLot()
        self._services: Services | None = None
        self._is_stopping = False
        self.blocked_count = 0
        self.publish_watch = PublishWatch()
        self._reported_at_s = -_REPORTED_EVERY_S

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; `task_status` is notified when streams may be served.

        Raises:
            BrokerReplacedError: Another process runs under this broker id.
        """
        async with background_tasks() as tasks:
            await tasks.start(self.distributor.run)
            await tasks.start(self.sessions.run)
            pause_detector = PauseDetector()
            tasks.start_soon(pause_detector.run)
            self._services = Services(
                adapter=self._adapter,
                sessions=self.sessions,
                distributor=self.distributor,
                publisher=self._publisher,
                retained=self._retained,
                handshake=Handshake(self._access, self.sessions, self._limits, self.quotas, self._audit, self.bans),
                access=self._access,
                audit=self._audit,
                bans=self.bans,
                limits=self._limits,
                clock=self._clock,
                statistics=self.statistics,
                pause_detector=pause_detector,
                connect_budget=ConnectBudget(self._limits.max_unaccepted_bytes),
                system_messages=self._system_messages,
                tasks=tasks,
            )
            tasks.start_soon(self._sweep)
            if self._system_interval_s:
                tasks.start_soon(self._publish_statistics)
            tasks.start_soon(self._pump)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._services = None  # no new client is served
                await self._end_connections()

    async def _end_connections(self) -> None:
        """Wait for the connections, although this is cancelled: each starts tasks until it has ended."""
        with trio.move_on_after(_LAST_END_S, shield=True):
            await self.stop()

    def replace_rules(self, rules: StorageRules) -> None:
        """Use other storage rules from now on."""
        self._rules = rules
        self._placements.replace_rules(rules)

    async def follow_rights(self) -> None:
        """Users or rules were replaced: end the connections and subscriptions that they do not allow any more."""
        for at, connection in enumerate(list(self._connections)):
            if at % _LOOKED_AT_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
            connection.follow_rights()

    async def follow_bans(self) -> None:
        """Bans were replaced: end the connections of clients that are banned now."""
        if len(self.bans):
            for at, connection in enumerate(list(self._connections)):
                if at % _LOOKED_AT_BETWEEN_CHECKPOINTS == 0:
                    await trio.lowlevel.checkpoint()
                connection.follow_bans()

    async def stop(self) -> None:
        """End all connections (MQTT 5 clients get reason code 0x8B, server shutting down) and wait for their end.

        `run` must not be cancelled before this returns.
        """
        self._is_stopping = True
        for connection in self._connections:
            connection.end(ReasonCode.SERVER_SHUTTING_DOWN)
        while self._connections:
            await self._gone.park()

    async def serve_stream(
        self,
        stream: trio.abc.Stream,
        *,
        peer: str,
        transport: str,
        certificate_name: str = "",
        may_rest: bool = False,
    ) -> Connection | None:
        """Serve one client until its connection ends; the stream is closed then.

        Args:
            stream: A connected stream; `run` must have started.
            peer: Address of the client, for the log.
            transport: Name of the transport, for the log.
            certificate_name: The name in the client's certificate; empty without one.
            may_rest: Return before the end, once the connection rests.

        Returns:
            The connection if it rests: the caller has to call its `run` when it needs a task, see `MayRest`.
        """
        services = self._services
        if services is None or self._is_stopping:
            await trio.aclose_forcefully(stream)
            return None
        self.statistics.sockets_total += 1
        connection = Connection(
            stream=stream,
            services=services,
            owner=self,
            peer=peer,
            transport=transport,
            certificate_name=certificate_name,
            may_rest=may_rest,
        )
        self._connections.add(connection)
        return connection if await connection.run() else None

    def ended(self, connection: Connection) -> None:
        """Called by a connection that has ended."""
        self._connections.discard(connection)
        if self._by_client.get(connection.client_id) is connection:
            del self._by_client[connection.client_id]
        self._gone.unpark_all()

    def admitted(self, connection: Connection) -> None:
        """Called by a connection whose client was accepted."""
        self._by_client[connection.client_id] = connection
        if self._is_stopping:
            connection.end(ReasonCode.SERVER_SHUTTING_DOWN)

    def _fenced(self, session: Session) -> None:
        connection = self._connection_of(session)
        if connection is not None:
            connection.fenced()

    def _unanswered(self, session: Session) -> None:
        connection = self._connection_of(session)
        if connection is not None:
            connection.unanswered()

    def _kick(self, kick: Kick, session: Session | None) -> None:
        connection = None if session is None else self._connection_of(session)
        peer = "" if connection is None else connection.peer
        act = "end_session" if kick.end_session else "kick"
        self._audit.record(act, by=kick.by, client=kick.client_id, target=peer)
        if connection is not None:
            connection.kicked(end_session=kick.end_session)

    def _connection_of(self, session: Session) -> Connection | None:
        connection = self._by_client.get(session.client_id)
        return connection if connection is not None and connection.session is session else None

    def _may_publish_will(self, client_id: str, user: str | None, host: str | None, topic: str) -> bool:
        author = Principal(client_id, user or "")
        if self.bans.find(author, host) is not None:
            self._audit.denied("will", author, "", topic, "banned")
            return False
        # Of a session that an older program stored nothing but the rights at its CONNECT is known.
        may = user is None or self._access.may_publish_will(author, topic)
        if not may:
            self._audit.denied("will", author, "", topic)
        return may

    async def _changes_for(self, message: Message) -> Changes:
        # A will, or a delayed message that is due. It is published in any case, but not kept.
        if message.retain and await self.sessions.stored_use.is_refused(message, None):
            message = msgspec.structs.replace(message, retain=False)
        return await self._publisher.changes_for(message)

    def _keeps_offline(self, topic: str) -> bool:
        return self._rules.keeps_offline(topic)

    def _refused(self, error: StorageError) -> None:
        """The store refused a message: log it, but not for each of thousands."""
        self.statistics.dropped["store"] += 1
        now_s = trio.current_time()
        if now_s - self._reported_at_s >= _REPORTED_EVERY_S:
            self._reported_at_s = now_s
            log.warning("the store refused a message", error=str(error), code=error.code)

    # Delivery

    def has_messages(self, connection: Connection) -> None:
        """Called by a connection whose session has messages to send."""
        self._ready[connection] = None
        self._is_ready.set()

    async def _pump(self) -> None:
        """Send what arrived for clients, after all messages of a batch were put into the inboxes."""
        while True:
            await self._is_ready.wait()
            self._is_ready = trio.Event()
            ready, self._ready = self._ready, {}
            for at, connection in enumerate(ready):
                connection.pump()
                if at % _PUMPED_BETWEEN_CHECKPOINTS == 0:
                    await trio.lowlevel.checkpoint()

    # Periodic tasks

    async def _sweep(self) -> None:
        """Check every connection at intervals, so that none needs a task or a timer of its own."""
        while True:
            await trio.sleep(_SWEEP_S)
            now_s, time_s = trio.current_time(), self._clock.now_us() / 1_000_000
            for at, connection in enumerate(list(self._connections)):
                # Messages do not wait until ten thousand connections have been looked at.
                if at % _LOOKED_AT_BETWEEN_CHECKPOINTS == 0:
                    await trio.lowlevel.checkpoint()
                if connection not in self._connections:
                    continue  # it has ended meanwhile
                connection.check_silence(now_s)
                connection.check_login(time_s)
                connection.save_position()
                connection.rest_if_silent(now_s)
            self.publish_watch.look(self.sessions.with_publishes(), now_s)

    async def _publish_statistics(self) -> None:
        began_s = last_s = trio.current_time()
        while True:
            now_s = trio.current_time()
            await self.look()
            self._system_topics.update(now_s - last_s)
            last_s = now_s
            now_us = self._clock.now_us()
            for topic, text in self._system_topics.values(now_s - began_s).items():
                message = Message(topic, text, 0, retain=True, timestamp_us=now_us)
                self._system_messages[topic] = message
                self.distributor.deliver_local(message)
            await trio.sleep(self._system_interval_s)

    async def look(self) -> DeliveryStatistics:
        """Update the gauges that need a look at every connection, and return the statistics of delivery."""
        subscriptions = shared_subscriptions = blocked_count = 0
        for at, connection in enumerate(list(self._connections)):
            if at % _LOOKED_AT_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
            session = connection.session
            if session is not None:
                subscriptions += len(session.subscriptions)
                shared_subscriptions += len(session.memberships)
            blocked_count += connection.is_blocked
        self.blocked_count = blocked_count
        self.statistics.subscriptions = subscriptions
        self.statistics.shared_subscriptions = shared_subscriptions
        delivery = self.distributor.statistics()
        self.statistics.dropped["slow_subscriber"] = delivery.dropped
        self.statistics.clients_expired = self.sessions.statistics.expired_count
        return delivery
