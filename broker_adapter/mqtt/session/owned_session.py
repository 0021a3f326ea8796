"""Writing a session that this broker owns; it is the session's only writer in the store.

Each write is a snapshot of what is under way, conditional on the write before it, so all writes of a chain come from
one owner: a broker that takes the session breaks the chain, and the old owner's next write is refused. Writes are
numbered. When the answer to a write is lost, the number found in the store tells which write was carried out last: of
two writes that follow the same one the store accepts only one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

import attrs
import msgspec
import trio

from broker_adapter.changes import Changes, StatePut
from broker_adapter.errors import (
    ConnectionLostError,
    ShuttingDownError,
    StorageError,
    StorageFailedError,
    VersionConflictError,
)
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session import keys, transitions
from broker_adapter.mqtt.session.errors import SessionTakenOverError
from broker_adapter.mqtt.session.outbound_window import OutboundWindow
from broker_adapter.mqtt.session.progress import inbound_of, progress_of, retained_of, window_of
from broker_adapter.mqtt.session.session import Membership, Session
from broker_adapter.mqtt.session.store_retry import StoreRetry, concerns, may_pass
from broker_adapter.mqtt.session.stored import ProgressRecord, SessionRecord, StoredMembership, StoredSubscription
from broker_adapter.mqtt.session.transitions import Found, Transition
from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.state_forms import decode, encode

_NOTHING: Final = Changes()

NOTHING_RECEIVED: Final[Mapping[int, int]] = MappingProxyType({})

_CHECK_INTERVAL_S: Final = 0.25
"""An owner that writes without a pause checks at this interval whether it still owns the session."""

_PAUSE_S: Final = 0.1


@attrs.frozen(slots=True)
class _MessageIds:
    """Packet identifiers of messages that belong to the session if and only if a write is carried out.

    For received messages the values are their digests, as in `Session.inbound`.
    """

    received: Mapping[int, int] = NOTHING_RECEIVED
    claiming: Collection[int] = ()


_NO_MESSAGES: Final = _MessageIds()


class OwnedSession:
    """Writes one session. Writes follow each other; those that wait at the same time are joined into one.

    Args:
        session: The session, as the connection changes it.
        record: The record that was written last.
        record_version: Version of the record in the store.
        progress_version: Version of the stored progress; 0 if none is stored.
        store_retry: The store.
        on_lost: Called once, when the session turns out to have another owner.
    """

    __slots__ = (
        "_checked_at_s",
        "_is_closed",
        "_lock",
        "_on_lost",
        "_progress_version",
        "_record",
        "_record_stored",
        "_record_version",
        "_record_wanted",
        "_store_retry",
        "_stored",
        "_unconfirmed",
        "_wanted",
        "_write_number",
        "_written_at_s",
        "claim",
        "session",
    )

    def __init__(
        self,
        session: Session,
        record: SessionRecord,
        record_version: int,
        progress_version: int,
        store_retry: StoreRetry,
        on_lost: Callable[[OwnedSession], None],
    ) -> None:
        self.session = session
        self.claim = record.claim
        self._record = record
        self._record_version = record_version
        self._progress_version = progress_version
        self._store_retry = store_retry
        self._on_lost = on_lost
        self._lock: trio.Lock | None = None  # made when first needed: most sessions write nothing for a long time
        self._wanted = self._stored = 0
        self._record_wanted = self._record_stored = 0
        self._write_number = 0
        self._unconfirmed: dict[int, _MessageIds] = {}
        self._is_closed = False
        self._written_at_s = self._checked_at_s = 0.0

    @property
    def lock(self) -> trio.Lock:
        """Held during each write."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def record(self) -> SessionRecord:
        """The record that was written last."""
        return self._record

    async def save(self, *, with_record: bool = False) -> None:
        """Return when a state at least as new as now is durable; retries as long as the store does not answer.

        Raises:
            SessionTakenOverError: The session has another owner now.
            StorageError: The store refuses it permanently.
        """
        self._wanted += 1
        wanted = self._wanted
        if with_record:
            self._record_wanted = wanted
        async with self.lock:
            if self._stored < wanted:
                self.require_owned()
                await self._write(_NOTHING, _NO_MESSAGES)

    async def commit(
        self,
        changes: Changes,
        received: Mapping[int, int] = NOTHING_RECEIVED,
        *,
        claiming: Collection[int] = (),
        with_record: bool = False,
    ) -> None:
        """Commit changes and store the session in one step.

        Args:
            received: Packet identifiers of the QoS 2 messages of the client among the changes, with their digests.
            claiming: Packet identifiers of the messages to the client that the changes claim.

        Raises:
            SessionTakenOverError: The session has another owner now, and nothing was carried out.
            VersionConflictError, CursorConflictError: Of the changes; nothing was carried out.
            StorageError: The store refuses the changes, or has failed.
        """
        self._wanted += 1
        if with_record:
            self._record_wanted = self._wanted
        async with self.lock:
            self.require_owned()
            await self._write(changes, _MessageIds(received, claiming))

    async def hand_over(self) -> None:
        """Prepare for another owner: end the connection, store the progress, and write nothing more."""
        self.lose()
        async with self.lock:
            if self.session.is_durable and not self._is_closed:
                with suppress(SessionTakenOverError):  # by an owner that did not wait for this
                    await self._write(_NOTHING, _NO_MESSAGES, is_last=True)

    async def close(
        self,
        decide: Callable[[Found, ProgressRecord], Transition],
        carry_out: Callable[[Transition], Awaitable[object]],
    ) -> None:
        """End the ownership; retries as long as the store does not answer. Does nothing if it has ended already.

        Args:
            decide: Returns the transition of the session.
            carry_out: Commits the transition.
        """
        async with self.lock:
            if not self.session.is_open:
                return
            self.session.is_open = False
            self._is_closed = True
            self._write_number += 1
            attempt = 0
            while True:
                found = Found(
                    self.session.client_id, self._current_record(), self._record_version, None, self._progress_version
                )
                progress = self._progress(self._last_number(), _NO_MESSAGES)
                try:
                    await carry_out(decide(found, progress))
                except StorageError as error:
                    await self._store_retry.pause_after(error, attempt)
                else:
                    return
                if not await self._still_owned():
                    return
                attempt += 1

    def lose(self) -> None:
        """The session has another owner: every later write raises `SessionTakenOverError`."""
        if self.session.is_open:
            self.session.is_open = False
            self._on_lost(self)

    def require_owned(self) -> None:
        """Raise `SessionTakenOverError` once the session is closed or lost."""
        if not self.session.is_open:
            raise self._taken_over()

    def _taken_over(self) -> SessionTakenOverError:
        return SessionTakenOverError(f"the session of client {self.session.client_id!r} is no longer this connection's")

    # For writing many sessions in one commit; the caller holds the lock

    def begin_snapshot(self) -> tuple[StatePut, int]:
        """Return the put that stores the progress now, and the value to pass to `snapshot_stored`."""
        self._write_number += 1
        self._unconfirmed[self._write_number] = _NO_MESSAGES
        return self._progress_put(self._write_number, _NO_MESSAGES), self._wanted

    def snapshot_stored(self, version: int, covers: int) -> None:
        """The put of `begin_snapshot` was carried out."""
        self._progress_version = version
        self._unconfirmed.clear()
        if self._record_wanted <= self._record_stored:
            self._stored = covers

    # One write

    def _last_number(self) -> int:
        """The number of the owner's last write: negative if all that was sent to the client is stored by it.

        REQUIRES: nothing is sent to the client any more.
        """
        return -self._write_number if self.session.knows_what_was_sent else self._write_number

    async def _write(self, changes: Changes, taken: _MessageIds, *, is_last: bool = False) -> None:
        """Make one write, and repeat it until its outcome is known. The caller holds the lock."""
        await self._check()
        # As long as no progress is stored, only the condition on the record can refuse an earlier owner.
        covers, with_record = self._wanted, self._record_wanted > self._record_stored or not self._progress_version
        self._write_number += 1
        number = self._last_number() if is_last else self._write_number
        self._unconfirmed[number] = taken
        attempt = 0
        while True:
            record = self._current_record() if with_record else self._record
            puts = [self._progress_put(number, taken)]
            if with_record:
                puts.append(StatePut(keys.session(record.client_id), encode(record), self._record_version))
            try:
                committed = await self._store_retry.commit(
                    Changes(changes.appends, (*puts, *changes.puts), changes.deletes, changes.cursors)
                )
            except VersionConflictError as error:
                if not any(concerns(error, put.key) for put in puts):
                    del self._unconfirmed[number]
                    raise
                if await self._read_stored() == number:
                    break
                await self._store_retry.pause_after_conflict(attempt)
            except StorageError as error:
                self._raise_unless_temporary(error, number, is_snapshot=changes is _NOTHING)
                await self._store_retry.pause(attempt)
                if await self._read_stored() == number:
                    break
            else:
                self._progress_version = committed.values[0].version
                if with_record:
                    self._record_version = committed.values[1].version
                self._confirm(number)
                break
            attempt += 1
        self._record = record
        self._stored = covers
        if with_record:
            self._record_stored = covers
        self._written_at_s = trio.current_time()

    async def _check(self) -> None:
        """Check at intervals that the session is still owned here.

        Without this, an owner that writes without a pause would prevent another broker from taking the session: each
        write would change the progress between that broker's read and its commit.

        Raises:
            SessionTakenOverError: Another broker has taken the record.
        """
        now_s = trio.current_time()
        if now_s - self._written_at_s > _PAUSE_S:
            self._checked_at_s = now_s
        elif now_s - self._checked_at_s > _CHECK_INTERVAL_S:
            self._checked_at_s = now_s
            await self._read_stored()

    def _raise_unless_temporary(self, error: StorageError, number: int, *, is_snapshot: bool) -> None:
        """Raise an error that the caller must handle; return if the write is to be tried again."""
        if isinstance(error, ConnectionLostError | ShuttingDownError) or (is_snapshot and may_pass(error)):
            return
        if not isinstance(error, StorageFailedError):
            # The store refused the write. After a `StorageFailedError` it may have been carried out nevertheless.
            del self._unconfirmed[number]
        raise error

    async def _read_stored(self) -> int:
        """Read the session from the store; return the number of this owner's write that was carried out last.

        The record is read last: a broker that takes a session takes its record no later than its progress. So if the
        record is still this owner's, the progress that was read before it was not taken either.

        Raises:
            SessionTakenOverError: The session has another owner.
        """
        stored = await self._store_retry.get(keys.progress(self.session.client_id))
        record = await self._store_retry.get(keys.session(self.session.client_id))
        if record is None or decode(SessionRecord, record.key, record.value).claim != self.claim:
            self.lose()
            raise self._taken_over()
        self._record_version = record.version
        self._progress_version = 0 if stored is None else stored.version
        if stored is None:
            return 0
        progress = decode(ProgressRecord, stored.key, stored.value)
        if progress.claim != self.claim:
            # Progress of an earlier owner: nothing of this owner was stored yet.
            return 0
        self._confirm(progress.write_number)
        return progress.write_number

    def _confirm(self, number: int) -> None:
        """This write was carried out, so no earlier unconfirmed write can be carried out any more."""
        taken = self._unconfirmed.pop(number, None)
        if taken is not None:
            self.session.inbound.update(taken.received)
            self.session.out.claimed(taken.claiming)
            for other in [one for one in self._unconfirmed if abs(one) < abs(number)]:
                del self._unconfirmed[other]

    async def _still_owned(self) -> bool:
        """Whether the session was not closed yet: its record names the owner. It is read last, see `_read_stored`."""
        progress = await self._store_retry.get(keys.progress(self.session.client_id))
        stored = await self._store_retry.get(keys.session(self.session.client_id))
        if stored is None:
            return False
        record = decode(SessionRecord, stored.key, stored.value)
        if record.claim != self.claim or record.owner == transitions.NO_OWNER:
            return False
        self._record_version = stored.version
        self._progress_version = 0 if progress is None else progress.version
        if progress is not None and (found := decode(ProgressRecord, progress.key, progress.value)).claim == self.claim:
            self._confirm(found.write_number)
        return True

    # Stored forms

    def _progress_put(self, number: int, taken: _MessageIds) -> StatePut:
        progress = self._progress(number, taken)
        return StatePut(keys.progress(self.session.client_id), encode(progress), self._progress_version)

    def _progress(self, number: int, taken: _MessageIds) -> ProgressRecord:
        session = self.session
        if not session.is_durable:
            return ProgressRecord(self.claim, number)
        return progress_of(
            session.out,
            {**session.inbound, **taken.received},
            claim=self.claim,
            write_number=number,
            claiming=taken.claiming,
            retained=session.retained,
        )

    def _current_record(self) -> SessionRecord:
        session = self.session
        return msgspec.structs.replace(
            self._record,
            subscriptions=stored_subscriptions(session.subscriptions) if session.is_durable else (),
            memberships=tuple(
                StoredMembership(group, topic_filter, one.group, one.after.lsn)
                for (group, topic_filter), one in session.memberships.items()
            ),
        )


def session_from(record: SessionRecord, progress: ProgressRecord | None) -> Session:
    """The session that a record and its stored progress describe."""
    subscriptions = {
        one.topic_filter: SubscriptionOptions(
            one.qos,
            one.no_local,
            one.retain_as_published,
            one.retain_handling,
            one.subscription_id,
            Position(one.since_lsn),
        )
        for one in record.subscriptions
    }
    window = OutboundWindow() if progress is None else window_of(progress)
    if subscriptions:
        # Messages before all subscriptions are not for this client; the stored position may be older.
        window.advance(min(options.since for options in subscriptions.values()).lsn)
    return Session(
        record.client_id,
        record.epoch,
        Version(record.protocol),
        record.expiry_interval_s,
        subscriptions,
        {
            (one.group, one.topic_filter): Membership(one.store_group, Position(one.start_lsn))
            for one in record.memberships
        },
        window,
        {} if progress is None else inbound_of(progress),
        [] if progress is None else retained_of(progress),
    )


def stored_subscriptions(subscriptions: dict[str, SubscriptionOptions]) -> tuple[StoredSubscription, ...]:
    """The stored form of subscriptions."""
    return tuple(
        StoredSubscription(
            topic_filter,
            options.qos,
            options.no_local,
            options.retain_as_published,
            options.retain_handling,
            options.subscription_id,
            options.since.lsn,
        )
        for topic_filter, options in subscriptions.items()
    )
