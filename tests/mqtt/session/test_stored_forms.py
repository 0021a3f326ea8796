"""What brokers have written into the state store is read by later ones; the golden files never change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.claims import StoredClaim
from broker_adapter.mqtt.session.progress import inbound_of
from broker_adapter.mqtt.session.stored import (
    CleanupRecord,
    Lease,
    ProgressRecord,
    SessionRecord,
    ShareRecord,
    StoredInFlight,
    StoredMembership,
    StoredMessage,
    StoredRetainedScan,
    StoredSubscription,
    message_from,
    stored_message,
    stored_will,
    will_message,
)
from broker_adapter.mqtt.session.stored_use import MessageUser, SessionUser
from broker_adapter.mqtt_codec.packets import Will
from broker_adapter.mqtt_codec.properties import Properties
from broker_adapter.state_forms import decode, encode
from shards.errors import CorruptionError, FormatVersionError

GOLDEN = Path(__file__).parents[2] / "golden" / "v1" / "mqtt_state"
LATER_GOLDEN = Path(__file__).parents[2] / "golden" / "v2" / "mqtt_state"
NEWEST_GOLDEN = Path(__file__).parents[2] / "golden" / "v3" / "mqtt_state"
OWNED_GOLDEN = Path(__file__).parents[2] / "golden" / "v4" / "mqtt_state"
PUBLISHED_GOLDEN = Path(__file__).parents[2] / "golden" / "v5" / "mqtt_state"
PLACED_GOLDEN = Path(__file__).parents[2] / "golden" / "v6" / "mqtt_state"

PROPERTIES = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\x00\x01",
    user_properties=(("name", "value"), ("name", "other")),
)
MESSAGE = Message("a/b", b"\x00payload", 2, True, "publisher", PROPERTIES, 2_000_000, 1_000_000, user="anna")
WILL = Will(
    "a/will",
    b"gone",
    1,
    True,
    Properties(will_delay_interval=30, message_expiry_interval=60, content_type="text/plain"),
)

SAMPLES: dict[str, msgspec.Struct] = {
    "session": SessionRecord(
        client_id="client/é",
        epoch=7,
        claim=2**62 + 1,
        owner="",
        protocol=5,
        expiry_interval_s=3600,
        disconnected_at_us=1_700_000_000_000_000,
        will=stored_will(WILL, "client/é", "anna"),
        will_due_us=1_700_000_030_000_000,
        expires_due_us=1_700_003_600_000_000,
        subscriptions=(
            StoredSubscription("a/+", 2, True, True, 1, 268_435_455, 99),
            StoredSubscription("$share/g/b/#", 1, False, False, 0, 0, 100),
        ),
        memberships=(StoredMembership("g", "b/#", "mqtt/0123456789abcdef/g", 98),),
        user="anna",
        host="192.0.2.7",
    ),
    "session_owned": SessionRecord("c", 1, 5, "broker-1", 4, 0xFFFF_FFFF, user="", host="2001:db8::7"),
    "session_taken": SessionRecord(
        "c", 2, 6, "broker-2", 5, 60, unfenced=("broker-0", "broker-1"), user="bob", host="192.0.2.8"
    ),
    "progress": ProgressRecord(
        claim=2**62 + 1,
        write_number=12,
        position_lsn=1000,
        last_packet_id=65_535,
        shards=("a/b", "$mqtt/retained/a/c"),
        publishes=(
            StoredInFlight(3, 2, 0, 17, 990, 0, False, ()),
            StoredInFlight(4, 1, 1, -1, 500, 1, True, (1, 300)),
        ),
        releases=(StoredInFlight(2, 2, 0, 16, 989, 2, False, (7,)),),
        done=((0, 18, 20, 1002),),
        seen=((0, 20, 21, 1003),),
        inbound=(1, 65_535),
        inbound_digests=(0, 2**32 - 1),
    ),
    "progress_owing": ProgressRecord(
        claim=5,
        position_lsn=1000,
        retained=(
            StoredRetainedScan("a/#", 990, 2, 300, b"mqtt/retained/a/b"),
            StoredRetainedScan("b", 995, 1, 0, b""),
        ),
    ),
    "claim": StoredClaim("mqtt/0123456789abcdef/g", "a/b", 17, "client/é"),
    "lease": Lease("0123456789abcdef", 42, "broker-2"),
    "lease_replacing": Lease("0123456789abcdef@client-2", 1, "", ("client-0", "client-1")),
    "message": stored_message(MESSAGE),
    "message_of_broker": stored_message(Message("a", b"", 0)),
    "share": ShareRecord("g", "b/#", "mqtt/0123456789abcdef/g", 98, 3),
    "cleanup": CleanupRecord("mqtt/0123456789abcdef/g", ("b/#", "folded/+")),
}


LATER = {
    "claim",
    "lease",
    "lease_replacing",
}
"""Written in a later form, or not known to the first version."""

NEWEST = {"progress", "progress_owing"}
"""Written in another form since."""

PLACED = {"session", "session_owned", "session_taken"}
"""Written with the user that they belong to, and with the address of their client, since."""

PUBLISHED = {"message", "message_of_broker"}
"""Written with the user who published the message since."""


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_are_what_is_written_and_read_today(name: str) -> None:
    directory = (
        PLACED_GOLDEN
        if name in PLACED
        else PUBLISHED_GOLDEN
        if name in PUBLISHED
        else NEWEST_GOLDEN
        if name in NEWEST
        else LATER_GOLDEN
        if name in LATER
        else GOLDEN
    )
    golden = (directory / f"{name}.bin").read_bytes()
    assert encode(SAMPLES[name]) == golden
    assert decode(type(SAMPLES[name]), b"key", golden) == SAMPLES[name]


@pytest.mark.parametrize("name", ["session_owned", "session_taken"])
def test_sessions_of_earlier_versions_belong_to_no_user_yet(name: str) -> None:
    found = decode(SessionRecord, b"key", (LATER_GOLDEN / f"{name}.bin").read_bytes())
    assert found == msgspec.structs.replace(SAMPLES[name], user=None, host=None)


@pytest.mark.parametrize(
    ("directory", "name"),
    [(OWNED_GOLDEN, "session_owned"), (OWNED_GOLDEN, "session_taken"), (PUBLISHED_GOLDEN, "session")],
)
def test_sessions_of_earlier_versions_have_no_address(directory: Path, name: str) -> None:
    found = decode(SessionRecord, b"key", (directory / f"{name}.bin").read_bytes())
    assert found == msgspec.structs.replace(SAMPLES[name], host=None)


def without_publisher(sample: msgspec.Struct) -> SessionRecord:
    """A session whose will does not say which user left it, and that has no address."""
    assert isinstance(sample, SessionRecord)
    assert sample.will is not None
    message = msgspec.structs.replace(sample.will.message, user=None)
    return msgspec.structs.replace(sample, will=msgspec.structs.replace(sample.will, message=message), host=None)


def test_messages_and_wills_of_earlier_versions_are_of_no_user() -> None:
    found = decode(StoredMessage, b"key", (GOLDEN / "message.bin").read_bytes())
    assert found == msgspec.structs.replace(SAMPLES["message"], user=None)
    session = decode(SessionRecord, b"key", (OWNED_GOLDEN / "session.bin").read_bytes())
    assert session == without_publisher(SAMPLES["session"])
    session = decode(SessionRecord, b"key", (LATER_GOLDEN / "session.bin").read_bytes())
    assert session == msgspec.structs.replace(without_publisher(SAMPLES["session"]), user=None)


def test_only_the_user_is_read_where_users_are_counted() -> None:
    for directory in (GOLDEN, LATER_GOLDEN, OWNED_GOLDEN, PUBLISHED_GOLDEN, PLACED_GOLDEN):
        if (found := directory / "session.bin").exists():
            session = found.read_bytes()
            assert decode(SessionUser, b"key", session).user == decode(SessionRecord, b"key", session).user
        if (found := directory / "message.bin").exists():
            message = decode(StoredMessage, b"key", found.read_bytes())
            counted = decode(MessageUser, b"key", found.read_bytes())
            assert (counted.user, counted.payload) == (message.user, message.payload)


@pytest.mark.parametrize(
    ("directory", "name"),
    [(GOLDEN, "progress"), (LATER_GOLDEN, "progress"), (LATER_GOLDEN, "progress_owing")],
    ids=["first", "later", "later, owing"],
)
def test_progress_of_earlier_versions_knows_no_digests(directory: Path, name: str) -> None:
    """Nor does that of the first version owe anything of retained messages."""
    found = decode(ProgressRecord, b"key", (directory / f"{name}.bin").read_bytes())
    assert found == msgspec.structs.replace(SAMPLES[name], inbound_digests=())
    assert inbound_of(found) == dict.fromkeys(found.inbound, 0)


@pytest.mark.parametrize("name", ["session", "session_owned"])
def test_a_session_of_the_first_version_was_not_taken_by_force(name: str) -> None:
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    sample = without_publisher(SAMPLES[name]) if name == "session" else SAMPLES[name]
    assert decode(SessionRecord, b"key", golden) == msgspec.structs.replace(sample, user=None, host=None)


def test_a_lease_of_the_first_version_replaced_no_other() -> None:
    golden = (GOLDEN / "lease.bin").read_bytes()
    assert decode(Lease, b"key", golden) == SAMPLES["lease"]


def test_keys_are_where_they_have_always_been() -> None:
    assert {
        "broker": keys.broker("b1"),
        "session": keys.session("c/é"),
        "progress": keys.progress("c"),
        "owned": keys.owned("b1", "c"),
        "share": keys.share("g", "a/#"),
        "member": keys.member("g", "a/#", "c"),
        "retained": keys.retained("a/b"),
        "delayed": keys.delayed("00ff"),
        "timer": keys.session_timer(0x0123456789ABCDE, "will", "c"),
        "claim": keys.claim("g", "a/b", 17, 990),
        "long": keys.session("x" * 1025),
    } == {
        "broker": b"mqtt/broker/b1",
        "session": b"mqtt/session/c/\xc3\xa9",
        "progress": b"mqtt/progress/c",
        "owned": b"mqtt/owned/b1/c",
        "share": b"mqtt/share/g/a/#",
        "member": b"mqtt/member/g/a/#\x00c",
        "retained": b"mqtt/retained/a/b",
        "delayed": b"mqtt/delayed/00ff",
        "timer": b"mqtt/timer/00123456789abcde/will/c",
        "claim": b"mqtt/claim/g\x00a/b\x00000000000000001100000000000003de",
        "long": b"mqtt/session/"
        + b"x" * 1024
        + b"\xffc6d8e9905300876046729949cc95c2385221270d389176f7234fe7ac00c4e430",
    }


@given(st.integers(0, 2**60), st.sampled_from(["will", "expiry", "delayed"]), st.binary())
def test_a_timer_key_is_read_back_and_sorts_by_time(due_us: int, kind: str, name: bytes) -> None:
    key = keys.TimerKey(due_us, kind, name)
    assert keys.TimerKey.decode(key.encode()) == key
    assert keys.TimerKey(due_us + 1, "a", b"").encode() > key.encode()


@given(st.binary())
def test_no_key_is_taken_for_a_timer_that_is_none(rest: bytes) -> None:
    try:
        key = keys.TimerKey.decode(keys.TIMERS + rest)
    except CorruptionError:
        return
    assert key.encode() == keys.TIMERS + rest


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_different_names_have_different_parts(one: str, other: str) -> None:
    assert (keys.part(one) == keys.part(other)) == (one == other)
    assert len(keys.part(one)) <= keys.MAX_PART_BYTES + 65


@given(st.sampled_from(list(SAMPLES)), st.binary(max_size=60), st.integers(0, 200))
def test_damaged_values_are_recognised_or_read_and_nothing_else_happens(name: str, noise: bytes, at: int) -> None:
    good = encode(SAMPLES[name])
    for value in (noise, b"\x01" + noise, good[:at], good[:at] + noise + good[at + len(noise) :]):
        try:
            decode(type(SAMPLES[name]), b"key", value)
        except (CorruptionError, FormatVersionError) as error:
            assert "b'key'" in str(error)


def test_a_newer_format_is_not_guessed_at() -> None:
    with pytest.raises(FormatVersionError, match="format 02"):
        decode(Lease, b"key", b"\x02whatever")


def test_a_message_waits_unchanged() -> None:
    found = message_from(decode(StoredMessage, b"k", encode(stored_message(MESSAGE))), shard="place", lsn=9)
    assert (found.topic, found.payload, found.qos, found.retain, found.publisher) == (
        MESSAGE.topic,
        MESSAGE.payload,
        MESSAGE.qos,
        MESSAGE.retain,
        MESSAGE.publisher,
    )
    assert (found.properties, found.expires_at_us, found.timestamp_us) == (PROPERTIES, 2_000_000, 1_000_000)
    assert (found.shard, found.lsn, found.offset) == ("place", 9, -1)


def test_a_will_becomes_a_message_of_the_time_at_which_it_is_published() -> None:
    message = will_message(stored_will(WILL, "c", "anna"), 5_000_000)
    assert (message.topic, message.payload, message.qos, message.retain) == ("a/will", b"gone", 1, True)
    assert (message.publisher, message.timestamp_us, message.expires_at_us) == ("c", 5_000_000, 65_000_000)
    assert message.properties == Properties(content_type="text/plain")
