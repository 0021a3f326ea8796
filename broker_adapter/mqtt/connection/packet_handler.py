"""Handling of the packets of a client that was accepted, and the answers to them.

`take` is the hot loop: it handles all packets that one receive brought. PUBLISH packets of the client go through
`publish.validation` and `publish.pipeline`, messages to it come from `delivery.sender`, its subscriptions are handled
in `subscription_handler`. Bytes, and the end of a connection, are in `connection`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Final, cast

import attrs
import trio

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.connection.handshake import Admission, Terms
from broker_adapter.mqtt.connection.services import Services
from broker_adapter.mqtt.connection.subscription_handler import SubscriptionHandler
from broker_adapter.mqtt.delivery.publish_encoding import PublishEncoder
from broker_adapter.mqtt.delivery.sender import MessageSender
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.statistics import AcknowledgementTimes, BrokerStatistics
from broker_adapter.mqtt.model.topic_aliases import NO_ALIASES, OutboundAliases
from broker_adapter.mqtt.publish.pipeline import PublishPipeline
from broker_adapter.mqtt.publish.received import Received
from broker_adapter.mqtt.publish.validation import PublishValidator
from broker_adapter.mqtt.session.claims import Claim
from broker_adapter.mqtt.session.outbound_window import InFlight
from broker_adapter.mqtt.transport.output import SavedFirst
from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, ReasonCode, Version, encode, encode_pubacks
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from journal.net.output import Output

_PINGRESP: Final = encode(Pingresp(), Version.V5)


@attrs.frozen(slots=True)
class ClientDisconnect:
    """A DISCONNECT of the client.

    Attributes:
        publish_will: Whether the will is to be published nevertheless.
        expiry_interval_s: New session expiry interval, if DISCONNECT changed it.
    """

    publish_will: bool
    expiry_interval_s: int | None = None


class PacketHandler:
    """Handles the packets of one connection.

    Args:
        admission: The accepted client.
        services: The parts of the broker that a connection uses.
        output: Where answers are sent.
        start: Starts a task that ends with the connection.
        on_ready: Called when `pump` has something to send.
        on_silent_refusal: Called when a message of a client of MQTT 3.1.1 was refused; no packet can say so.

    Attributes:
        session: The client's.
        disconnect: Set by DISCONNECT; packets after it are ignored.
    """

    __slots__ = (
        "_admission",
        "_inbox",
        "_on_unanswerable",
        "_output",
        "_pipeline",
        "_saved",
        "_sender",
        "_services",
        "_start",
        "_subscriptions",
        "_times",
        "_validator",
        "_version",
        "disconnect",
        "session",
    )

    def __init__(
        self,
        admission: Admission,
        services: Services,
        output: Output,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        on_ready: Callable[[], None],
        on_silent_refusal: Callable[[], None],
    ) -> None:
        session, terms = admission.session, admission.terms
        self._admission = admission
        self._services = services
        self._output = output
        self._start = start
        self._on_unanswerable = on_silent_refusal
        self._version = terms.version
        self.session = session
        self.disconnect: ClientDisconnect | None = None
        session.out.receive_maximum = terms.receive_maximum
        self._inbox = services.distributor.open_inbox(
            session.client_id,
            position_lsn=session.position_lsn if admission.session_present else None,
            on_ready=on_ready,
        )
        self._saved = SavedFirst(self._save, output, start)
        self._sender = MessageSender(
            session,
            self._inbox,
            output,
            self._saved,
            PublishEncoder(terms.version, _aliases_of(terms), terms.max_packet_bytes),
            claim=self._claim,
            may_have=self._may_have,
            wait_reached=self._wait_reached,
            adapter=services.adapter,
            retained=services.retained,
            topic_of=services.distributor.topic_of,
            clock=services.clock,
            start=start,
            statistics=services.statistics,
        )
        self._subscriptions = SubscriptionHandler(admission, services, self._inbox, self._sender, output, start)
        # Most clients never publish.
        self._times: AcknowledgementTimes | None = None
        self._validator: PublishValidator | None = None
        self._pipeline: PublishPipeline | None = None

    # Bound methods take a quarter of the memory of a partial

    async def _save(self) -> None:
        await self._services.sessions.save(self.session)

    async def _claim(self, claims: Mapping[Claim, InFlight]) -> None:
        await self._services.sessions.claim(self.session, claims)

    def _may_have(self, topic: str) -> bool:
        return self._services.access.may_subscribe(self.principal, topic)

    async def _wait_reached(self, position: Position) -> None:
        await self._services.distributor.wait_reached(self._inbox, position)

    # Life

    def begin(self) -> None:
        """Send CONNACK, and continue the session where it was."""
        self._answer(self._admission.connack)
        self._output.flush()
        self._subscriptions.restore()
        self._sender.pump()

    def pump(self) -> None:
        """Send waiting messages, as many as the client and the connection can take."""
        # A client that publishes at QoS 2 gets its PUBREC before it gets messages that its publish caused.
        if self._pipeline is None or not self._pipeline.storing:
            self._sender.pump()

    @property
    def principal(self) -> Principal:
        """The client."""
        return self._admission.principal

    def follow_rights(self) -> None:
        """End the subscriptions that the rules do not allow any more."""
        self._subscriptions.follow_rights()

    def save_position(self) -> None:
        """Have the session's position stored soon, if it has moved."""
        if self._sender.took and self.session.is_durable:
            self._sender.took = False
            self._services.sessions.save_soon(self.session)

    def stop(self) -> None:
        """Send no more messages."""
        self._sender.stop()

    async def settle(self) -> None:
        """Return when the outcome of all that the client published is known."""
        if self._pipeline is not None:
            await self._pipeline.settle()

    def close(self) -> None:
        """The connection has ended: update the session's position, and receive and store nothing more."""
        if self._pipeline is not None:
            self._pipeline.stop()
        self.session.advance(self._sender.safe_lsn)
        self._services.distributor.close_inbox(self._inbox)

    @property
    def has_room(self) -> bool:
        """Whether more packets may be read from the client."""
        return self._subscriptions.has_room and (self._pipeline is None or self._pipeline.has_room)

    async def wait_for_room(self) -> None:
        """Return when `has_room` is true."""
        while not self.has_room:
            await self._subscriptions.wait_for_room()
            if self._pipeline is not None:
                await self._pipeline.wait_for_room()

    # Packets

    def take(self, packets: list[Packet]) -> None:
        """Handle packets, in order.

        Raises:
            ProtocolViolationError: The client broke the protocol. The packets before that one are handled.
        """
        received: list[Received] = []
        incoming = self._validator
        now_us = self._services.clock.now_us()
        try:
            for kind, some in groupby(packets, type):
                if kind is Publish:
                    if incoming is None:
                        incoming = self._begin_publishing()
                    incoming.take(cast("Iterable[Publish]", some), now_us, received)
                elif kind is Puback:
                    self._on_pubacks(cast("Iterable[Puback]", some))
                elif not self._take_others(some):
                    break
        finally:
            if received:
                assert self._pipeline is not None
                assert self._times is not None
                self._times.received(len(received), trio.current_time(), is_answered=received[-1].qos > 0)
                self._pipeline.submit(received)
        if self.disconnect is None:
            self.pump()
        self._output.flush()

    def _take_others(self, packets: Iterable[Packet]) -> bool:
        """Handle packets of which there are few; False after a DISCONNECT."""
        for packet in packets:
            self._HANDLERS[type(packet)](self, packet)
            if self.disconnect is not None:
                return False
        return True

    def _answer(self, data: bytes) -> None:
        self._services.statistics.packets_sent += 1
        self._output.collect(data)

    def _begin_publishing(self) -> PublishValidator:
        services, session = self._services, self.session
        quota = services.handshake.quotas.of(self.principal.username)
        self._pipeline = PublishPipeline(
            services.publisher,
            commit=lambda changes, received: services.sessions.commit(session, changes, received=received),
            on_outcomes=self._acknowledge,
            start=self._start,
            is_refused=services.sessions.stored_use.is_refused if quota.stored_limits else None,
        )
        self._times = AcknowledgementTimes(services.statistics.acknowledge_s)
        session.publishes = self._pipeline
        if not session.is_open:
            self._pipeline.stop()
        self._validator = PublishValidator(
            session,
            version=self._version,
            principal=self._admission.principal,
            access=services.access,
            on_denied=partial(services.audit.denied, "publish", self._admission.principal, self._admission.peer),
            limits=services.limits,
            statistics=services.statistics,
        )
        return self._validator

    def _acknowledge(self, outcomes: list[Received]) -> None:
        """Answer publishes with a known outcome."""
        incoming, times = self._validator, self._times
        assert incoming is not None
        assert times is not None
        pubacks: list[int] = []
        was_held = False
        success = ReasonCode.SUCCESS
        for received in outcomes:
            qos, reason_code = received.qos, received.reason_code
            if qos == 1 and reason_code is success:
                pubacks.append(received.packet_id)
                continue
            if not qos:
                continue
            assert reason_code is not None
            incoming.answered(received)
            if reason_code >= ReasonCode.UNSPECIFIED_ERROR and self._version is Version.V311:
                self._answer_all(pubacks)
                self._on_unanswerable()
                return
            # PUBACKs must be in order, and PUBRECs must be in order.
            self._answer_all(pubacks)
            was_held = was_held or received.qos == 2
            answer = Puback if received.qos == 1 else Pubrec
            self._answer(encode(answer(received.packet_id, reason_code), self._version))
        self._answer_all(pubacks)
        times.answered(len(outcomes), trio.current_time())
        if was_held:
            self.pump()
        self._output.flush()

    def _answer_all(self, pubacks: list[int]) -> None:
        if pubacks:
            assert self._validator is not None
            self._validator.acknowledged(len(pubacks))
            self._services.statistics.packets_sent += len(pubacks)
            self._output.collect(encode_pubacks(pubacks))
            pubacks.clear()

    def _on_pubacks(self, packets: Iterable[Puback]) -> None:
        wrong = self._sender.pubacks(packets)
        if wrong is not None:
            raise _wrong_answer(wrong)

    def _on_pubrec(self, packet: Pubrec) -> None:
        if not self._sender.pubrec(packet.packet_id, packet.reason_code):
            raise _wrong_answer(packet)

    def _on_pubcomp(self, packet: Pubcomp) -> None:
        if not self._sender.pubcomp(packet.packet_id):
            raise _wrong_answer(packet)

    def _on_pubrel(self, packet: Pubrel) -> None:
        session, packet_id = self.session, packet.packet_id
        answer = encode(Pubcomp(packet_id), self._version)
        self._services.statistics.packets_sent += 1
        if self._validator is not None:
            self._validator.released(packet_id)
        # An unknown identifier was released before and the PUBCOMP was lost, or it is an error without consequences.
        if packet_id in session.inbound:
            del session.inbound[packet_id]
            if session.is_durable:
                self._saved.send(answer)
                return
        self._output.collect(answer)

    def _on_subscribe(self, packet: Subscribe) -> None:
        self._subscriptions.subscribe(packet)

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        self._subscriptions.unsubscribe(packet)

    def _on_pingreq(self, _packet: Pingreq) -> None:
        self._answer(_PINGRESP)

    def _on_disconnect(self, packet: Disconnect) -> None:
        expiry_interval_s = packet.properties.session_expiry_interval
        if expiry_interval_s is not None:
            if expiry_interval_s and not self._admission.terms.may_extend_expiry:
                raise ProtocolViolationError(
                    ReasonCode.PROTOCOL_ERROR, "DISCONNECT sets a session expiry interval, but that of CONNECT was 0"
                )
            expiry_interval_s = self._services.handshake.changed_expiry_s(expiry_interval_s)
        self.disconnect = ClientDisconnect(packet.reason_code != ReasonCode.NORMAL_DISCONNECTION, expiry_interval_s)

    def _on_auth(self, _packet: Auth) -> None:
        raise ProtocolViolationError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method")

    _HANDLERS: ClassVar[dict[type[Packet], Callable[[Any, Any], None]]] = {
        Pubrec: _on_pubrec,
        Pubrel: _on_pubrel,
        Pubcomp: _on_pubcomp,
        Subscribe: _on_subscribe,
        Unsubscribe: _on_unsubscribe,
        Pingreq: _on_pingreq,
        Disconnect: _on_disconnect,
        Auth: _on_auth,
    }


def decoded(
    decoder: Decoder, data: bytes | bytearray, statistics: BrokerStatistics
) -> tuple[list[Packet], MqttProtocolError | None]:
    """The packets that bytes complete, and the fault that comes after them."""
    fault: MqttProtocolError | None = None
    try:
        packets = decoder.receive(data)
    except MqttProtocolError as error:
        packets, fault = error.packets, error
    statistics.packets_received += len(packets)
    return packets, fault


def _aliases_of(terms: Terms) -> OutboundAliases:
    return OutboundAliases(terms.topic_alias_maximum) if terms.topic_alias_maximum else NO_ALIASES


def _wrong_answer(packet: Puback | Pubrec | Pubcomp) -> ProtocolViolationError:
    return ProtocolViolationError(
        ReasonCode.PROTOCOL_ERROR,
        f"{type(packet).__name__.upper()} for packet identifier {packet.packet_id}, which waits for another packet",
    )
