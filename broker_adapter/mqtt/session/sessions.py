"""The sessions of one broker: opened, stored, closed and handed over, by compare-and-set in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.changes import Changes, StatePut
from broker_adapter.errors import CursorConflictError, InvalidRequestError, StorageError, VersionConflictError
from broker_adapter.mqtt.access.quotas import Quotas
from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.session import transitions
from broker_adapter.mqtt.session.claims import Claim, Claims, changes_of
from broker_adapter.mqtt.session.commits import ChangesFor, Commits, MayPublishWill
from broker_adapter.mqtt.session.errors import SessionTakenOverError, StoreUnavailableError
from broker_adapter.mqtt.session.fencing import Fencing
from broker_adapter.mqtt.session.keyed_lock import KeyedLock
from broker_adapter.mqtt.session.kick import Kicks, OnKick
from broker_adapter.mqtt.session.leases import Leases
from broker_adapter.mqtt.session.orphan_cleanup import OrphanCleanup
from broker_adapter.mqtt.session.outbound_window import InFlight
from broker_adapter.mqtt.session.owned_session import NOTHING_RECEIVED, OwnedSession, session_from
from broker_adapter.mqtt.session.peer_channel import PeerChannel
from broker_adapter.mqtt.session.session import Membership, PendingPublishes, Session
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.shares import Shares
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry, may_pass
from broker_adapter.mqtt.session.stored import ProgressRecord
from broker_adapter.mqtt.session.stored_use import StoredUse
from broker_adapter.mqtt.session.takeover import (
    OpenedSession,
    SessionRequest,
    TakenSession,
    Takeover,
    require_present,
    require_user,
)
from broker_adapter.mqtt.session.timers import Timers, delayed_puts
from broker_adapter.mqtt.session.transitions import Found, Transition
from broker_adapter.mqtt.session.verification import Verification
from broker_adapter.mqtt.session.write_behind import WriteBehind
from broker_adapter.topic_mapping import TopicMapping
from shards.model import StateValue
from shards.seams.clock import Clock

_log = logging.getLogger(__name__)


class Sessions:
    """The sessions that are open at this broker, and the duties towards sessions of other brokers.

    Args:
        adapter: The store.
        broker_id: Unique among the brokers of the store; no ``/``.
        changes_for: Returns what storing a message takes: its append, and its retained value if it is retained.
        on_fenced: Called once when a session is taken over by another connection, here or elsewhere. The connection
            must end (reason code 0x8E); the call must not block, and need not close the session.
        on_kick: See `OnKick`.
        on_unanswered: Called for a session some of whose publishes will never be answered. Its connection must end, so
            that the client sends them again; the call must not block.
        clock: Tells when timers are due.
        mapping: The shards of topics.
        may_publish_will: Asked before a will is published, as rights may have changed since its client connected.
        quotas: Limits of users.
        settings: Timeouts towards other brokers and the store.

    Attributes:
        statistics: Counters.
        stored_use: What users have in the store, as far as quotas limit it.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        broker_id: str,
        *,
        changes_for: ChangesFor,
        on_fenced: Callable[[Session], None],
        on_unanswered: Callable[[Session], None],
        on_kick: OnKick,
        clock: Clock,
        mapping: TopicMapping | None = None,
        may_publish_will: MayPublishWill = lambda _client_id, _user, _host, _topic: True,
        quotas: Quotas | None = None,
        settings: SessionSettings | None = None,
    ) -> None:
        if not broker_id or "/" in broker_id:
            raise InvalidRequestError(f"broker id {broker_id!r} must have at least one character, and no '/'")
        self._broker_id = broker_id
        self._on_fenced = on_fenced
        self._clock = clock
        self._settings = settings = settings or SessionSettings()
        self.statistics = statistics = SessionStatistics()
        self._store_retry = store_retry = StoreRetry(adapter, settings, statistics)
        self.stored_use = StoredUse(store_retry, quotas or Quotas())
        self._claims = Claims(store_retry, settings.claims_interval_s, settings.audit_interval_s)
        self._shares = Shares(store_retry, self._claims, mapping or TopicMapping(), clock)
        self._commits = Commits(store_retry, changes_for, self._shares, may_publish_will, clock, statistics)
        self._leases = Leases(store_retry, broker_id, settings)
        self._locks = KeyedLock()
        self._closed = trio.lowlevel.ParkingLot()
        kicks = Kicks(store_retry, self._commits, self._locks, lambda: self._open, self._closed, on_kick)
        self._peer_channel = PeerChannel(
            store_retry,
            broker_id,
            give_up=self._give_up,
            kick=kicks.carry_out,
            on_missed=self._request_audit,
        )
        self._fencing = Fencing(store_retry)
        self._takeover = Takeover(
            store_retry,
            self._commits,
            self._peer_channel,
            self._fencing,
            lambda: self._verification.count,
            broker_id,
            clock,
            settings.yield_timeout_s,
            statistics,
        )
        self._open: dict[str, OwnedSession] = {}
        self._pending_publishes = PendingPublishes()
        self._verification = Verification(
            broker_id, self._leases, lambda: self._open, self._pending_publishes, on_unanswered
        )
        self._orphan_cleanup = OrphanCleanup(
            store_retry,
            self._commits,
            self._leases,
            broker_id,
            self._locks,
            self._pending_publishes,
            fence=self._takeover.fence,
            open_here=lambda: self._open,
            clock=clock,
            statistics=statistics,
        )
        self._timers = Timers(store_retry, self._commits, self._shares, self._leases, clock, settings, statistics)
        self._saving = WriteBehind(store_retry, settings.save_interval_s)
        self._checks_due_s: dict[str, float] = {}
        self._wants_audit = True
        self._adopting: set[str] = set()

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the lease, answer other brokers, fire timers, store positions, close the sessions of dead brokers.

        `task_status` is notified when sessions may be opened. Cancel it when the broker stops, after the sessions are
        closed.

        Raises:
            BrokerReplacedError: Another process runs under this broker id.
        """
        await self._leases.take()
        try:
            with self._store_retry.adapter.before_resending(self._verification.verify):
                await self._run(task_status)
        finally:
            if not self._open and not self._checks_due_s:
                with trio.move_on_after(self._settings.yield_timeout_s, shield=True):
                    await self._give_back_lease()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        async with background_tasks() as tasks:
            await tasks.start(self._peer_channel.run)
            tasks.start_soon(self._keep_lease, tasks)
            tasks.start_soon(self._timers.run)
            tasks.start_soon(self._saving.run)
            tasks.start_soon(self._claims.run)
            tasks.start_soon(self._correct_store)
            tasks.start_soon(self.stored_use.run)
            task_status.started()
            await trio.sleep_forever()

    async def _give_back_lease(self) -> None:
        try:
            await self._leases.give_back()
        except (StorageError, trio.ClosedResourceError) as error:
            _log.info("the lease was not deleted and will expire: %s", error)

    async def _keep_lease(self, tasks: trio.Nursery) -> None:
        while True:
            began_s = trio.current_time()
            await trio.sleep(self._settings.renew_interval_s)
            was_declared_dead = await self._leases.renew()
            if was_declared_dead:
                # Another broker may be closing them now.
                self._verification.lose(list(self._open.values()))
            if was_declared_dead or trio.current_time() - began_s > self._settings.lease_s:
                self._wants_audit = True
            try:
                changed, run_out = await self._leases.look()
            except StorageError as error:
                _log.warning("the leases of other brokers could not be read: %s", error)
                continue
            for broker_id in changed:
                self._peer_channel.mark_alive(broker_id)
            for broker_id, lease in run_out.items():
                if broker_id not in self._adopting:
                    self._adopting.add(broker_id)
                    tasks.start_soon(self._adopt, broker_id, lease)

    async def _adopt(self, broker_id: str, lease: StateValue) -> None:
        try:
            await self._orphan_cleanup.adopt(broker_id, lease)
        except StorageError:
            _log.exception("closing the sessions of dead broker %r failed; it is tried again", broker_id)
        finally:
            self._adopting.discard(broker_id)

    async def _correct_store(self) -> None:
        """Correct the store where it says that a session is open here and it is not."""
        next_audit_s = 0.0
        while True:
            now_s = trio.current_time()
            try:
                await self._fencing.settle()
                for client_id, due_s in [one for one in self._checks_due_s.items() if one[1] <= now_s]:
                    await self._takeover.fence(client_id)
                    await self._orphan_cleanup.check(client_id)
                    if self._checks_due_s[client_id] == due_s:
                        del self._checks_due_s[client_id]
                if self._wants_audit or now_s >= next_audit_s:
                    self._wants_audit = False
                    next_audit_s = now_s + self._settings.audit_interval_s
                    await self._orphan_cleanup.audit()
            except StorageError:
                self._wants_audit = True
                _log.exception("comparing sessions with the store failed; it is tried again")
            await trio.sleep(self._settings.timer_interval_s)

    def _request_audit(self) -> None:
        self._wants_audit = True

    def _schedule_check(self, client_id: str, after_s: float = 0.0) -> None:
        """Check soon whether the store wrongly names this broker as the owner of a client's session."""
        self._checks_due_s[client_id] = trio.current_time() + after_s

    # Opening

    async def open(
        self,
        request: SessionRequest,
        *,
        may_open: Callable[[str], bool] = lambda _user: True,
        may_have_left: Callable[[bool], bool] = lambda _is_owned: False,
    ) -> OpenedSession:
        """Make this broker the owner of the client's session, in place of any earlier owner, or create a new session.

        Must not return until the ownership is durable.

        Args:
            request: The session.
            may_open: Called with the user that the session belongs to; returns whether this client may open it. If not,
                nothing changes: its owner keeps its connection, its subscriptions and its will.
            may_have_left: Called with whether the session has an owner; returns whether the client may have closed this
                connection and be connected elsewhere.
                It is called again before each step that would take the session from another connection.

        Raises:
            ClientGoneError: ``may_have_left`` returned true.
            SessionOfAnotherUserError: ``may_open`` returned false.
            TooManySessionsError: The session does not exist, and the user has as many as it may have.
            StoreUnavailableError: The store did not answer in time.
            StorageError: The store refuses the session.
        """
        client_id, wanted = request.client_id, request.opening(self._broker_id)
        opened: OpenedSession | None = None
        taken_from = ""
        try:
            with trio.move_on_after(self._settings.open_timeout_s):
                async with self._locks.take(client_id):
                    local = self._open.get(client_id)
                    require_present(client_id, may_have_left, is_owned=local is not None)
                    if local is not None:
                        require_user(local.record, request.user, may_open)
                        await local.hand_over()
                        taken_from = self._broker_id
                    await self._pending_publishes.wait_answered(client_id)
                    use = self.stored_use
                    begin = partial(use.begin_session, request.user) if use.limits_sessions else None
                    taken = await self._takeover.take(client_id, wanted, may_have_left, may_open, begin)
                    opened = self._register(taken, taken.taken_from or taken_from)
        finally:
            if opened is None:
                self._schedule_check(client_id)
        if opened is None:
            raise StoreUnavailableError(
                f"the store did not answer within {self._settings.open_timeout_s:g} s: the session of client "
                f"{client_id!r} was not opened"
            )
        return opened

    def _register(self, taken: TakenSession, taken_from: str) -> OpenedSession:
        transition = taken.transition
        record = transition.record
        assert record is not None
        session = session_from(record, transition.progress)
        session.out.maybe_sent_lsn = taken.maybe_sent_lsn
        # They are fenced: the next write of the record does not name them any more.
        record = msgspec.structs.replace(record, unfenced=())
        owned = OwnedSession(
            session, record, taken.record_version, taken.progress_version, self._store_retry, self._lost
        )
        self._open[session.client_id] = owned
        statistics = self.statistics
        statistics.connected_count += 1
        statistics.durable_count += session.is_durable
        statistics.opened_count += 1
        statistics.resumed_count += transition.present
        return OpenedSession(session, transition.present, taken_from)

    async def _give_up(self, client_id: str, epoch: int) -> None:
        """Another broker asks for a session: store it a last time, and end its connection."""
        async with self._locks.take(client_id):
            owned = self._open.get(client_id)
            if owned is not None and owned.session.epoch <= epoch:
                # The other broker may die before it takes the session.
                self._schedule_check(client_id, after_s=2 * self._settings.open_timeout_s)
                await owned.hand_over()
            await self._pending_publishes.wait_answered(client_id)
            await self._takeover.fence(client_id)

    def with_publishes(self) -> Iterator[Session]:
        """The sessions that are open here, and closed ones whose publishes the store has not all answered."""
        yield from (owned.session for owned in self._open.values())
        yield from self._pending_publishes.sessions()

    def _lost(self, owned: OwnedSession) -> None:
        self._remove(owned)
        self._pending_publishes.add(owned.session)
        self.statistics.fenced_count += 1
        self._on_fenced(owned.session)

    def _remove(self, owned: OwnedSession) -> None:
        if self._open.get(owned.session.client_id) is owned:
            del self._open[owned.session.client_id]
            self.statistics.connected_count -= 1
            self.statistics.durable_count -= owned.session.is_durable
        self._saving.discard(owned)
        self._closed.unpark_all()

    # Called by a connection for its session

    def find(self, client_id: str) -> Session | None:
        """The session of a client if it is open at this broker."""
        owned = self._open.get(client_id)
        return None if owned is None else owned.session

    async def save(self, session: Session) -> None:
        """Store what is under way, received and finished. Returns when a state at least as new as now is durable.

        Many concurrent calls are one write. While the store is unreachable the call waits. For a session that is not
        durable nothing is stored.

        Raises:
            SessionTakenOverError: The session has another owner now.
            StorageError: The store refuses it permanently.
        """
        owned = self._owned(session)
        if session.is_durable:
            await owned.save()
        else:
            await trio.lowlevel.checkpoint()

    def save_soon(self, session: Session) -> None:
        """Store the session within about a second; for changes that may be lost, such as a position that moved."""
        owned = self._open.get(session.client_id)
        if session.is_durable and owned is not None and owned.session is session:
            self._saving.add(owned)

    async def save_subscriptions(self, session: Session) -> None:
        """Store the subscriptions; durability and errors as for `save`."""
        owned = self._owned(session)
        if session.is_durable:
            await owned.save(with_record=True)
        else:
            await trio.lowlevel.checkpoint()

    async def commit(
        self, session: Session, changes: Changes, *, received: Mapping[int, int] = NOTHING_RECEIVED
    ) -> None:
        """Commit changes together with the session's progress, exactly once even if the connection is lost.

        Args:
            received: Packet identifiers of the QoS 2 messages among the changes, with their digests; they are in
                `Session.inbound` when it returns, and in the store if and only if the messages are.

        Raises:
            SessionTakenOverError: The session has another owner now; nothing was carried out.
            StorageFailedError: The store has failed; whether the changes were carried out is unknown until later.
            StorageError: The store refused the changes; nothing was carried out.
        """
        await self._owned(session).commit(changes, received)

    async def claim(self, session: Session, wanted: Mapping[Claim, InFlight]) -> None:
        """Claim messages of shared subscriptions at QoS 2 for the session, so that no other session ever gets them.

        Returns when every message that could be claimed is stored with the session (its entry is marked). The others
        are claimed by another session, or finished. While the store is unreachable, or has no space, the call waits.

        Raises:
            SessionTakenOverError: The session has another owner now.
            StorageError: The store refuses it permanently.
        """
        attempt = 0
        foreign: set[Claim] = set()
        while True:
            owned = self._owned(session)
            # An attempt whose answer was lost may have been carried out.
            rest = {claim: entry for claim, entry in wanted.items() if not entry.is_claimed and claim not in foreign}
            if not rest:
                break
            claiming = [entry.packet_id for entry in rest.values()]
            try:
                try:
                    await owned.commit(changes_of(rest.keys(), session.client_id), claiming=claiming)
                except (VersionConflictError, CursorConflictError):
                    await self._store_retry.pause_after_conflict(attempt)
                    mine = {claim for claim, entry in rest.items() if entry.is_claimed}
                    foreign |= await self._claims.foreign(rest.keys() - mine)
            except StorageError as error:
                if not may_pass(error):
                    raise
                await self._store_retry.pause(attempt)
            attempt += 1
        self._claims.made(claim for claim, entry in wanted.items() if entry.is_claimed)

    async def close(self, session: Session, *, publish_will: bool, expiry_interval_s: int | None = None) -> None:
        """Close a session whose connection has ended. Does nothing if this broker does not own it any more.

        All publishes of the client are answered by the store before another connection may open the session.

        Args:
            publish_will: False only if the client sent a DISCONNECT without its will.
            expiry_interval_s: New session expiry interval, if DISCONNECT changed it.
        """
        owned = self._open.get(session.client_id)
        if owned is None or owned.session is not session:
            await trio.lowlevel.checkpoint()
            return

        def decide(found: Found, progress: ProgressRecord) -> Transition:
            return transitions.closed(
                found,
                self._clock.now_us(),
                publish_will=publish_will,
                expiry_interval_s=expiry_interval_s,
                progress=progress,
            )

        async def carry_out(transition: Transition) -> None:
            await self._commits.make(session.client_id, transition)
            if transition.record is None:
                self.stored_use.end_session(owned.record.user)

        is_done = False
        try:
            if session.publishes is not None:
                session.publishes.stop()
                await session.publishes.wait_answered()
            await owned.close(decide, carry_out)
            is_done = True
        finally:
            self._remove(owned)
            self._pending_publishes.add(session)
            if not is_done:
                self._schedule_check(session.client_id)

    async def join_share(self, session: Session, group: str, topic_filter: str, *, after: Position) -> Membership:
        """Make the session a member of a shared subscription; a second call changes nothing.

        The subscriptions are stored in the same commit. The first member creates the group, which begins after
        ``after``.
        """
        return await self._shares.join(self._owned(session), group, topic_filter, after)

    async def leave_share(self, session: Session, group: str, topic_filter: str) -> None:
        """End a membership, and store the subscriptions. After the last member has left the group is deleted."""
        await self._shares.leave(self._owned(session), group, topic_filter)

    def delay(self, message: Message, due: DelayedPublish) -> tuple[StatePut, ...]:
        """The puts that make a message be published, exactly once, when it is due."""
        return delayed_puts(message, due)

    def _owned(self, session: Session) -> OwnedSession:
        owned = self._open.get(session.client_id)
        if owned is None or owned.session is not session:
            raise SessionTakenOverError(f"the session of client {session.client_id!r} is no longer this connection's")
        return owned
