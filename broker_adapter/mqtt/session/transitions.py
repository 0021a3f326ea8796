"""What opening, closing and ending a session change in the store. Pure: from the session as read to changes.

Every transition is one commit that is conditional on the record from which it was decided, so of competing transitions
exactly one is carried out. The caller adds to the same commit what publishing a will and ending memberships change.

A record has an owner while the client is connected. Without an owner it has a timer for its end (unless it never
expires) and one for its will (if that is due earlier), and names both, so that the next owner can delete them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import msgspec

from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.outbound_window import MAX_PACKET_ID
from broker_adapter.mqtt.session.session import NEVER_EXPIRES_S
from broker_adapter.mqtt.session.stored import ProgressRecord, SessionRecord, StoredMembership, StoredWill
from broker_adapter.state_forms import encode

WILL: Final = "will"
EXPIRY: Final = "expiry"

NO_OWNER: Final = ""
_SECOND_US: Final = 1_000_000


@attrs.frozen(slots=True)
class Found:
    """A session as it was read; version 0 means that the value does not exist."""

    client_id: str
    record: SessionRecord | None = None
    record_version: int = 0
    progress: ProgressRecord | None = None
    progress_version: int = 0


@attrs.frozen(slots=True)
class Transition:
    """The change of a session's state.

    Attributes:
        record: The new record; None when the session has ended.
        progress: The new progress; for a session that is not durable it is in memory only. None: see `opened`.
        changes: Changes in the store.
        will: Will to publish in the same commit.
        will_user: User of the session that the will is of; None if it is not known.
        will_host: Address from which the client of that session connected last; None if it is not known.
        left: Memberships that end with it.
        present: For a session that is opened: it existed before.
        maybe_sent_lsn: For a session that is opened: records with a lower lsn may have been sent to the client without
            a trace in the progress; 0 if there are none. None: all that precede this transition in the store.
    """

    record: SessionRecord | None
    progress: ProgressRecord | None
    changes: Changes
    will: StoredWill | None = None
    will_user: str | None = None
    will_host: str | None = None
    left: tuple[StoredMembership, ...] = ()
    present: bool = False
    maybe_sent_lsn: int | None = 0


@attrs.frozen(slots=True)
class Opening:
    """A request to open a session.

    Attributes:
        claim: Random; the record that has it was written by this attempt.
        unfenced: Brokers that may still store publishes of the session from before it was taken from them. The record
            names them until that is over, so that the next broker knows them if this one dies meanwhile.
        restored_lsn: Everything up to this lsn comes from a backup; 0 if there was no restore.
        user: Name of the user whose client opens it; empty for an anonymous client.
        host: Address of that client.
    """

    broker_id: str
    claim: int
    clean_start: bool
    expiry_interval_s: int
    will: StoredWill | None
    protocol: int
    unfenced: tuple[str, ...] = ()
    restored_lsn: int = 0
    user: str = ""
    host: str = ""


def merged(parts: Iterable[Changes]) -> Changes:
    """Changes joined into one commit; no key may occur twice."""
    parts = list(parts)
    return Changes(
        tuple(one for part in parts for one in part.appends),
        tuple(one for part in parts for one in part.puts),
        tuple(one for part in parts for one in part.deletes),
    )


def opened(found: Found, opening: Opening, now_us: int, *, with_progress: bool = True) -> Transition:
    """Make a broker the owner of a session, or create a new session.

    An existing session continues unless the client wants a clean start, it has expired, or it was bound to a
    connection. Its will is published if its connection ends only now and the will has no delay, if its delay is over,
    or if the session ends; otherwise it is discarded, because the client is back in time.

    Args:
        found: The session.
        opening: The request.
        now_us: Present time, in microseconds since 1970.
        with_progress: False takes the record only, and leaves the progress of a session that continues to a second step
            (`progress_taken`): an owner that writes without a pause would conflict with taking both at once.
    """
    old = found.record
    goes_on = old is not None and will_go_on(old, opening, now_us)
    record = SessionRecord(
        client_id=found.client_id,
        epoch=old.epoch + 1 if old else 1,
        claim=opening.claim,
        owner=opening.broker_id,
        protocol=opening.protocol,
        expiry_interval_s=opening.expiry_interval_s,
        will=opening.will,
        subscriptions=old.subscriptions if old and goes_on else (),
        memberships=old.memberships if old and goes_on else (),
        unfenced=opening.unfenced,
        user=opening.user,
        host=opening.host,
    )
    progress = ProgressRecord(opening.claim)
    progress_version = None
    if goes_on:
        # What the earlier owner writes meanwhile must not be lost, so its next write and this one exclude each other.
        progress_version = found.progress_version
        if found.progress is not None:
            progress = _taken_over(found.progress, found.progress_version, opening.claim, opening.restored_lsn)
    puts = [_put_record(record, found.record_version)]
    deletes: list[StateDelete] = []
    is_second_step = goes_on and not with_progress
    if is_second_step:
        pass
    elif opening.expiry_interval_s > 0:
        puts.append(_put_progress(progress, found.client_id, progress_version))
    elif old is not None:
        deletes.append(StateDelete(keys.progress(found.client_id), progress_version))
    if old is None or old.owner != opening.broker_id:
        puts.append(StatePut(keys.owned(opening.broker_id, found.client_id), found.client_id.encode()))
    if old is not None:
        if old.owner not in (NO_OWNER, opening.broker_id):
            deletes.append(StateDelete(keys.owned(old.owner, found.client_id)))
        deletes += _timers_of(old)
    return Transition(
        record,
        None if is_second_step else progress,
        Changes(puts=tuple(puts), deletes=tuple(deletes)),
        will=_will_at_takeover(old, now_us, goes_on=goes_on) if old else None,
        will_user=old.user if old else None,
        will_host=old.host if old else None,
        left=old.memberships if old and not goes_on else (),
        present=goes_on,
        maybe_sent_lsn=_maybe_sent_lsn(found, opening.restored_lsn) if goes_on else 0,
    )


def _maybe_sent_lsn(found: Found, restored_lsn: int) -> int | None:
    """`Transition.maybe_sent_lsn` of a session that continues.

    An owner stores the progress at intervals, and a last time when it gives the session up. Without that last write,
    what it has sent since the write before is not known. A session without an owner got nothing after its progress was
    written. A progress from a backup may be followed by another history, in which all records of the backup were sent.
    """
    assert found.record is not None
    progress = found.progress
    is_complete = progress is not None and progress.write_number < 0
    if not is_complete and (progress is None or found.record.owner != NO_OWNER):
        return None
    if found.progress_version <= restored_lsn:
        return restored_lsn + 1
    return 0 if is_complete else found.progress_version


def _taken_over(progress: ProgressRecord, version: int, claim: int, restored_lsn: int) -> ProgressRecord:
    """The progress for the next owner.

    After a restore a client may hold packet identifiers that were assigned after the backup, and would drop messages
    with these identifiers as duplicates. So identifiers continue far from those in the backup.
    """
    last_packet_id = progress.last_packet_id
    if 0 < version <= restored_lsn:
        last_packet_id = (last_packet_id + MAX_PACKET_ID // 2) % MAX_PACKET_ID
    return msgspec.structs.replace(progress, claim=claim, write_number=0, last_packet_id=last_packet_id)


def progress_taken(found: Found, record: SessionRecord, opening: Opening) -> Transition:
    """Take the progress of a session whose record was taken before by the same opening.

    The `Transition.maybe_sent_lsn` is for a session that had an owner before.
    """
    progress = found.progress or ProgressRecord(0)
    progress = _taken_over(progress, found.progress_version, record.claim, opening.restored_lsn)
    if record.expiry_interval_s > 0:
        changes = Changes(puts=(_put_progress(progress, found.client_id, found.progress_version),))
    else:
        changes = Changes(deletes=(StateDelete(keys.progress(found.client_id), found.progress_version),))
    maybe_sent_lsn = _maybe_sent_lsn(found, opening.restored_lsn)
    return Transition(record, progress, changes, present=True, maybe_sent_lsn=maybe_sent_lsn)


def will_go_on(record: SessionRecord, opening: Opening, now_us: int) -> bool:
    """Whether opening a session continues it; only then its progress matters."""
    return not opening.clean_start and record.expiry_interval_s > 0 and not is_over(record, now_us)


def is_over(record: SessionRecord, now_us: int) -> bool:
    """Whether a session has expired, and was not ended yet."""
    return record.owner == NO_OWNER and 0 < record.expires_due_us <= now_us


def closed(
    found: Found,
    now_us: int,
    *,
    publish_will: bool,
    expiry_interval_s: int | None = None,
    progress: ProgressRecord | None = None,
    claim: int | None = None,
    restored_lsn: int = 0,
) -> Transition:
    """Close a session after its connection has ended: it waits for its client, or ends.

    Args:
        found: It has an owner.
        now_us: Present time, in microseconds since 1970.
        publish_will: False only if the client sent a DISCONNECT without its will.
        expiry_interval_s: New session expiry interval, if DISCONNECT changed it.
        progress: Newest progress of the owner; None keeps the stored one.
        claim: Claim of the broker that closes it in place of its owner, which it fences.
        restored_lsn: Everything up to this lsn comes from a backup.
    """
    old = found.record
    assert old is not None
    expiry_s = old.expiry_interval_s if expiry_interval_s is None else expiry_interval_s
    will = old.will if publish_will else None
    if expiry_s == 0:
        return _ended(found, will)
    will_now = will if will is not None and will.delay_s == 0 else None
    will_later = will if will_now is None else None
    expires_due_us = 0 if expiry_s >= NEVER_EXPIRES_S else now_us + expiry_s * _SECOND_US
    will_due_us = now_us + will_later.delay_s * _SECOND_US if will_later is not None else 0
    if expires_due_us and will_due_us >= expires_due_us:
        will_due_us = 0  # the end of the session publishes it
    record = msgspec.structs.replace(
        old,
        epoch=old.epoch if claim is None else old.epoch + 1,
        claim=old.claim if claim is None else claim,
        owner=NO_OWNER,
        expiry_interval_s=expiry_s,
        disconnected_at_us=now_us,
        will=will_later,
        will_due_us=will_due_us,
        expires_due_us=expires_due_us,
    )
    if progress is None:
        progress = found.progress or ProgressRecord(record.claim)
    if claim is not None:
        # An owner that has handed the session over stored all that was sent, and nothing was sent since.
        write_number = min(progress.write_number, 0)
        progress = _taken_over(progress, found.progress_version, claim, restored_lsn)
        progress = msgspec.structs.replace(progress, write_number=write_number)
    puts = [_put_record(record, found.record_version), _put_progress(progress, old.client_id, found.progress_version)]
    puts += [
        StatePut(keys.session_timer(due_us, kind, old.client_id), b"")
        for due_us, kind in ((will_due_us, WILL), (expires_due_us, EXPIRY))
        if due_us
    ]
    deletes = (StateDelete(keys.owned(old.owner, old.client_id)),)
    return Transition(
        record,
        progress,
        Changes(puts=tuple(puts), deletes=deletes),
        will=will_now,
        will_user=old.user,
        will_host=old.host,
    )


def expired(found: Found) -> Transition:
    """End a session that has expired. REQUIRES: it has no owner."""
    assert found.record is not None
    return _ended(found, found.record.will)


def will_published(found: Found) -> Transition:
    """Publish a will whose delay is over. REQUIRES: the session has no owner, and has a will."""
    old = found.record
    assert old is not None
    record = msgspec.structs.replace(old, will=None, will_due_us=0)
    timer = StateDelete(keys.session_timer(old.will_due_us, WILL, old.client_id))
    changes = Changes(puts=(_put_record(record, found.record_version),), deletes=(timer,))
    return Transition(record, found.progress, changes, will=old.will, will_user=old.user, will_host=old.host)


def is_due(record: SessionRecord | None, kind: str, due_us: int) -> bool:
    """Whether a timer of a session is the one that its record names."""
    if record is None or record.owner != NO_OWNER:
        return False
    return due_us == (record.will_due_us if kind == WILL else record.expires_due_us)


def _ended(found: Found, will: StoredWill | None) -> Transition:
    old = found.record
    assert old is not None
    deletes = [StateDelete(keys.session(old.client_id), found.record_version), *_timers_of(old)]
    # Needs no version: only the holder of the record may write it, and the record is deleted.
    deletes.append(StateDelete(keys.progress(old.client_id)))
    if old.owner != NO_OWNER:
        deletes.append(StateDelete(keys.owned(old.owner, old.client_id)))
    changes = Changes(deletes=tuple(deletes))
    return Transition(None, None, changes, will=will, will_user=old.user, will_host=old.host, left=old.memberships)


def _will_at_takeover(old: SessionRecord, now_us: int, *, goes_on: bool) -> StoredWill | None:
    if old.will is None or not goes_on:
        return old.will
    if old.owner != NO_OWNER:
        return old.will if old.will.delay_s == 0 else None
    return old.will if 0 < old.will_due_us <= now_us else None


def _timers_of(record: SessionRecord) -> list[StateDelete]:
    return [
        StateDelete(keys.session_timer(due_us, kind, record.client_id))
        for due_us, kind in ((record.will_due_us, WILL), (record.expires_due_us, EXPIRY))
        if due_us
    ]


def _put_record(record: SessionRecord, expected_version: int) -> StatePut:
    return StatePut(keys.session(record.client_id), encode(record), expected_version)


def _put_progress(progress: ProgressRecord, client_id: str, expected_version: int | None) -> StatePut:
    return StatePut(keys.progress(client_id), encode(progress), expected_version)
