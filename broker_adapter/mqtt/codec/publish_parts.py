"""A PUBLISH encoded once for many receivers; what differs between them is filled in for each."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt.codec.fixed_header import fixed_header
from broker_adapter.mqtt.codec.packets import Publish
from broker_adapter.mqtt.codec.primitives import TWO_BYTES, write_string, write_variable
from broker_adapter.mqtt.codec.properties import EMPTY
from broker_adapter.mqtt.codec.property_section import properties_in, writer_of
from broker_adapter.mqtt.codec.property_table import MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS, Place
from broker_adapter.mqtt.codec.publish_bodies import DUP, QOS, check_packet_id, publish_first_byte
from broker_adapter.mqtt.codec.version import Version

_NO_TOPIC: Final = write_string("")
_write_expiry: Final = writer_of(MESSAGE_EXPIRY_INTERVAL, Place.PUBLISH)
_write_alias: Final = writer_of(TOPIC_ALIAS, Place.PUBLISH)


class PublishParts:
    """The parts of a PUBLISH for receivers that get it alike: version, QoS, retain flag, subscription identifiers.

    A packet is `head` and then `payload`, to be sent one behind the other: the payload is not copied for each receiver.
    Packet identifier and DUP flag of the given packet do not count. In MQTT 3.1.1 expiry and alias are left out.

    Attributes:
        payload: The last part of every packet.
        size_bytes: Length of the whole packet without a topic alias.

    Raises:
        ValueError: As `encode`, or the properties have a topic alias, which differs between receivers.
    """

    __slots__ = (
        "_expiry_interval_s",
        "_first",
        "_has_properties",
        "_plain",
        "_rest",
        "_topic",
        "payload",
        "size_bytes",
    )

    def __init__(self, publish: Publish, version: Version) -> None:
        properties = publish.properties if version is Version.V5 else EMPTY
        if properties.topic_alias is not None:
            raise ValueError(f"PUBLISH has topic alias {properties.topic_alias}, it must be told for each receiver")
        self.payload = publish.payload
        self._first = publish_first_byte(publish.qos, publish.retain)
        self._topic = write_string(publish.topic)
        self._has_properties = version is Version.V5
        self._expiry_interval_s = properties.message_expiry_interval
        self._rest = b""
        if properties is not EMPTY:
            self._rest = properties_in(Place.PUBLISH, properties, leave_out=MESSAGE_EXPIRY_INTERVAL.name)
        self._plain = self._around_packet_id(self._expiry_interval_s, None, knows_alias=False)
        before, after = self._plain
        self.size_bytes = len(before) + (TWO_BYTES.size if publish.qos else 0) + len(after) + len(self.payload)

    def head(
        self,
        packet_id: int = 0,
        *,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        topic_alias: int | None = None,
        knows_alias: bool = False,
    ) -> bytes:
        """Make all that goes before the payload.

        Args:
            packet_id: 0 with QoS 0.
            dup: It was sent to this receiver before.
            expiry_interval_s: What is left of the message expiry interval; None: as in the packet given.
            topic_alias: Tell this alias.
            knows_alias: The receiver was told the alias before: leave the topic name out.
        """
        check_packet_id(self._first, packet_id)
        if expiry_interval_s is None and topic_alias is None:
            before, after = self._plain
        else:
            if expiry_interval_s is None:
                expiry_interval_s = self._expiry_interval_s
            before, after = self._around_packet_id(expiry_interval_s, topic_alias, knows_alias=knows_alias)
        if not packet_id:
            return before + after
        if dup:
            before = bytes((before[0] | DUP,)) + before[1:]
        return before + TWO_BYTES.pack(packet_id) + after

    def _around_packet_id(
        self, expiry_interval_s: int | None, topic_alias: int | None, *, knows_alias: bool
    ) -> tuple[bytes, bytes]:
        topic, after = self._topic, b""
        if self._has_properties:
            written = self._rest
            if expiry_interval_s is not None:
                written = _write_expiry(expiry_interval_s) + written
            if topic_alias is not None:
                written = _write_alias(topic_alias) + written
                topic = _NO_TOPIC if knows_alias else topic
            after = write_variable(len(written)) + written
        packet_id_bytes = TWO_BYTES.size if self._first & QOS else 0
        length = len(topic) + packet_id_bytes + len(after) + len(self.payload)
        return fixed_header(self._first, length) + topic, after
