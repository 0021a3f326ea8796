"""A PUBLISH encoded once for many receivers; the parts that differ are filled in for each of them."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt_codec.fixed_header import fixed_header
from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.mqtt_codec.primitives import MAX_TWO_BYTES, TWO_BYTES, write_string, write_variable
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.property_section import properties_in, writer_of
from broker_adapter.mqtt_codec.property_table import MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS, Place
from broker_adapter.mqtt_codec.publish_bodies import DUP, publish_first_byte

_NO_TOPIC: Final = write_string("")
_write_expiry: Final = writer_of(MESSAGE_EXPIRY_INTERVAL, Place.PUBLISH)
_write_alias: Final = writer_of(TOPIC_ALIAS, Place.PUBLISH)


class PublishTemplate:
    """The parts of a PUBLISH for receivers with the same version, QoS, retain flag and subscription identifiers.

    A packet is its `head`, followed by `payload`; they can be sent one after the other, without copying the payload.

    Attributes:
        payload: The last part of every packet.
    """

    __slots__ = ("_after", "_before", "_expiry_interval_s", "_first", "_rest", "_topic", "_version", "payload", "qos")

    def __init__(
        self, topic: str, payload: bytes, qos: int, version: Version, *, retain: bool, values: Properties
    ) -> None:
        self.payload = payload
        self.qos = qos
        self._first = publish_first_byte(qos, retain)
        self._topic = write_string(topic)
        self._version = version
        self._rest = b""
        self._expiry_interval_s = None
        if version is Version.V5 and values is not EMPTY:
            self._expiry_interval_s = values.message_expiry_interval
            self._rest = properties_in(Place.PUBLISH, values, leave_out=MESSAGE_EXPIRY_INTERVAL.name)
        self._before, self._after = self._around_packet_id(self._expiry_interval_s, None, knows_alias=False)

    @property
    def size_bytes(self) -> int:
        """Length of the whole packet, without a topic alias, which differs by receiver."""
        packet_id_bytes = TWO_BYTES.size if self.qos else 0
        return len(self._before) + packet_id_bytes + len(self._after) + len(self.payload)

    def with_packet_id(self, packet_id: int, *, dup: bool = False) -> bytes:
        """Make the whole packet for one receiver; at QoS 0 neither the identifier nor the DUP flag is used."""
        return self.head(packet_id, dup=dup) + self.payload

    def head(
        self,
        packet_id: int,
        *,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        topic_alias: int | None = None,
        knows_alias: bool = False,
    ) -> bytes:
        """Make everything before the payload. For MQTT 3.1.1 expiry and alias are left out.

        Args:
            packet_id: Not used at QoS 0.
            dup: It was sent to this receiver before.
            expiry_interval_s: The remaining message expiry interval, in seconds; None: that of the template.
            topic_alias: Set this alias, for a template without one.
            knows_alias: The alias was set before: leave the topic name out.

        Raises:
            ValueError: A value does not fit into its field.
        """
        before, after = self._before, self._after
        if expiry_interval_s is not None or topic_alias is not None:
            if expiry_interval_s is None:
                expiry_interval_s = self._expiry_interval_s
            before, after = self._around_packet_id(expiry_interval_s, topic_alias, knows_alias=knows_alias)
        if not self.qos:
            return before + after
        if not 1 <= packet_id <= MAX_TWO_BYTES:
            raise ValueError(f"packet identifier is {packet_id}, it must be from 1 to {MAX_TWO_BYTES}")
        if dup:
            before = bytes((before[0] | DUP,)) + before[1:]
        return before + TWO_BYTES.pack(packet_id) + after

    def _around_packet_id(
        self, expiry_interval_s: int | None, topic_alias: int | None, *, knows_alias: bool
    ) -> tuple[bytes, bytes]:
        topic, after = self._topic, b""
        if self._version is Version.V5:
            written = self._rest
            if expiry_interval_s is not None:
                written = _write_expiry(expiry_interval_s) + written
            if topic_alias is not None:
                written = _write_alias(topic_alias) + written
                topic = _NO_TOPIC if knows_alias else topic
            after = write_variable(len(written)) + written
        packet_id_bytes = TWO_BYTES.size if self.qos else 0
        length = len(topic) + packet_id_bytes + len(after) + len(self.payload)
        return fixed_header(self._first, length) + topic, after


def publish_template(
    topic: str, payload: bytes, qos: int, version: Version, *, retain: bool = False, values: Properties = EMPTY
) -> PublishTemplate:
    """Encode a PUBLISH except for the parts that differ between its receivers.

    Args:
        values: Its properties; left out in MQTT 3.1.1.

    Raises:
        ValueError: As `encode`.
    """
    return PublishTemplate(topic, payload, qos, version, retain=retain, values=values)
