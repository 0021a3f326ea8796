"""A PUBLISH encoded once for many receivers; the parts that differ are filled in for each of them.

A broker encodes one packet for each message and receiver. So there is the same in C
(`shards/compiled/publish_template.c`), which is used where it was built. A change of one is a change of both: a
property compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from broker_adapter.mqtt_codec.fixed_header import fixed_header
from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.mqtt_codec.primitives import MAX_TWO_BYTES, TWO_BYTES, write_string, write_variable
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.property_section import properties_writer, writer_of
from broker_adapter.mqtt_codec.property_table import MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS, Place
from broker_adapter.mqtt_codec.publish_bodies import DUP, QOS, QOS_SHIFT, publish_first_byte
from shards import compiled

_NO_TOPIC: Final = write_string("")
_write_rest: Final = properties_writer(Place.PUBLISH, leave_out=MESSAGE_EXPIRY_INTERVAL.name)
_write_expiry: Final = writer_of(MESSAGE_EXPIRY_INTERVAL, Place.PUBLISH)
_write_alias: Final = writer_of(TOPIC_ALIAS, Place.PUBLISH)


class PublishTemplate(Protocol):
    """The parts of a PUBLISH for receivers with the same version, QoS, retain flag and subscription identifiers.

    Attributes:
        payload: The last part of every packet.
        size_bytes: Length of the whole packet, without a topic alias, which differs by receiver.
    """

    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

    def packet(
        self,
        packet_id: int,
        /,
        *,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        topic_alias: int | None = None,
        knows_alias: bool = False,
    ) -> bytes:
        """Make the whole packet for one receiver. For MQTT 3.1.1 expiry and alias are left out.

        Args:
            packet_id: Not used at QoS 0.
            dup: It was, or may have been, sent to this receiver before; not used at QoS 0.
            expiry_interval_s: The remaining message expiry interval, in seconds; None: that of the template.
            topic_alias: Set this alias, for a template without one.
            knows_alias: The alias was set before: leave the topic name out.

        Raises:
            ValueError: A value does not fit into its field.
        """
        ...


class PurePublishTemplate:
    """The form in Python.

    Args:
        first: First byte, without the DUP flag.
        topic: Topic name.
        payload: Payload.
        has_properties: Whether the version of MQTT has properties.
        expiry_interval_s: Message expiry interval.
        rest: The other properties as they are written, without their length.

    Raises:
        ValueError: A value does not fit into its field.
    """

    __slots__ = (
        "_after",
        "_before",
        "_expiry_interval_s",
        "_first",
        "_has_properties",
        "_rest",
        "_topic",
        "payload",
        "qos",
    )

    def __init__(
        self,
        first: int,
        topic: str,
        payload: bytes,
        has_properties: bool,
        expiry_interval_s: int | None,
        rest: bytes,
        /,
    ) -> None:
        self.payload = payload
        self.qos = (first & QOS) >> QOS_SHIFT
        self._first = first
        self._topic = write_string(topic)
        self._has_properties = has_properties
        self._expiry_interval_s = expiry_interval_s
        self._rest = rest
        self._before, self._after = self._around_packet_id(expiry_interval_s, None, knows_alias=False)

    @property
    def size_bytes(self) -> int:
        packet_id_bytes = TWO_BYTES.size if self.qos else 0
        return len(self._before) + packet_id_bytes + len(self._after) + len(self.payload)

    def packet(
        self,
        packet_id: int,
        /,
        *,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        topic_alias: int | None = None,
        knows_alias: bool = False,
    ) -> bytes:
        before, after = self._before, self._after
        if expiry_interval_s is not None or topic_alias is not None:
            if expiry_interval_s is None:
                expiry_interval_s = self._expiry_interval_s
            before, after = self._around_packet_id(expiry_interval_s, topic_alias, knows_alias=knows_alias)
        if not self.qos:
            return before + after + self.payload
        if not 1 <= packet_id <= MAX_TWO_BYTES:
            raise ValueError(f"packet identifier is {packet_id}, it must be from 1 to {MAX_TWO_BYTES}")
        if dup:
            before = bytes((before[0] | DUP,)) + before[1:]
        return b"".join((before, TWO_BYTES.pack(packet_id), after, self.payload))

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
        packet_id_bytes = TWO_BYTES.size if self.qos else 0
        length = len(topic) + packet_id_bytes + len(after) + len(self.payload)
        return fixed_header(self._first, length) + topic, after


MakeTemplate: TypeAlias = Callable[[int, str, bytes, bool, int | None, bytes], PublishTemplate]
"""Makes a template; for the arguments see `PurePublishTemplate`."""

make_template: Final[MakeTemplate] = compiled.publish_template or PurePublishTemplate
"""The form that is used."""


def publish_template(
    topic: str,
    payload: bytes,
    qos: int,
    version: Version,
    *,
    retain: bool = False,
    values: Properties = EMPTY,
    make: MakeTemplate = make_template,
) -> PublishTemplate:
    """Encode a PUBLISH except for the parts that differ between its receivers.

    Args:
        values: Its properties; left out in MQTT 3.1.1.
        make: Which form is used.

    Raises:
        ValueError: As `encode`.
    """
    first = publish_first_byte(qos, retain)
    if version is Version.V311:
        return make(first, topic, payload, False, None, b"")
    if values is EMPTY:
        return make(first, topic, payload, True, None, b"")
    return make(first, topic, payload, True, values.message_expiry_interval, _write_rest(values))


def plain_templates(
    topic: str,
    payloads: Iterable[bytes],
    qos: int,
    version: Version,
    *,
    retain: bool = False,
    make: MakeTemplate = make_template,
) -> list[PublishTemplate]:
    """`publish_template` for many messages of one topic without properties."""
    first, has_properties = publish_first_byte(qos, retain), version is not Version.V311
    return [make(first, topic, payload, has_properties, None, b"") for payload in payloads]
