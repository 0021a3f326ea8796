"""Conversion of messages and wills between memory and their stored form in the state store. Pure."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt.model.message import Message, message_of, record_of
from broker_adapter.mqtt.session.stored import StoredMessage, StoredWill
from broker_adapter.mqtt_codec.packets import Will
from shards.format.record import StoredRecord

_SECOND_US: Final = 1_000_000


def stored_message(message: Message) -> StoredMessage:
    """The stored form of a message."""
    record = record_of(message)
    return StoredMessage(message.topic, message.payload, record.headers, message.timestamp_us, message.expires_at_us)


def message_from(stored: StoredMessage, *, shard: str = "", lsn: int = 0) -> Message:
    """The message of a stored form; ``shard`` and ``lsn`` say where it was found."""
    return message_of(
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


def stored_will(will: Will, client_id: str) -> StoredWill:
    """The stored form of a will."""
    message = Message(will.topic, will.payload, will.qos, will.retain, client_id, will.properties)
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
