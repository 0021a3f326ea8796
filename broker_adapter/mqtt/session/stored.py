"""The stored forms of sessions in the state store: one byte of format version, then MessagePack. Pure.

The functions convert messages and wills to their stored form and back.

The meaning of the fields is explained where they are used: `transitions` for records, `progress` for what is under way.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker_adapter.mqtt.model.message import Message, message_of, record_of
from broker_adapter.mqtt_codec.packets import Will
from shards.format.record import StoredRecord


class StoredMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message that is not in a shard: retained or delayed. Its headers are those of its record.

    Attributes:
        user: Name of the user who published it, empty for an anonymous client. None if the broker itself did, or if an
            older program stored it; then it counts for no quota.
    """

    topic: str
    payload: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_us: int
    expires_at_us: int
    user: str | None = None


class StoredWill(msgspec.Struct, array_like=True, frozen=True):
    """A will; its message expiry interval counts from its publication; None means never."""

    message: StoredMessage
    delay_s: int
    message_expiry_s: int | None


class StoredSubscription(msgspec.Struct, array_like=True, frozen=True):
    """Options of one subscription under its filter."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscription_id: int
    since_lsn: int


class StoredMembership(msgspec.Struct, array_like=True, frozen=True):
    """Membership of a shared subscription, and the name of its group in the store."""

    group: str
    topic_filter: str
    store_group: str
    start_lsn: int


class SessionRecord(msgspec.Struct, array_like=True, frozen=True):
    """The owner of a session, and its state except for what is under way.

    Attributes:
        epoch: Rises with each owner.
        claim: Random number of the write that made the owner the owner; it distinguishes an owner's writes from
            others'.
        owner: Broker id, empty between connections.
        protocol: Protocol level of the last connection.
        disconnected_at_us: 0 while it is owned.
        will_due_us: When the timer of the will is due, 0 if there is none.
        expires_due_us: When the timer of its expiry is due, 0 if there is none.
        unfenced: Brokers from which the session was taken by force, and whose connections to the store may not have
            been ended yet.
        user: Name of the user whose client began the session, empty for an anonymous client. No other user may open it.
            None if an older program wrote the record.
        host: Address from which the client connected last, without its port. None if an older program wrote the record.
    """

    client_id: str
    epoch: int
    claim: int
    owner: str
    protocol: int
    expiry_interval_s: int
    disconnected_at_us: int = 0
    will: StoredWill | None = None
    will_due_us: int = 0
    expires_due_us: int = 0
    subscriptions: tuple[StoredSubscription, ...] = ()
    memberships: tuple[StoredMembership, ...] = ()
    unfenced: tuple[str, ...] = ()
    user: str | None = None
    host: str | None = None


class StoredInFlight(msgspec.Struct, array_like=True, frozen=True):
    """One message under way; ``shard`` is an index into `ProgressRecord.shards`."""

    packet_id: int
    qos: int
    shard: int
    offset: int
    lsn: int
    origin: int
    retain: bool
    subscription_ids: tuple[int, ...]


class StoredRetainedScan(msgspec.Struct, array_like=True, frozen=True):
    """Retained messages of one subscription that are still to be sent; see `RetainedScan`."""

    topic_filter: str
    until_lsn: int
    qos: int
    subscription_id: int
    after: bytes


StoredRange = tuple[int, int, int, int]
"""Index of a shard's name, first offset, next offset, highest lsn."""


class ProgressRecord(msgspec.Struct, array_like=True, frozen=True):
    """What is under way in a session, in both directions.

    Attributes:
        claim: Claim of the owner who wrote it.
        write_number: Number of the write among the owner's; 0 in a write by which a broker takes or closes a session of
            another owner. Negative in the last write of an owner that has stored everything that was sent to the
            client. With any other number more may have been sent; see `transitions.Transition.maybe_sent_lsn`.
        shards: Shard names that the other fields refer to by index.
        publishes: In the order in which they were sent.
        releases: In the order in which PUBREC came.
        done: Finished at QoS 2 above the position.
        seen: Finished at QoS 0 and 1 above the position.
        inbound: Packet identifiers received and not released.
        retained: Retained messages that are still to be sent.
        inbound_digests: Digests of the messages of `inbound`, in its order; empty if an older program wrote the record.
    """

    claim: int
    write_number: int = 0
    position_lsn: int = 0
    last_packet_id: int = 0
    shards: tuple[str, ...] = ()
    publishes: tuple[StoredInFlight, ...] = ()
    releases: tuple[StoredInFlight, ...] = ()
    done: tuple[StoredRange, ...] = ()
    seen: tuple[StoredRange, ...] = ()
    inbound: tuple[int, ...] = ()
    retained: tuple[StoredRetainedScan, ...] = ()
    inbound_digests: tuple[int, ...] = ()


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """Lease of a broker.

    Attributes:
        instance: Random name of the process, followed by ``@`` and its client name where the store is a server.
        renewal_number: Rises with each renewal.
        adopter: The broker that has declared it dead and closes its sessions; empty while it is alive.
        unfenced: Client names of earlier processes that this one has replaced, and whose connections may not have been
            ended yet.
    """

    instance: str
    renewal_number: int
    adopter: str = ""
    unfenced: tuple[str, ...] = ()

    @property
    def clients(self) -> frozenset[str]:
        """Client names of the process, and of those that it has replaced."""
        return frozenset({client_of(self), *self.unfenced}) - {""}


def instance_of(token: str, client_name: str) -> str:
    """The value of `Lease.instance` for a process."""
    return f"{token}@{client_name}"


def client_of(lease: Lease) -> str:
    """Client name of the process that holds a lease; empty where the store is not a server."""
    return lease.instance.partition("@")[2]


class ShareRecord(msgspec.Struct, array_like=True, frozen=True):
    """A shared subscription with members."""

    group: str
    topic_filter: str
    store_group: str
    start_lsn: int
    member_count: int


class CleanupRecord(msgspec.Struct, array_like=True, frozen=True):
    """A group of the store without members, and the targets that it was subscribed to."""

    store_group: str
    targets: tuple[str, ...]


_SECOND_US: Final = 1_000_000


def stored_message(message: Message) -> StoredMessage:
    """The stored form of a message."""
    record = record_of(message)
    return StoredMessage(
        message.topic, message.payload, record.headers, message.timestamp_us, message.expires_at_us, message.user
    )


def message_from(stored: StoredMessage, *, shard: str = "", lsn: int = 0) -> Message:
    """The message of a stored form; ``shard`` and ``lsn`` say where it was found."""
    message = message_of(
        shard,
        StoredRecord(
            offset=-1,
            lsn=lsn,
            append_time_us=0,
            value=stored.payload,
            topic=stored.topic,
            timestamp_us=stored.timestamp_us,
            headers=stored.headers,
            expires_at_us=stored.expires_at_us,
        ),
    )
    message.user = stored.user
    return message


def stored_will(will: Will, client_id: str, user: str) -> StoredWill:
    """The stored form of a will."""
    message = Message(will.topic, will.payload, will.qos, will.retain, client_id, will.properties, user=user)
    return StoredWill(
        stored_message(message),
        delay_s=will.properties.will_delay_interval or 0,
        message_expiry_s=will.properties.message_expiry_interval,
    )


def will_message(will: StoredWill, now_us: int) -> Message:
    """The message that is published for a will at a time."""
    message = message_from(will.message)
    message.timestamp_us = now_us
    if will.message_expiry_s is not None:
        message.expires_at_us = now_us + will.message_expiry_s * _SECOND_US
    return message
