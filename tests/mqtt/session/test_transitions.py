"""What a session becomes, decided from what was read and nothing else: every case in a table."""

from __future__ import annotations

import itertools

import attrs
import msgspec
import pytest

from broker_adapter.changes import StateDelete, StatePut
from broker_adapter.mqtt.session import keys, transitions
from broker_adapter.mqtt.session.session import NEVER_EXPIRES_S
from broker_adapter.mqtt.session.stored import (
    ProgressRecord,
    SessionRecord,
    StoredMembership,
    StoredMessage,
    StoredWill,
)
from broker_adapter.mqtt.session.transitions import (
    Found,
    Opening,
    Transition,
    closed,
    expired,
    opened,
    progress_taken,
    will_published,
)

NOW_US = 1_000_000_000
S = 1_000_000
SHARE = StoredMembership("g", "a", "store-group", 1)


def a_will(delay_s: int) -> StoredWill:
    return StoredWill(StoredMessage("w", b"", (), 0, 0), delay_s, None)


def found(**fields: object) -> Found:
    values: dict[str, object] = {
        "client_id": "c",
        "epoch": 5,
        "claim": 77,
        "owner": "old",
        "protocol": 5,
        "expiry_interval_s": 100,
        "memberships": (SHARE,),
        **fields,
    }
    return Found("c", SessionRecord(**values), 40, ProgressRecord(77, 9, position_lsn=30), 41)  # type: ignore[arg-type]


def opening(*, clean_start: bool = False, expiry_s: int = 100) -> Opening:
    return Opening("new", 99, clean_start, expiry_s, None, 5)


def put_keys(transition: Transition) -> list[bytes]:
    return [put.key for put in transition.changes.puts]


def delete_keys(transition: Transition) -> list[bytes]:
    return [delete.key for delete in transition.changes.deletes]


ALL_OPENINGS = [
    (clean_start, new_expiry_s, old_expiry_s, owner, due_s, delay_s)
    for clean_start, new_expiry_s, old_expiry_s, owner, due_s, delay_s in itertools.product(
        (False, True), (0, 100), (0, 100, NEVER_EXPIRES_S), ("old", "new", ""), (-1, 0, 1), (None, 0, 30)
    )
    if not (owner == "" and old_expiry_s == 0)  # such a session has ended
]


@pytest.mark.parametrize(("clean_start", "new_expiry_s", "old_expiry_s", "owner", "due_s", "delay_s"), ALL_OPENINGS)
def test_opening_in_every_case(
    clean_start: bool, new_expiry_s: int, old_expiry_s: int, owner: str, due_s: int, delay_s: int | None
) -> None:
    waits = owner == ""
    will = None if delay_s is None or (waits and delay_s == 0) else a_will(delay_s)
    expires_due_us = NOW_US + due_s * S if waits and old_expiry_s < NEVER_EXPIRES_S else 0
    will_due_us = NOW_US - S if waits and will else 0
    before = found(
        owner=owner,
        expiry_interval_s=old_expiry_s,
        will=will,
        expires_due_us=expires_due_us,
        will_due_us=will_due_us,
    )
    transition = opened(before, opening(clean_start=clean_start, expiry_s=new_expiry_s), NOW_US)
    goes_on = not clean_start and old_expiry_s > 0 and not (expires_due_us and due_s <= 0)

    assert transition.present is goes_on
    assert transition.record is not None
    assert (transition.record.epoch, transition.record.claim, transition.record.owner) == (6, 99, "new")
    assert (transition.record.expires_due_us, transition.record.will_due_us) == (0, 0)
    assert transition.left == (() if goes_on else (SHARE,))
    assert transition.record.memberships == ((SHARE,) if goes_on else ())
    assert transition.progress is not None
    assert transition.progress.position_lsn == (30 if goes_on else 0)
    assert (transition.progress.claim, transition.progress.write_number) == (99, 0)
    # Overdue, or without delay and disconnected only now, or the session ends.
    assert (transition.will is not None) == (will is not None and (not goes_on or waits or delay_s == 0))

    puts = {put.key: put for put in transition.changes.puts}
    deletes = {delete.key: delete for delete in transition.changes.deletes}
    assert puts[keys.session("c")].expected_version == 40
    assert not puts.keys() & deletes.keys()
    progress: StatePut | StateDelete = (puts if new_expiry_s else deletes)[keys.progress("c")]
    assert progress.expected_version == (41 if goes_on else None)
    assert (keys.owned("new", "c") in puts) == (owner != "new")
    assert (keys.owned("old", "c") in deletes) == (owner == "old")
    timers = {key for key in deletes if key.startswith(keys.TIMERS)}
    assert timers == {
        keys.session_timer(due_us, kind, "c")
        for due_us, kind in ((will_due_us, "will"), (expires_due_us, "expiry"))
        if due_us
    }


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_progress_that_was_not_there_when_it_was_read_is_not_written_over(expiry_s: int) -> None:
    before = Found("c", found().record, 40)
    transition = opened(before, opening(expiry_s=expiry_s), NOW_US)
    changes = {one.key: one for one in (*transition.changes.puts, *transition.changes.deletes)}
    assert changes[keys.progress("c")].expected_version == 0


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("expiry_s", [0, 100])
def test_a_session_that_continues_can_be_taken_in_two_steps(clean_start: bool, expiry_s: int) -> None:
    wanted = opening(clean_start=clean_start, expiry_s=expiry_s)
    first = opened(found(), wanted, NOW_US, with_progress=False)
    assert first.record is not None
    touched = {one.key for one in (*first.changes.puts, *first.changes.deletes)}
    assert (keys.progress("c") in touched) == clean_start, "what does not go on may be written over at once"
    assert (first.progress is None) == (not clean_start)
    second = progress_taken(
        Found("c", first.record, 50, ProgressRecord(77, 12, position_lsn=35), 48), first.record, wanted
    )
    (change,) = (*second.changes.puts, *second.changes.deletes)
    assert (change.key, change.expected_version) == (keys.progress("c"), 48)
    assert isinstance(change, StatePut) == (expiry_s > 0)
    assert second.progress == ProgressRecord(99, 0, position_lsn=35)


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_a_new_session_begins_with_what_its_kind_needs(expiry_s: int) -> None:
    transition = opened(Found("c"), opening(expiry_s=expiry_s), NOW_US)
    assert not transition.present
    assert transition.record is not None
    assert transition.record.epoch == 1
    assert put_keys(transition) == [
        keys.session("c"),
        *([keys.progress("c")] if expiry_s else []),
        keys.owned("new", "c"),
    ]
    assert transition.changes.puts[0].expected_version == 0
    assert transition.changes.deletes == ()


@pytest.mark.parametrize(
    ("expiry_s", "delay_s", "will_now", "will_due_s", "expires_due_s"),
    [
        (100, None, False, 0, 100),
        (100, 0, True, 0, 100),
        (100, 30, False, 30, 100),
        (100, 100, False, 0, 100),  # the end of the session publishes it
        (100, 500, False, 0, 100),
        (NEVER_EXPIRES_S, None, False, 0, 0),
        (NEVER_EXPIRES_S, 500, False, 500, 0),
    ],
)
def test_closing_sets_the_timers_that_are_needed_and_names_them(
    expiry_s: int, delay_s: int | None, will_now: bool, will_due_s: int, expires_due_s: int
) -> None:
    before = found(expiry_interval_s=expiry_s, will=None if delay_s is None else a_will(delay_s))
    transition = closed(before, NOW_US, publish_will=True)
    will_due_us = NOW_US + will_due_s * S if will_due_s else 0
    expires_due_us = NOW_US + expires_due_s * S if expires_due_s else 0
    record = transition.record
    assert record is not None
    assert (record.owner, record.disconnected_at_us) == ("", NOW_US)
    assert (record.will_due_us, record.expires_due_us) == (will_due_us, expires_due_us)
    assert (transition.will is not None) == will_now
    assert (record.will is not None) == (delay_s is not None and not will_now)
    assert put_keys(transition) == [
        keys.session("c"),
        keys.progress("c"),
        *([keys.session_timer(will_due_us, "will", "c")] if will_due_us else []),
        *([keys.session_timer(expires_due_us, "expiry", "c")] if expires_due_us else []),
    ]
    assert [put.expected_version for put in transition.changes.puts[:2]] == [40, 41]
    assert delete_keys(transition) == [keys.owned("old", "c")]


@pytest.mark.parametrize("override_s", [None, 0, 7])
@pytest.mark.parametrize("publish_will", [False, True])
def test_leaving_in_good_order_takes_the_will_along_and_may_change_the_expiry(
    override_s: int | None, publish_will: bool
) -> None:
    before = found(will=a_will(500))
    transition = closed(before, NOW_US, publish_will=publish_will, expiry_interval_s=override_s)
    if override_s == 0:
        assert transition.record is None
        assert (transition.will is not None) == publish_will
        assert transition.left == (SHARE,)
        assert set(delete_keys(transition)) == {keys.session("c"), keys.progress("c"), keys.owned("old", "c")}
        return
    assert transition.record is not None
    assert (transition.record.will is not None) == publish_will
    assert transition.record.expires_due_us == NOW_US + (override_s or 100) * S
    assert transition.left == ()


def test_who_closes_in_place_of_the_owner_fences_it() -> None:
    transition = closed(found(), NOW_US, publish_will=True, claim=123)
    assert transition.record is not None
    assert transition.progress is not None
    assert (transition.record.epoch, transition.record.claim) == (6, 123)
    assert (transition.progress.claim, transition.progress.position_lsn) == (123, 30)


def test_an_owner_that_closes_stores_where_it_has_got_to() -> None:
    mine = ProgressRecord(77, 10, position_lsn=50)
    transition = closed(found(), NOW_US, publish_will=True, progress=mine)
    assert transition.record is not None
    assert (transition.record.epoch, transition.record.claim) == (5, 77)
    assert transition.progress is mine


@pytest.mark.parametrize("write_number", [9, 0, -9])
@pytest.mark.parametrize("owner", ["old", "new", ""])
@pytest.mark.parametrize("restored_lsn", [0, 40, 41])
@pytest.mark.parametrize("clean_start", [False, True])
def test_what_may_have_been_sent_without_a_trace_in_every_case(
    write_number: int, owner: str, restored_lsn: int, clean_start: bool
) -> None:
    before = found(owner=owner, expires_due_us=0)
    before = attrs.evolve(before, progress=ProgressRecord(77, write_number))
    wanted = attrs.evolve(opening(clean_start=clean_start), restored_lsn=restored_lsn)
    expected: int | None
    if clean_start:
        expected = 0
    elif write_number >= 0 and owner:
        expected = None
    elif restored_lsn == 41:
        expected = 42
    else:
        expected = 0 if write_number < 0 else 41
    for with_progress in (True, False):
        assert opened(before, wanted, NOW_US, with_progress=with_progress).maybe_sent_lsn == expected
    if owner and not clean_start:
        assert before.record is not None
        assert progress_taken(before, before.record, wanted).maybe_sent_lsn == expected


@pytest.mark.parametrize(("write_number", "expected"), [(9, 0), (0, 0), (-9, -9)])
def test_who_closes_in_place_of_the_owner_leaves_the_sign_of_its_last_write(write_number: int, expected: int) -> None:
    before = attrs.evolve(found(), progress=ProgressRecord(77, write_number))
    transition = closed(before, NOW_US, publish_will=True, claim=123)
    assert transition.progress == ProgressRecord(123, expected)


def test_the_end_of_a_session_leaves_nothing_and_publishes_its_will() -> None:
    before = found(owner="", will=a_will(500), expires_due_us=NOW_US, will_due_us=0)
    transition = expired(before)
    assert transition.record is None
    assert transition.will is not None
    assert transition.left == (SHARE,)
    assert transition.changes.puts == ()
    assert transition.changes.deletes[0] == StateDelete(keys.session("c"), 40)
    assert set(delete_keys(transition)) == {
        keys.session("c"),
        keys.session_timer(NOW_US, "expiry", "c"),
        keys.progress("c"),
    }


def test_a_will_that_is_published_is_gone_from_the_record_and_its_timer_with_it() -> None:
    before = found(owner="", will=a_will(30), will_due_us=NOW_US, expires_due_us=NOW_US + S)
    transition = will_published(before)
    assert transition.record is not None
    assert (transition.record.will, transition.record.will_due_us) == (None, 0)
    assert transition.record.expires_due_us == NOW_US + S
    assert transition.will is not None
    assert put_keys(transition) == [keys.session("c")]
    assert delete_keys(transition) == [keys.session_timer(NOW_US, "will", "c")]


@pytest.mark.parametrize("kind", ["will", "expiry"])
def test_a_timer_is_due_only_if_the_record_still_names_it(kind: str) -> None:
    record = found(owner="", will=a_will(1), will_due_us=10, expires_due_us=20).record
    assert record is not None
    due_us = 10 if kind == "will" else 20
    assert transitions.is_due(record, kind, due_us)
    assert not transitions.is_due(record, kind, due_us + 1)
    assert not transitions.is_due(msgspec.structs.replace(record, owner="somebody"), kind, due_us)
    assert not transitions.is_due(None, kind, due_us)


@pytest.mark.parametrize(("version", "expected"), [(10, 100 + 32_767), (11, 100)])
def test_packet_ids_go_on_far_from_those_in_a_backup(version: int, expected: int) -> None:
    """The client still held the next ones, from the time that was lost, and dropped new messages as repetitions."""
    record = SessionRecord("c", 1, 5, "", 5, 3600)
    found = Found("c", record, version, ProgressRecord(5, last_packet_id=100), version)
    opening = Opening("b", 6, False, 3600, None, 5, restored_lsn=10)
    transition = opened(found, opening, NOW_US)
    assert transition.progress is not None
    assert transition.progress.last_packet_id == expected
    second = progress_taken(found, record, opening)
    assert closed(
        Found("c", msgspec.structs.replace(record, owner="b"), version, found.progress, version),
        NOW_US,
        publish_will=False,
        claim=7,
        restored_lsn=10,
    ).progress == msgspec.structs.replace(transition.progress, claim=7)
    assert second.progress is not None
    assert second.progress.last_packet_id == expected
