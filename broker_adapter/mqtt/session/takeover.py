"""Taking a session for this broker from its present owner, by compare-and-set in the store."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import attrs

from broker_adapter.errors import StorageError, VersionConflictError
from broker_adapter.mqtt.access.permissions import user_shown
from broker_adapter.mqtt.session import transitions
from broker_adapter.mqtt.session.commits import Commits
from broker_adapter.mqtt.session.errors import ClientGoneError, SessionOfAnotherUserError
from broker_adapter.mqtt.session.fencing import Fencing
from broker_adapter.mqtt.session.orphan_cleanup import read
from broker_adapter.mqtt.session.peer_channel import PeerChannel
from broker_adapter.mqtt.session.session import Session
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.mqtt.session.stored import SessionRecord, stored_will
from broker_adapter.mqtt.session.transitions import Opening, Transition
from broker_adapter.mqtt_codec.packets import Version, Will
from broker_adapter.mqtt_codec.text import shown
from shards.seams.clock import Clock

_CONFLICTS_IN_ONE_STEP: Final = 2
"""After this many conflicts a session is taken in two steps."""


@attrs.frozen(slots=True, kw_only=True)
class SessionRequest:
    """The session that a client asks for with its CONNECT.

    For MQTT 3.1.1: ``clean_start`` is clean session, and ``expiry_interval_s`` is 0 with it, else the longest that is
    configured.

    Attributes:
        user: Name of the user whose client opens it, empty for an anonymous one: the session belongs to it then.
        host: Address of the client, for administrators.
    """

    client_id: str
    user: str = ""
    host: str = ""
    version: Version
    clean_start: bool
    expiry_interval_s: int
    will: Will | None

    def opening(self, broker_id: str) -> Opening:
        """The transition that a broker tries first; each attempt gets a claim of its own."""
        will = None if self.will is None else stored_will(self.will, self.client_id, self.user)
        return Opening(
            broker_id,
            0,
            self.clean_start,
            self.expiry_interval_s,
            will,
            self.version,
            user=self.user,
            host=self.host,
        )


@attrs.frozen(slots=True)
class OpenedSession:
    """A session that this broker owns now.

    Attributes:
        present: Whether it existed before; the Session Present flag of CONNACK.
        taken_from: The broker at which another connection had it; empty if none had.
    """

    session: Session
    present: bool
    taken_from: str = ""


@attrs.frozen(slots=True)
class TakenSession:
    """A session that this broker owns now.

    Attributes:
        transition: The transition that made it so.
        record_version: Version of its record in the store.
        progress_version: Version of its progress; 0 if none is stored.
        taken_from: The broker that owned it; empty if none did.
    """

    transition: Transition
    record_version: int
    progress_version: int
    taken_from: str = ""

    @property
    def maybe_sent_lsn(self) -> int:
        """`OutboundWindow.maybe_sent_lsn` of the session."""
        before = self.transition.maybe_sent_lsn
        return max(self.record_version, self.progress_version) if before is None else before


def require_present(client_id: str, may_have_left: Callable[[bool], bool], *, is_owned: bool) -> None:
    """Raise if the client may be connected elsewhere; see `Sessions.open`.

    Raises:
        ClientGoneError: ``may_have_left`` returned true.
    """
    if may_have_left(is_owned):
        raise ClientGoneError(
            f"client {client_id!r} has closed its connection, or sent its CONNECT while this broker was paused, and "
            f"may be connected elsewhere: its session was not opened"
        )


def require_user(record: SessionRecord, user: str, may_open: Callable[[str], bool]) -> None:
    """Raise if a session belongs to another user. One without a user belongs to the first who opens it.

    Args:
        record: The session.
        user: Name of the user who opens it, for the message.
        may_open: Returns whether that user may open a session that the named user began.

    Raises:
        SessionOfAnotherUserError: ``may_open`` returned false.
    """
    if record.user is not None and not may_open(record.user):
        raise SessionOfAnotherUserError(
            f"the session of client {shown(record.client_id)} belongs to {user_shown(record.user)}: "
            f"{user_shown(user)} may not open it"
        )


class Takeover:
    """Takes sessions for this broker.

    Args:
        store_retry: The store.
        commits: Commits the transition.
        peer_channel: Asks the owner to give it up.
        fencing: Ends the connection of an owner that did not answer.
        verified_count: Returns how often open sessions were compared with the store, after lost connections.
        broker_id: This broker.
        clock: Gives the time of transitions.
        yield_timeout_s: How long to wait for the owner's answer.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        commits: Commits,
        peer_channel: PeerChannel,
        fencing: Fencing,
        verified_count: Callable[[], int],
        broker_id: str,
        clock: Clock,
        yield_timeout_s: float,
        statistics: SessionStatistics,
    ) -> None:
        self._store_retry = store_retry
        self._commits = commits
        self._peer_channel = peer_channel
        self._fencing = fencing
        self._verified_count = verified_count
        self._broker_id = broker_id
        self._clock = clock
        self._yield_timeout_s = yield_timeout_s
        self._statistics = statistics
        # The brokers of each session whose connections `fence` has to end. A cancelled commit may be carried out: they
        # are kept for the next action on the session at this broker.
        self._unfenced: dict[str, set[str]] = {}

    async def take(
        self,
        client_id: str,
        wanted: Opening,
        may_have_left: Callable[[bool], bool],
        may_open: Callable[[str], bool],
        begin: Callable[[], Awaitable[None]] | None,
    ) -> TakenSession:
        """Read, decide and commit, until a commit is carried out. Of competing brokers exactly one commits, each time.

        When this returns, an owner that did not give the session up can store nothing for it any more. After a
        cancellation the session may or may not belong to this broker. Before a session is created that does not exist,
        ``begin``, if it is given, is called once, and may refuse it by an error.

        Raises:
            ClientGoneError: The client may be connected elsewhere.
            SessionOfAnotherUserError: ``may_open`` returned false for the user of the session.
            StorageError: The store refuses the session.
        """
        attempts: dict[int, tuple[Opening, Transition]] = {}
        asked: set[int] = set()
        attempt = conflict_count = 0
        taken_from = ""
        while True:
            verified_count = self._verified_count()
            found = await read(self._store_retry, client_id, with_progress=not wanted.clean_start)
            record = found.record
            if record is not None and record.claim in attempts:
                # An earlier attempt was carried out, and only its answer, or the connection, was lost.
                await self.fence(client_id)
                taken = await self._finish(*attempts[record.claim], found.record_version)
                if taken is not None and self._verified_count() == verified_count:
                    return attrs.evolve(taken, taken_from=taken_from)
                continue
            if record is not None:
                if not transitions.is_over(record, self._clock.now_us()):
                    require_user(record, wanted.user, may_open)
                self._note_unfenced(client_id, record.unfenced)
            if record is None and begin is not None:
                await begin()
                begin = None
            is_elsewhere = record is not None and record.owner not in (transitions.NO_OWNER, self._broker_id)
            # If the client connects elsewhere after this, the commit below fails, because the record has changed.
            require_present(client_id, may_have_left, is_owned=is_elsewhere)
            if record is not None and is_elsewhere:
                taken_from = record.owner
            if record is not None and is_elsewhere and record.epoch not in asked:
                asked.add(record.epoch)
                if not await self._peer_channel.ask(
                    record.owner, client_id, record.epoch, timeout_s=self._yield_timeout_s
                ):
                    self._statistics.forced_count += 1
                    self._note_unfenced(client_id, (record.owner,))
                continue
            unfenced = tuple(sorted(self._unfenced.get(client_id, ())))
            restored_lsn = self._store_retry.restored_lsn
            opening = attrs.evolve(wanted, claim=secrets.randbits(63), unfenced=unfenced, restored_lsn=restored_lsn)
            transition = transitions.opened(
                found, opening, self._clock.now_us(), with_progress=conflict_count < _CONFLICTS_IN_ONE_STEP
            )
            attempts[opening.claim] = opening, transition
            try:
                committed = await self._commits.make(client_id, transition)
            except StorageError as error:
                conflict_count += isinstance(error, VersionConflictError)
                await self._store_retry.pause_after(error, attempt)
            else:
                self._statistics.taken_over_count += is_elsewhere
                await self.fence(client_id)
                if transition.progress is None or self._verified_count() != verified_count:
                    # In the latter case a new connection was checked before this session counted as open: read again.
                    continue
                record_version = committed.values[0].version
                progress_version = committed.values[1].version if opening.expiry_interval_s > 0 else 0
                return TakenSession(transition, record_version, progress_version, taken_from)
            attempt += 1

    def _note_unfenced(self, client_id: str, broker_ids: Iterable[str]) -> None:
        """Note brokers whose connections `fence` has to end, without this one, whose own were ended already."""
        others = {broker_id for broker_id in broker_ids if broker_id != self._broker_id}
        if others:
            self._unfenced.setdefault(client_id, set()).update(others)

    async def fence(self, client_id: str, unfenced: Iterable[str] = ()) -> None:
        """End the connections of owners from which a session was, or may have been, taken by force.

        Args:
            client_id: Client of the session.
            unfenced: Brokers that its record names.

        Raises:
            StorageError: The store refused to end a connection.
        """
        self._note_unfenced(client_id, unfenced)
        for owner in self._unfenced.pop(client_id, ()):
            self._fencing.add(owner)
        await self._fencing.settle()

    async def _finish(self, opening: Opening, transition: Transition, record_version: int) -> TakenSession | None:
        """Take the progress of a session whose record this broker has taken, if that was not done in the same step.

        An earlier owner that still writes notices soon that the record has another owner.

        Returns:
            None if another broker has taken the session meanwhile.
        """
        record = transition.record
        assert record is not None
        second: Transition | None = None
        attempt = 0
        while True:
            found = await read(self._store_retry, record.client_id)
            if found.record is None or found.record.claim != record.claim:
                return None
            if transition.progress is not None:
                return TakenSession(transition, record_version, found.progress_version)
            if second is not None and (found.progress is None or found.progress.claim == record.claim):
                # The second step was carried out, and only its answer was lost.
                return TakenSession(_joined(transition, second), record_version, found.progress_version)
            second = transitions.progress_taken(found, record, opening)
            try:
                committed = await self._commits.make(record.client_id, second)
            except StorageError as error:
                await self._store_retry.pause_after(error, attempt)
            else:
                progress_version = committed.values[0].version if committed.values else 0
                return TakenSession(_joined(transition, second), record_version, progress_version)
            attempt += 1


def _joined(first: Transition, second: Transition) -> Transition:
    """The transition of a session that was taken in two steps."""
    maybe_sent_lsn = second.maybe_sent_lsn if first.maybe_sent_lsn is None else first.maybe_sent_lsn
    return attrs.evolve(first, progress=second.progress, maybe_sent_lsn=maybe_sent_lsn)
