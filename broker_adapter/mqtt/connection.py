"""One client's connection, from its first byte to its last: packets in, answers out, and how it ends.

`_take` is the hot loop: it works on everything that one receive brought. What is received becomes of `incoming` and
`inbound`, what is sent comes from `outbound`; requests for subscriptions are `subscribing`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from broker_adapter.mqtt.codec import (
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MqttProtocolError,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    Version,
    encode,
)
from broker_adapter.mqtt.delivery import Inbox
from broker_adapter.mqtt.faults import ConversationError
from broker_adapter.mqtt.handshake import Admission, ConnectRefusedError
from broker_adapter.mqtt.inbound import Inbound, Received
from broker_adapter.mqtt.incoming import Incoming
from broker_adapter.mqtt.outbound import Outbound
from broker_adapter.mqtt.publish_encoding import PublishEncoder
from broker_adapter.mqtt.sending import Output, SavedFirst
from broker_adapter.mqtt.services import Services
from broker_adapter.mqtt.session import Session, SessionTakenOverError
from broker_adapter.mqtt.subscribing import Subscribing
from broker_adapter.mqtt.topic_aliases import OutboundAliases

_RECEIVED_AT_ONCE: Final = 256 * 1024
_KEEP_ALIVE_FACTOR: Final = 1.5
_LAST_WORDS_S: Final = 1.0
_GRACE_S: Final = 5.0

_PEER_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)

_PINGRESP: Final = encode(Pingresp(), Version.V5)

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


@attrs.frozen(slots=True)
class Ending:
    """How a connection ends.

    Attributes:
        publish_will: Unless the client took its leave.
        expiry_interval_s: How long the session is to be kept, where DISCONNECT said it anew.
        settles: What the client published before is waited for.
    """

    publish_will: bool = True
    expiry_interval_s: int | None = None
    settles: bool = True


_TAKEN_OVER: Final = Ending(publish_will=False, settles=False)
_CRASHED: Final = Ending(settles=False)


class Connection:
    """State of one connection.

    Attributes:
        session: The client's session, once it was let in.
        client_id: Empty before.
    """

    def __init__(self, stream: trio.abc.Stream, services: Services, *, peer: str, transport: str) -> None:
        self._stream = stream
        self._services = services
        self._peer = peer
        self._transport = transport
        self._decoder = Decoder(of="client", max_packet_bytes=services.limits.max_packet_bytes)
        self._tasks: set[trio.CancelScope] = set()
        self._receiving = trio.CancelScope()
        self._ending: Ending | None = None
        self._heard_at_s = trio.current_time()
        self._silence_s = services.limits.connect_timeout_s
        self._is_reading = True
        self._output = Output(
            stream,
            self.start,
            limit_bytes=services.limits.max_output_bytes,
            stalled_after_s=services.limits.stalled_after_s,
            on_room=self.pump,
            on_broken=self._broken,
            statistics=services.statistics,
        )
        self._admission: Admission | None = None
        self._inbox: Inbox | None = None
        self._outbound: Outbound | None = None
        self._saved: SavedFirst | None = None
        self._subscribing: Subscribing | None = None
        self._incoming: Incoming | None = None
        self._inbound: Inbound | None = None
        self.session: Session | None = None
        self.client_id = ""
        self.version = Version.V311

    # Life

    async def run(self) -> None:
        """Serve the client until it goes, breaks the rules, or `end` is called."""
        try:
            await self._serve()
            await self._finish()
        except trio.Cancelled:
            with trio.move_on_after(_GRACE_S, shield=True):
                self.end(ReasonCode.SERVER_SHUTTING_DOWN)
                await self._finish()
            raise

    async def _serve(self) -> None:
        try:
            with self._receiving:
                await self._receive()
        except MqttProtocolError as error:
            self._log("protocol error", error=str(error))
            self._end_with(error.answer)
        except ConversationError as error:
            self._log("protocol error", error=str(error))
            self.end(error.reason_code)
        except ConnectRefusedError as error:
            self._log("refused", error=str(error), reason=error.reason_code.name)
            self._end_with(encode(Connack(reason_code=error.reason_code), self.version) if error.is_told else b"")
        except _PEER_GONE:
            self._end_with(b"")
        except Exception:
            # A fault of the broker's own must not end the other connections.
            log.exception("connection failed", client=self.client_id, peer=self._peer)
            self.end(ReasonCode.UNSPECIFIED_ERROR, _CRASHED)

    def end(self, reason_code: ReasonCode, ending: Ending | None = None) -> None:
        """End the connection; a client of MQTT 5 is told why. The first call decides."""
        answer = b""
        if self.session is not None and self.version is Version.V5:
            answer = encode(Disconnect(reason_code), self.version)
        self._end_with(answer, ending)

    def _end_with(self, last_words: bytes, ending: Ending | None = None) -> None:
        if self._ending is not None:
            return
        self._ending = ending or Ending()
        if self.session is not None:
            self._services.statistics.client_disconnected()
        if self._outbound is not None:
            self._outbound.stop()
        if last_words:
            self._output.send(last_words)
            self._output.flush()
        self._receiving.cancel()

    def fenced(self) -> None:
        """Another connection, here or at another broker, has the session now."""
        self.end(ReasonCode.SESSION_TAKEN_OVER, _TAKEN_OVER)

    def _broken(self) -> None:
        self._end_with(b"")

    async def _finish(self) -> None:
        """Let what is under way come to its end, and give everything back."""
        ending = self._ending
        assert ending is not None
        if self._inbound is not None and ending.settles:
            with trio.move_on_after(self._services.limits.settle_timeout_s):
                await self._inbound.settle()
        if self._inbox is not None:
            if self.session is not None:
                self.session.advance(self._inbox.safe_lsn)
            self._services.distributor.close_inbox(self._inbox)
            self._inbox = None
        with trio.move_on_after(_LAST_WORDS_S):
            await self._output.drained()
        for scope in self._tasks:
            scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_stream)
            if self.session is not None:
                await self._services.sessions.close(
                    self.session, publish_will=ending.publish_will, expiry_interval_s=ending.expiry_interval_s
                )

    async def _close_stream(self) -> None:
        try:
            await self._stream.aclose()
        except _PEER_GONE:
            # It was gone before us.
            return

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task that ends with the connection at the latest, and ends the connection if it fails."""
        scope = trio.CancelScope()
        self._tasks.add(scope)
        self._services.tasks.start_soon(self._run_task, scope, work)

    async def _run_task(self, scope: trio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with scope:
                await work()
        except SessionTakenOverError:
            self.fenced()
        except Exception:
            log.exception("connection failed", client=self.client_id, peer=self._peer)
            self.end(ReasonCode.UNSPECIFIED_ERROR, _CRASHED)
        finally:
            self._tasks.discard(scope)

    def check_silence(self, now_s: float) -> None:
        """End the connection if nothing was heard of the client for too long."""
        if self._is_reading and now_s - self._heard_at_s > self._silence_s:
            self._log("silent for too long", limit_s=self._silence_s)
            self.end(ReasonCode.KEEP_ALIVE_TIMEOUT)

    def save_position(self) -> None:
        """Have the session's position stored before long, if it has moved."""
        outbound, session = self._outbound, self.session
        if outbound is not None and outbound.took and session is not None and session.is_durable:
            outbound.took = False
            self._services.sessions.save_soon(session)

    def pump(self) -> None:
        """Send messages that wait, as far as that goes."""
        if self._outbound is not None:
            self._outbound.pump()

    def _log(self, event: str, **details: object) -> None:
        log.info(event, client=self.client_id, peer=self._peer, transport=self._transport, **details)

    # Receiving

    async def _receive(self) -> None:
        stream, statistics = self._stream, self._services.statistics
        while self._ending is None:
            data = await stream.receive_some(_RECEIVED_AT_ONCE)
            if not data:
                self._end_with(b"")
                return
            self._heard_at_s = trio.current_time()
            statistics.bytes_received += len(data)
            fault: MqttProtocolError | None = None
            try:
                packets = self._decoder.receive(data)
            except MqttProtocolError as error:
                packets, fault = error.packets, error
            statistics.packets_received += len(packets)
            if self.session is None and packets:
                await self._greet(packets.pop(0))
            if packets:
                self._take(packets)
            if fault is not None:
                raise fault
            if not self._has_room:
                self._is_reading = False
                await self._wait_for_room()
                self._heard_at_s = trio.current_time()
                self._is_reading = True

    @property
    def _has_room(self) -> bool:
        return (
            self._output.has_room
            and (self._inbound is None or self._inbound.has_room)
            and (self._subscribing is None or self._subscribing.has_room)
        )

    async def _wait_for_room(self) -> None:
        while not self._has_room:
            await self._output.wait_for_room()
            if self._inbound is not None:
                await self._inbound.wait_for_room()
            if self._subscribing is not None:
                await self._subscribing.wait_for_room()

    async def _greet(self, first: Packet) -> None:
        if not isinstance(first, Connect):
            raise ConnectRefusedError(
                ReasonCode.PROTOCOL_ERROR, f"the first packet is {type(first).__name__}, not Connect", is_told=False
            )
        services = self._services
        self.version = first.version
        self._is_reading = False
        admission = await services.handshake.admit(first, self._peer)
        self._is_reading = True
        self._heard_at_s = trio.current_time()
        session, terms = admission.session, admission.terms
        self._admission = admission
        self.session = session
        self.client_id = session.client_id
        if self._ending is None:
            services.statistics.client_connected()
        keep_alive_s = terms.keep_alive_s
        self._silence_s = keep_alive_s * _KEEP_ALIVE_FACTOR if keep_alive_s else math.inf
        session.out.receive_maximum = terms.receive_maximum
        position_lsn = session.position_lsn if admission.connack.session_present else None
        self._inbox = services.distributor.open_inbox(
            session.client_id, position_lsn=position_lsn, on_ready=lambda: services.ready(self)
        )
        self._saved = SavedFirst(lambda: services.sessions.save(session), self._output, self.start)
        self._outbound = Outbound(
            session,
            self._inbox,
            self._output,
            self._saved,
            PublishEncoder(terms.version, OutboundAliases(terms.topic_alias_maximum), terms.max_packet_bytes),
            adapter=services.adapter,
            retained=services.retained,
            clock=services.clock,
            start=self.start,
            statistics=services.statistics,
        )
        self._subscribing = Subscribing(
            session,
            self._inbox,
            self._outbound,
            self._output,
            principal=admission.principal,
            access=services.access,
            distributor=services.distributor,
            sessions=services.sessions,
            retained=services.retained,
            limits=services.limits,
            clock=services.clock,
            start=self.start,
            system_messages=services.system_messages,
        )
        services.admitted(self)
        if not session.is_open:
            self.fenced()
            return
        self._answer(encode(admission.connack, self.version))
        self._output.flush()
        self._subscribing.restore()
        self._outbound.pump()

    def _answer(self, data: bytes) -> None:
        self._services.statistics.packets_sent += 1
        self._output.send(data)

    def _take(self, packets: list[Packet]) -> None:
        """Act on packets, in order."""
        incoming = self._incoming
        received: list[Received] = []
        try:
            for packet in packets:
                kind = type(packet)
                if kind is Publish:
                    if incoming is None:
                        incoming = self._begin_publishing()
                    one = incoming.take(packet)
                    if one is not None:
                        received.append(one)
                else:
                    _HANDLERS[kind](self, packet)
                    if self._ending is not None:
                        break
        finally:
            if received:
                assert self._inbound is not None
                self._inbound.submit(received)
        if self._ending is None:
            self.pump()
        self._output.flush()

    def _begin_publishing(self) -> Incoming:
        admission, session, services = self._admission, self.session, self._services
        assert admission is not None
        assert session is not None
        self._inbound = Inbound(
            services.publisher,
            commit=lambda changes, packet_ids: services.sessions.commit(session, changes, received=packet_ids),
            on_outcomes=self._acknowledge,
            start=self.start,
        )
        self._incoming = Incoming(
            session,
            self._inbound.storing,
            version=self.version,
            principal=admission.principal,
            access=services.access,
            limits=services.limits,
            clock=services.clock,
            statistics=services.statistics,
        )
        return self._incoming

    def _acknowledge(self, outcomes: list[Received]) -> None:
        """Answer publishes whose outcome is known."""
        incoming = self._incoming
        assert incoming is not None
        for received in outcomes:
            if not received.qos:
                continue
            reason_code = received.reason_code
            assert reason_code is not None
            incoming.answered(received)
            if reason_code >= ReasonCode.UNSPECIFIED_ERROR and self.version is Version.V311:
                # It cannot be told. Without an answer and a connection it sends the message again, when it is back.
                self.end(ReasonCode.UNSPECIFIED_ERROR)
                return
            answer = Puback if received.qos == 1 else Pubrec
            self._answer(encode(answer(received.packet_id, reason_code), self.version))
        self._output.flush()

    # Packets other than PUBLISH

    def _on_puback(self, packet: Puback) -> None:
        assert self._outbound is not None
        if not self._outbound.puback(packet.packet_id):
            self._wrong_answer("PUBACK", packet.packet_id)

    def _on_pubrec(self, packet: Pubrec) -> None:
        assert self._outbound is not None
        if not self._outbound.pubrec(packet.packet_id, packet.reason_code):
            self._wrong_answer("PUBREC", packet.packet_id)

    def _on_pubcomp(self, packet: Pubcomp) -> None:
        assert self._outbound is not None
        if not self._outbound.pubcomp(packet.packet_id):
            self._wrong_answer("PUBCOMP", packet.packet_id)

    def _wrong_answer(self, name: str, packet_id: int) -> None:
        raise ConversationError(
            ReasonCode.PROTOCOL_ERROR, f"{name} for packet identifier {packet_id}, which waits for another answer"
        )

    def _on_pubrel(self, packet: Pubrel) -> None:
        session = self.session
        assert session is not None
        assert self._saved is not None
        answer = encode(Pubcomp(packet.packet_id), self.version)
        self._services.statistics.packets_sent += 1
        if self._incoming is not None:
            self._incoming.released(packet.packet_id)
        if packet.packet_id not in session.inbound:
            # It was let go before, and the answer was lost; or the client is mistaken, which hurts nobody.
            self._output.send(answer)
            return
        session.inbound.discard(packet.packet_id)
        if session.is_durable:
            self._saved.send(answer)
        else:
            self._output.send(answer)

    def _on_subscribe(self, packet: Subscribe) -> None:
        assert self._subscribing is not None
        if any(one.no_local and one.topic_filter.startswith("$share/") for one in packet.subscriptions):
            raise ConversationError(ReasonCode.PROTOCOL_ERROR, "no-local was asked of a shared subscription")
        self._subscribing.subscribe(packet)

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        assert self._subscribing is not None
        self._subscribing.unsubscribe(packet)

    def _on_pingreq(self, _packet: Pingreq) -> None:
        self._answer(_PINGRESP)

    def _on_disconnect(self, packet: Disconnect) -> None:
        assert self._admission is not None
        expiry_interval_s = packet.properties.session_expiry_interval
        if expiry_interval_s is not None:
            if expiry_interval_s and not self._admission.terms.may_extend_expiry:
                raise ConversationError(
                    ReasonCode.PROTOCOL_ERROR, "DISCONNECT wants a session to be kept that CONNECT did not"
                )
            expiry_interval_s = self._services.handshake.changed_expiry_s(expiry_interval_s)
        is_normal = packet.reason_code == ReasonCode.NORMAL_DISCONNECTION
        self._end_with(b"", Ending(publish_will=not is_normal, expiry_interval_s=expiry_interval_s))

    def _on_connect(self, _packet: Connect) -> None:
        raise ConversationError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")

    def _on_auth(self, _packet: Auth) -> None:
        raise ConversationError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method")


_HANDLERS: Final[dict[type[Packet], Callable[[Connection, Packet], None]]] = {
    Puback: Connection._on_puback,
    Pubrec: Connection._on_pubrec,
    Pubrel: Connection._on_pubrel,
    Pubcomp: Connection._on_pubcomp,
    Subscribe: Connection._on_subscribe,
    Unsubscribe: Connection._on_unsubscribe,
    Pingreq: Connection._on_pingreq,
    Disconnect: Connection._on_disconnect,
    Connect: Connection._on_connect,
    Auth: Connection._on_auth,
}
