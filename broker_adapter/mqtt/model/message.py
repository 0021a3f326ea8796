"""A message on its way through the broker, and its form as a record of the store.

What is made for each message is a struct of msgspec here and in the other packages of the broker: that takes less than
half the time of a class of attrs, and the garbage collector need not look at those that cannot be part of a cycle.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable
from typing import Final

import attrs
import msgspec

from broker_adapter.message_headers import (
    CLIENT,
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT,
    QOS,
    RESPONSE_TOPIC,
    RETAIN,
    USER_PROPERTY,
)
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.property_section import MAX_USER_PROPERTIES
from broker_adapter.mqtt_codec.publish_template import PublishTemplate
from shards.format.record import Record, StoredRecord

MAX_HEADERS: Final = 2 * MAX_USER_PROPERTIES
"""A record with more headers, which no broker wrote, is not sent: each one costs time in which other clients wait."""

_QOS_TEXT: Final = (b"0", b"1", b"2")
_FORMAT_TEXT: Final = (b"0", b"1")
_FORMAT_OF_TEXT: Final = {text: number for number, text in enumerate(_FORMAT_TEXT)}


class Message(msgspec.Struct, eq=False, gc=False):
    """A message that a client published, and its place in the store once it is stored.

    Attributes:
        qos: As published; it is delivered with the lower of this and the QoS of the subscription.
        retain: The retain flag as published.
        publisher: Client identifier of the publisher; empty for the broker itself.
        properties: Those that are forwarded to subscribers; the message expiry interval is in `expires_at_us`.
        expires_at_us: Time from which it is no longer delivered, in microseconds since 1970; 0 means never.
        timestamp_us: When the broker received it.
        shard: Name of its shard; empty if it is not stored.
        offset: Its offset in the shard, -1 if it is not stored.
        lsn: Its lsn, 0 if it is not stored.
        header_count: Number of headers of its record if there are more than `MAX_HEADERS`; then they were not read.
        user: Name of the user who published it, empty for an anonymous client; None if it is not known.
        encoded: The PUBLISH packet last encoded from it, with the key that says for which clients it can be used; see
            `publish_encoding`.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    publisher: str = ""
    properties: Properties = EMPTY
    expires_at_us: int = 0
    timestamp_us: int = 0
    shard: str = ""
    offset: int = -1
    lsn: int = 0
    header_count: int = 0
    user: str | None = None
    encoded: tuple[object, PublishTemplate] | None = None


def digest_of(topic: str, payload: bytes) -> int:
    """Digest that distinguishes a repeated message from another one with its packet identifier: 32 bits, never 0."""
    return zlib.crc32(payload, zlib.crc32(topic.encode())) or 1


Headers = tuple[tuple[str, bytes], ...]


def common_headers(publisher: str, qos: int, *, retain: bool = False) -> Headers:
    """The headers of a record without those of properties: the same for many messages of a client."""
    headers = ((CLIENT, publisher.encode()), (QOS, _QOS_TEXT[qos]))
    return (*headers, (RETAIN, b"1")) if retain else headers


def record_of(message: Message, topic: str | None = None, common: Headers | None = None) -> Record:
    """The record of a message.

    Args:
        message: The message.
        topic: Value of the record's topic column: empty where the shard's name is the topic; default: the topic.
        common: Its `common_headers`, if they were made before.
    """
    if topic is None:
        topic = message.topic
    if common is None:
        common = common_headers(message.publisher, message.qos, retain=message.retain)
    properties = message.properties
    if properties is not EMPTY:
        common = (*common, *_property_headers(properties))
    return Record(message.payload, b"", topic, message.timestamp_us, common, (), message.expires_at_us)


def _property_headers(properties: Properties) -> list[tuple[str, bytes]]:
    headers: list[tuple[str, bytes]] = []
    if properties.content_type is not None:
        headers.append((CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append((RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append((CORRELATION_DATA, properties.correlation_data))
    if properties.payload_format_indicator is not None:
        headers.append((PAYLOAD_FORMAT, _FORMAT_TEXT[properties.payload_format_indicator]))
    headers.extend((USER_PROPERTY, f"{name}\0{value}".encode()) for name, value in properties.user_properties)
    return headers


def messages_of(shard: str, records: Iterable[StoredRecord], topic: str) -> list[Message]:
    """The messages in records of one topic; see `message_of`. Headers that repeat are read once."""
    messages: list[Message] = []
    known: Headers | None = None
    publisher, qos, retain, properties, header_count = _NOTHING_READ
    for stored in records:
        headers = stored.headers
        if headers != known:
            known = headers
            publisher, qos, retain, properties, header_count = _read_headers(headers)
        messages.append(
            Message(
                topic,
                stored.value,
                qos,
                retain,
                publisher,
                properties,
                stored.expires_at_us,
                stored.timestamp_us,
                shard,
                stored.offset,
                stored.lsn,
                header_count,
            )
        )
    return messages


def message_of(shard: str, stored: StoredRecord, topic: str = "") -> Message:
    """The message in a record. A record that no broker wrote is a message of QoS 1 without a publisher.

    Args:
        shard: Its shard.
        stored: The record.
        topic: Its topic (`TopicMapping.topic_of`): that which the record names counts only where it maps to the shard.
            Empty for a record that a broker wrote itself.
    """
    [message] = messages_of(shard, (stored,), topic or stored.topic or shard)
    return message


_NOTHING_READ: Final = ("", 1, False, EMPTY, 0)


def _read_headers(headers: Headers) -> tuple[str, int, bool, Properties, int]:
    """Publisher, QoS, retain flag, properties, and the number of headers if there are too many to read."""
    publisher, qos, retain, properties, header_count = _NOTHING_READ
    if len(headers) > MAX_HEADERS:
        return publisher, qos, retain, properties, len(headers)
    others: list[tuple[str, bytes]] = []
    for name, value in headers:
        if name == CLIENT:
            publisher = value.decode(errors="replace")
        elif name == QOS:
            qos = int(value) if value in _QOS_TEXT else 1
        elif name == RETAIN:
            retain = True
        else:
            others.append((name, value))
    if others:
        properties = _properties_of(others)
    return publisher, qos, retain, properties, header_count


def _properties_of(headers: list[tuple[str, bytes]]) -> Properties:
    values: dict[str, bytes] = {}
    user_properties: list[tuple[str, str]] = []
    for name, value in headers:
        if name == USER_PROPERTY:
            key, _, text = value.decode(errors="replace").partition("\0")
            user_properties.append((key, text))
        else:
            values[name] = value
    content_type, response_topic = values.get(CONTENT_TYPE), values.get(RESPONSE_TOPIC)
    return Properties(
        payload_format_indicator=_FORMAT_OF_TEXT.get(values.get(PAYLOAD_FORMAT, b"")),
        content_type=None if content_type is None else content_type.decode(errors="replace"),
        response_topic=None if response_topic is None else response_topic.decode(errors="replace"),
        correlation_data=values.get(CORRELATION_DATA),
        user_properties=tuple(user_properties),
    )


@attrs.frozen(slots=True)
class DelayedPublish:
    """When a message is to be published, and the name under which it is stored until then.

    The name is made once for a message, not for each attempt to store it: so a second attempt conflicts with a first
    one that was carried out although its answer was lost.
    """

    at_us: int
    name: str = attrs.field(factory=lambda: secrets.token_hex(16))
