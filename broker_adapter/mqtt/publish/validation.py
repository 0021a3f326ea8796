"""Validation of a PUBLISH: its topic, whether it is allowed, whether it is a repetition.

The message is stored by `pipeline` then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs

from broker_adapter.mqtt.access.permissions import Access, Principal
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.message import DelayedPublish, Message, digest_of
from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.model.topic_aliases import InboundAliases
from broker_adapter.mqtt.model.topics import TopicRefusedError, parse_topic
from broker_adapter.mqtt.publish.received import Received
from broker_adapter.mqtt.session import Session
from broker_adapter.mqtt_codec import EMPTY, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.packets import Publish

_KNOWN_TOPICS: Final = 256


@attrs.frozen(slots=True)
class _Route:
    """The meaning of a topic for this client.

    Attributes:
        delay_us: Delay of the publication, in microseconds; None for none.
        refused: Why messages are refused; None if they are not.
        is_plain: Messages are published at once.
    """

    topic: str
    delay_us: int | None = None
    refused: ReasonCode | None = None

    is_plain: bool = attrs.field(init=False)

    @is_plain.default
    def _without_delay_or_refusal(self) -> bool:
        return self.delay_us is None and self.refused is None


class PublishValidator:
    """Validates the PUBLISH packets of one connection.

    Args:
        session: Has the QoS 2 messages that are stored already.
        on_denied: Called with a topic that the rules do not allow to the client, for each message to it.
    """

    def __init__(
        self,
        session: Session,
        *,
        version: Version,
        principal: Principal,
        access: Access,
        on_denied: Callable[[str], None],
        limits: Limits,
        statistics: BrokerStatistics,
    ) -> None:
        self._session = session
        self._version = version
        self._principal = principal
        self._access = access
        self._on_denied = on_denied
        self._statistics = statistics
        self._max_delay_s = limits.max_delay_s
        self._aliases = InboundAliases(limits.topic_alias_maximum)
        # Without a Receive Maximum in MQTT 3.1.1, the packet identifiers are the limit.
        self._receive_maximum = limits.receive_maximum if version is Version.V5 else 1 << 17
        self._routes: dict[str, _Route] = {}
        self._changes = access.changes
        self._unanswered = 0
        self._unreleased: set[int] = set()

    def take(self, packets: Iterable[Publish], now_us: int, taken: list[Received]) -> None:
        """Validate PUBLISH packets, in order; the hot loop of what clients publish.

        Args:
            packets: The packets.
            now_us: Present time, in microseconds since 1970.
            taken: Gets what is to be stored or acknowledged: all packets but those that are dropped.

        Raises:
            ProtocolViolationError: The connection must end. The packets before the one at fault are in ``taken``.
        """
        if self._access.changes != self._changes:
            self._changes = self._access.changes
            self._routes.clear()
        routes = self._routes
        client_id, user = self._principal.client_id, self._principal.username
        received = self._statistics.received
        messages, payload_bytes = received.messages, received.payload_bytes
        for packet in packets:
            properties, qos, topic, payload = packet.properties, packet.qos, packet.topic, packet.payload
            messages[qos] += 1
            payload_bytes[qos] += len(payload)
            if properties is not EMPTY and properties.topic_alias is not None:
                topic = self._aliases.resolve(topic, properties.topic_alias)
            if qos:
                self._count(packet)
            route = routes.get(topic) or self._find_route(topic)
            if not route.is_plain or qos == 2 or properties is not EMPTY:
                one = self._take(packet, topic, route, now_us)
                if one is not None:
                    taken.append(one)
                continue
            message = Message(route.topic, payload, qos, packet.retain, client_id, EMPTY, 0, now_us, "", -1, 0, 0, user)
            taken.append(Received(message, packet.packet_id, qos))

    def _take(self, packet: Publish, topic: str, route: _Route, now_us: int) -> Received | None:
        """Take one packet; None if it is dropped without an acknowledgement."""
        properties, qos = packet.properties, packet.qos
        statistics = self._statistics
        if route.refused is not None:
            if route.refused == ReasonCode.NOT_AUTHORIZED:
                self._on_denied(topic)
            if not qos:
                statistics.dropped["not_allowed"] += 1
                return None
            reason_code = route.refused
            if self._version is not Version.V5:
                # MQTT 3.1.1 cannot express a refusal: the message is acknowledged and dropped.
                statistics.dropped["not_allowed"] += 1
                reason_code = ReasonCode.SUCCESS
            return Received(None, packet.packet_id, qos, reason_code=reason_code)
        if qos == 2:
            # Until PUBREL comes the same message is a repetition, as the standard has it, whether it has DUP or not:
            # some clients forget to set it. Another one without DUP is new: the client forgot the earlier one, or the
            # store was restored to a time when that was not released yet.
            known = self._session.inbound.get(packet.packet_id)
            if known is not None and (packet.dup or known == digest_of(route.topic, packet.payload)):
                return Received(None, packet.packet_id, qos, reason_code=ReasonCode.SUCCESS)
        due = None if route.delay_us is None else DelayedPublish(now_us + route.delay_us)
        expires_at_us = 0
        if properties is not EMPTY:
            expiry_s = properties.message_expiry_interval
            if expiry_s is not None:
                # The expiry interval of a delayed message begins when it is published.
                expires_at_us = (now_us if due is None else due.at_us) + expiry_s * 1_000_000
            properties = _end_to_end(properties)
        message = Message(
            route.topic,
            packet.payload,
            qos,
            packet.retain,
            self._principal.client_id,
            properties,
            expires_at_us,
            now_us,
            user=self._principal.username,
        )
        return Received(message, packet.packet_id, qos, due)

    def acknowledged(self, count: int) -> None:
        """So many PUBACKs of success are sent."""
        self._unanswered -= count

    def answered(self, received: Received) -> None:
        """Another PUBACK, or a PUBREC, is sent."""
        if received.qos == 1:
            self._unanswered -= 1
        elif received.reason_code is not None and received.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            self._unreleased.discard(received.packet_id)

    def released(self, packet_id: int) -> None:
        """PUBREL was received."""
        self._unreleased.discard(packet_id)

    def _count(self, packet: Publish) -> None:
        if packet.qos == 1:
            self._unanswered += 1
        else:
            self._unreleased.add(packet.packet_id)
        if self._unanswered + len(self._unreleased) > self._receive_maximum:
            raise ProtocolViolationError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {self._receive_maximum} messages of QoS 1 and 2 are not acknowledged yet",
            )

    def _find_route(self, topic: str) -> _Route:
        try:
            target, delay_s = parse_topic(topic)
        except TopicRefusedError as error:
            route = _Route(topic, refused=error.reason_code)
        else:
            if delay_s is not None and delay_s > self._max_delay_s:
                route = _Route(target, refused=ReasonCode.QUOTA_EXCEEDED)
            elif self._access.may_publish(self._principal, target):
                route = _Route(target, None if delay_s is None else delay_s * 1_000_000)
            else:
                route = _Route(target, refused=ReasonCode.NOT_AUTHORIZED)
        if len(self._routes) >= _KNOWN_TOPICS:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = route
        return route


def _end_to_end(properties: Properties) -> Properties:
    """Those properties of a PUBLISH that are forwarded to subscribers."""
    if properties.topic_alias is None and properties.message_expiry_interval is None:
        return properties
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    return EMPTY if kept == EMPTY else kept
