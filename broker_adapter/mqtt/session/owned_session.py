"""A session that this broker owns, and the only writer that it has in the store.

Each write is a snapshot of what is under way, conditional on the one before, so that a chain of writes has one author:
whoever takes the session breaks the chain, and the old owner's next write is refused. Writes carry numbers. When the
answer to one is lost, the number found in the store tells which was the last to be carried out, now or later: of two
writes that follow the same one the store takes only one.
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
from broker_adapter.mqtt_codec.version import Version
from broker_adapter.state_forms import decode, encode

_NOTHING: Final = Changes()

NOTHING_RECEIVED: Final[Mapping[int, int]] = MappingProxyType({})

_CHECK_INTERVAL_S: Final = 0.25
"""Who writes without a pause looks so often whether the session still is its own."""

_PAUSE_S: Final = 0.1


@attrs.frozen(slots=True)
class _Taken:
    """Packet identifiers of the messages that are the session's if and only if a write is carried out.

    Those of received messages have their digests with them, as in `Session.inbound`.
    """

    received: Mapping[int, int] = NOTHING_RECEIVED
    claiming: Collection[int] = ()


_NO_MESSAGES: Final = _Taken()


class OwnedSession:
    """Writes one session. Writes follow each other; those that wait at the same time become one.

    Args:
        session: The session as the connection has it.
        record: As it was last written.
        record_version: Of the record in the store.
        progress_version: Of what is under way; 0 if the store has nothing of it.
        store_retry: The store.
        on_lost: Called once, when the session is found to be somebody else's.
    """

    __slots__ = (
        "_checked_at_s",
        "_doubts",
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
        self._lock: trio.Lock | None = None  # made when it is first needed: most sessions write nothing for long
        self._wanted = self._stored = 0
        self._record_wanted = self._record_stored = 0
        self._write_number = 0
        self._doubts: dict[int, _Taken] = {}
        self._is_closed = False
        self._written_at_s = self._checked_at_s = 0.0

    @property
    def lock(self) -> trio.Lock:
        """Held by whoever writes."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    async def save(self, *, with_record: bool = False) -> None:
        """Return when a state at least as new as now is stored, however long the store takes to answer.

        Raises:
            SessionTakenOverError: It is somebody else's by now.
            StorageError: The store will never take it.
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
        """Carry out changes and store the session in one step.

        Args:
            received: Packet identifiers of the QoS 2 messages of the client among the changes, with their digests.
            claiming: Packet identifiers of the messages to the client that the changes claim.

        Raises:
            SessionTakenOverError: It is somebody else's by now, and nothing was carried out.
            VersionConflictError, CursorConflictError: Of the changes; nothing was carried out.
            StorageError: The store refuses the changes, or has failed.
        """
        self._wanted += 1
        if with_record:
            self._record_wanted = self._wanted
        async with self.lock:
            self.require_owned()
            await self._write(changes, _Taken(received, claiming))

    async def hand_over(self) -> None:
        """End the connection, store where it has got to and write nothing more, so that another owner may follow."""
        self.lose()
        async with self.lock:
            if self.session.is_durable and not self._is_closed:
                with suppress(SessionTakenOverError):  # by somebody who did not wait for this
                    await self._write(_NOTHING, _NO_MESSAGES)

    async def close(
        self,
        decide: Callable[[Found, ProgressRecord], Transition],
        carry_out: Callable[[Transition], Awaitable[object]],
    ) -> None:
        """End the ownership in good order, however long the store takes to answer. Does nothing if it has ended.

        Args:
            decide: What the session becomes.
            carry_out: Makes the commit.
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
                progress = self._progress(self._write_number, _NO_MESSAGES)
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
        """The session is somebody else's: whoever writes from now on is told so."""
        if self.session.is_open:
            self.session.is_open = False
            self._on_lost(self)

    def require_owned(self) -> None:
        """Raise `SessionTakenOverError` once the session is closed or lost."""
        if not self.session.is_open:
            raise self._taken_over()

    def _taken_over(self) -> SessionTakenOverError:
        return SessionTakenOverError(f"the session of client {self.session.client_id!r} is no longer this connection's")

    # For writing many sessions at once; the caller holds the lock

    def begin_snapshot(self) -> tuple[StatePut, int]:
        """The put that stores what is under way now, and what to tell `snapshot_stored`."""
        self._write_number += 1
        self._doubts[self._write_number] = _NO_MESSAGES
        return self._progress_put(self._write_number, _NO_MESSAGES), self._wanted

    def snapshot_stored(self, version: int, covers: int) -> None:
        """The put was carried out."""
        self._progress_version = version
        self._doubts.clear()
        if self._record_wanted <= self._record_stored:
            self._stored = covers

    # One write

    async def _write(self, changes: Changes, taken: _Taken) -> None:
        """Make one write, again and again until its outcome is known. The caller holds the lock."""
        await self._check()
        # While the store has nothing of what is under way, only the record can refuse an owner of the past.
        covers, with_record = self._wanted, self._record_wanted > self._record_stored or not self._progress_version
        self._write_number += 1
        number = self._write_number
        self._doubts[number] = taken
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
                    del self._doubts[number]
                    raise
                if await self._look() == number:
                    break
                await self._store_retry.pause_after_conflict(attempt)
            except StorageError as error:
                self._judge(error, number, is_snapshot=changes is _NOTHING)
                await self._store_retry.pause(attempt)
                if await self._look() == number:
                    break
            else:
                self._progress_version = committed.values[0].version
                if with_record:
                    self._record_version = committed.values[1].version
                self._settle(number)
                break
            attempt += 1
        self._record = record
        self._stored = covers
        if with_record:
            self._record_stored = covers
        self._written_at_s = trio.current_time()

    async def _check(self) -> None:
        """Make room for another owner, whom write after write would keep from reading the last one before the next.

        Raises:
            SessionTakenOverError: It has taken the record already.
        """
        now_s = trio.current_time()
        if now_s - self._written_at_s > _PAUSE_S:
            self._checked_at_s = now_s
        elif now_s - self._checked_at_s > _CHECK_INTERVAL_S:
            self._checked_at_s = now_s
            await self._look()

    def _judge(self, error: StorageError, number: int, *, is_snapshot: bool) -> None:
        """Raise what the caller must know; return if the write is to be tried again."""
        if isinstance(error, ConnectionLostError | ShuttingDownError) or (is_snapshot and may_pass(error)):
            return
        if not isinstance(error, StorageFailedError):
            # The store has decided against it. One that failed may have carried it out all the same.
            del self._doubts[number]
        raise error

    async def _look(self) -> int:
        """Read what the store has, and return the number of this owner's write that was carried out last.

        The record is read last: who takes a session takes its record no later than its progress, so if the record still
        is this owner's then the progress, as it was before, was not taken.

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
            # Of an owner before, whose session had nothing stored that would have refused it. It holds nothing of this.
            return 0
        self._settle(progress.write_number)
        return progress.write_number

    def _settle(self, number: int) -> None:
        """This write was carried out, so of those before it that were in doubt none will be."""
        taken = self._doubts.pop(number, None)
        if taken is not None:
            self.session.inbound.update(taken.received)
            self.session.out.claimed(taken.claiming)
            for other in [one for one in self._doubts if one < number]:
                del self._doubts[other]

    async def _still_owned(self) -> bool:
        """Whether closing has not happened yet: the record has its owner still. It is read last, as `_look` does."""
        progress = await self._store_retry.get(keys.progress(self.session.client_id))
        stored = await self._store_retry.get(keys.session(self.session.client_id))
        if stored is None:
            return False
        record = decode(SessionRecord, stored.key, stored.value)
        if record.claim != self.claim or record.owner == transitions.NOBODY:
            return False
        self._record_version = stored.version
        self._progress_version = 0 if progress is None else progress.version
        if progress is not None and (found := decode(ProgressRecord, progress.key, progress.value)).claim == self.claim:
            self._settle(found.write_number)
        return True

    # Forms

    def _progress_put(self, number: int, taken: _Taken) -> StatePut:
        progress = self._progress(number, taken)
        return StatePut(keys.progress(self.session.client_id), encode(progress), self._progress_version)

    def _progress(self, number: int, taken: _Taken) -> ProgressRecord:
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
    """The session that a record and what was under way make."""
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
        # Nothing that came before all subscriptions is for this client; a position is stored only now and then.
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
