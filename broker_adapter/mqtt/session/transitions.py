"""What opening, losing and ending a session change in the store. Pure: the session as it was read in, changes out.

Every transition is made by one commit that is conditional on the record that it was decided from, so of competing ones
exactly one is carried out. What a will's publication and an ended membership change is added by the caller, to the
same commit.

A record has an owner while the client is connected. Without one it has a timer for its end (unless it never expires)
and one for its will (if that is due earlier), and names both, so that whoever takes the session removes them.
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

NOBODY: Final = ""
_SECOND_US: Final = 1_000_000


@attrs.frozen(slots=True)
class Found:
    """A session as it was read; version 0 of what is not there."""

    client_id: str
    record: SessionRecord | None = None
    record_version: int = 0
    progress: ProgressRecord | None = None
    progress_version: int = 0


@attrs.frozen(slots=True)
class Transition:
    """What a session becomes.

    Attributes:
        record: None when it has ended.
        progress: What is under way; of a session that is not durable it is in memory only. None: see `opened`.
        changes: In the store.
        will: Is published with it.
        left: Memberships that end with it.
        present: Of a session that is opened: it was there before.
    """

    record: SessionRecord | None
    progress: ProgressRecord | None
    changes: Changes
    will: StoredWill | None = None
    left: tuple[StoredMembership, ...] = ()
    present: bool = False


@attrs.frozen(slots=True)
class Opening:
    """What a client that connects asks for, and who asks for it.

    Attributes:
        claim: Random; the record that has it was written by this attempt.
        unfenced: Brokers that can still store what was published in the session before it was taken from them. The
            record names them until that is over, so that the next broker knows them if this one dies meanwhile.
        restored_lsn: What was written up to this lsn comes from a backup; 0 if there was no restore.
    """

    broker_id: str
    claim: int
    clean_start: bool
    expiry_interval_s: int
    will: StoredWill | None
    protocol: int
    unfenced: tuple[str, ...] = ()
    restored_lsn: int = 0


def merged(parts: Iterable[Changes]) -> Changes:
    """Changes made together; no key may occur in two of them."""
    parts = list(parts)
    return Changes(
        tuple(one for part in parts for one in part.appends),
        tuple(one for part in parts for one in part.puts),
        tuple(one for part in parts for one in part.deletes),
    )


def opened(found: Found, opening: Opening, now_us: int, *, with_progress: bool = True) -> Transition:
    """Make a session the asking broker's, or begin it anew.

    An old session goes on unless the client wants a clean start, its time is over, or it was bound to a connection.
    Its will is published if its connection ends only now and the will has no delay, if its delay is over, or if the
    session ends; otherwise the client is back in time.

    Args:
        found: The session.
        opening: What is asked for.
        now_us: When.
        with_progress: False leaves what is under way in a session that goes on to a second step (`progress_taken`): an
            owner that goes on writing it without a pause does not let it be read and changed in one.
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
    )
    progress = ProgressRecord(opening.claim)
    progress_version = None
    if goes_on:
        # What the owner before writes meanwhile must not be lost, so its next write and this one exclude each other.
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
        if old.owner not in (NOBODY, opening.broker_id):
            deletes.append(StateDelete(keys.owned(old.owner, found.client_id)))
        deletes += _timers_of(old)
    return Transition(
        record,
        None if is_second_step else progress,
        Changes(puts=tuple(puts), deletes=tuple(deletes)),
        will=_will_at_takeover(old, now_us, goes_on=goes_on) if old else None,
        left=old.memberships if old and not goes_on else (),
        present=goes_on,
    )


def _taken_over(progress: ProgressRecord, version: int, claim: int, restored_lsn: int) -> ProgressRecord:
    """What is under way, for the next owner.

    A client may hold packet identifiers that the session gave out in a lost history, and would drop messages that come
    with them as repetitions. Those that are far from the ones in the backup are the last that it can hold.
    """
    last_packet_id = progress.last_packet_id
    if 0 < version <= restored_lsn:
        last_packet_id = (last_packet_id + MAX_PACKET_ID // 2) % MAX_PACKET_ID
    return msgspec.structs.replace(progress, claim=claim, write_number=0, last_packet_id=last_packet_id)


def progress_taken(found: Found, record: SessionRecord, opening: Opening) -> Transition:
    """Take over what is under way in a session whose record has been taken before, by this opening."""
    progress = found.progress or ProgressRecord(0)
    progress = _taken_over(progress, found.progress_version, record.claim, opening.restored_lsn)
    if record.expiry_interval_s > 0:
        changes = Changes(puts=(_put_progress(progress, found.client_id, found.progress_version),))
    else:
        changes = Changes(deletes=(StateDelete(keys.progress(found.client_id), found.progress_version),))
    return Transition(record, progress, changes, present=True)


def will_go_on(record: SessionRecord, opening: Opening, now_us: int) -> bool:
    """Whether opening a session continues it; only then what is under way in it matters."""
    is_over = record.owner == NOBODY and 0 < record.expires_due_us <= now_us
    return not opening.clean_start and record.expiry_interval_s > 0 and not is_over


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
    """The connection has ended: the session waits for its client, or ends with it.

    Args:
        found: It has an owner.
        now_us: When.
        publish_will: Unless the client took leave without its will.
        expiry_interval_s: What the client changed the interval to as it left.
        progress: Where the owner has got to; None keeps what is stored.
        claim: Of whoever closes it in place of its owner, who is fenced by it.
        restored_lsn: What was written up to this lsn comes from a backup.
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
        owner=NOBODY,
        expiry_interval_s=expiry_s,
        disconnected_at_us=now_us,
        will=will_later,
        will_due_us=will_due_us,
        expires_due_us=expires_due_us,
    )
    if progress is None:
        progress = found.progress or ProgressRecord(record.claim)
    if claim is not None:
        progress = _taken_over(progress, found.progress_version, claim, restored_lsn)
    puts = [_put_record(record, found.record_version), _put_progress(progress, old.client_id, found.progress_version)]
    puts += [
        StatePut(keys.session_timer(due_us, kind, old.client_id), b"")
        for due_us, kind in ((will_due_us, WILL), (expires_due_us, EXPIRY))
        if due_us
    ]
    deletes = (StateDelete(keys.owned(old.owner, old.client_id)),)
    return Transition(record, progress, Changes(puts=tuple(puts), deletes=deletes), will=will_now)


def expired(found: Found) -> Transition:
    """The session's time is over. REQUIRES: it has no owner."""
    assert found.record is not None
    return _ended(found, found.record.will)


def will_published(found: Found) -> Transition:
    """The delay of the will is over. REQUIRES: the session has no owner, and a will."""
    old = found.record
    assert old is not None
    record = msgspec.structs.replace(old, will=None, will_due_us=0)
    timer = StateDelete(keys.session_timer(old.will_due_us, WILL, old.client_id))
    changes = Changes(puts=(_put_record(record, found.record_version),), deletes=(timer,))
    return Transition(record, found.progress, changes, will=old.will)


def is_due(record: SessionRecord | None, kind: str, due_us: int) -> bool:
    """Whether a timer of a session is (still) the one that its record names."""
    if record is None or record.owner != NOBODY:
        return False
    return due_us == (record.will_due_us if kind == WILL else record.expires_due_us)


def _ended(found: Found, will: StoredWill | None) -> Transition:
    old = found.record
    assert old is not None
    deletes = [StateDelete(keys.session(old.client_id), found.record_version), *_timers_of(old)]
    # Needs no version: only who has the record may write it, and nobody has it any more.
    deletes.append(StateDelete(keys.progress(old.client_id)))
    if old.owner != NOBODY:
        deletes.append(StateDelete(keys.owned(old.owner, old.client_id)))
    return Transition(None, None, Changes(deletes=tuple(deletes)), will=will, left=old.memberships)


def _will_at_takeover(old: SessionRecord, now_us: int, *, goes_on: bool) -> StoredWill | None:
    if old.will is None or not goes_on:
        return old.will
    if old.owner != NOBODY:
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
