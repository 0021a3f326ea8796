"""One connection to another broker: sending within its window, handling its answers, keep-alive.

It is opened by `dial` and lives until an error; then all deliveries in progress on it fail.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

import attrs
import trio

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, ReasonCode, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish
from broker_adapter.sinks.errors import BatchRefusedError, SinkUnavailableError, innermost_reason
from broker_adapter.sinks.mqtt.delivery import Delivery, Message
from broker_adapter.sinks.mqtt.reasons import (
    BLAMES_MESSAGE,
    REFUSES_MESSAGE,
    PoisonMessageDetector,
    advice,
    reason_text,
)

_MAX_PACKET_ID: Final = 65_535
_MAX_WINDOW: Final = 4_096
_SEND_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen(slots=True)
class Peer:
    """Another broker.

    Attributes:
        address: Address for messages.
        tls: TLS context; None for no TLS.
    """

    address: str
    host: str
    port: int
    tls: ssl.SSLContext | None


class BrokerConnection:
    """A connection that the broker has accepted.

    Args:
        connack: Its CONNACK.
        keep_alive_s: Keep-alive interval requested by the client, in seconds.
        retain: Whether messages are retained.
        detector: Knowledge from earlier connections.

    Attributes:
        lost: Why it cannot be used any more; None while it can.
        is_lost_over_message: The broker ended it because of a message, while only one batch was in progress: a new
            connection may be opened without counting an outage, because no later batch can be overtaken.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        decoder: Decoder,
        peer: Peer,
        connack: Connack,
        *,
        keep_alive_s: int,
        retain: bool,
        detector: PoisonMessageDetector,
    ) -> None:
        assert decoder.version is not None
        self.lost: SinkUnavailableError | None = None
        self.is_lost_over_message = False
        said = connack.properties
        self._stream = stream
        self._decoder = decoder
        self._version = decoder.version
        self._address = peer.address
        self._retain = retain
        self._detector = detector
        self._window_count = min(said.receive_maximum or _MAX_PACKET_ID, _MAX_WINDOW)
        self._max_packet_bytes = said.maximum_packet_size
        asked_s = said.server_keep_alive if said.server_keep_alive is not None else keep_alive_s
        # Zero would mean no keep-alive; a dead peer has to be detected nevertheless.
        self._ping_interval_s = (asked_s or keep_alive_s) / 2
        self._unsent: deque[Delivery] = deque()
        self._unfinished: deque[Delivery] = deque()
        self._unconfirmed: dict[int, tuple[Delivery, Message]] = {}
        self._refused_last: tuple[Delivery, Message] | None = None
        self._last_packet_id = 0
        self._pings: deque[trio.Event] = deque()
        self._pings_to_send = 0
        self._wakeup = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Send and receive until the connection is lost, then close it."""
        try:
            with self._scope:
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._send)
                    tasks.start_soon(self._receive)
                    tasks.start_soon(self._keep_alive)
        finally:
            await trio.aclose_forcefully(self._stream)

    def deliver_nowait(self, delivery: Delivery) -> None:
        """Send a batch after earlier ones.

        Raises:
            SinkUnavailableError: The connection is lost.
        """
        if self.lost is not None:
            raise self.lost
        if delivery.is_sent:
            return
        while self._unfinished and self._unfinished[0].finished.is_set():
            self._unfinished.popleft()
        self._unsent.append(delivery)
        self._unfinished.append(delivery)
        self._wakeup.set()

    async def ping(self) -> None:
        """Send PINGREQ, and wait for the answer.

        Raises:
            SinkUnavailableError: The connection is lost.
        """
        if self.lost is None:
            answered = trio.Event()
            self._pings.append(answered)
            self._pings_to_send += 1
            self._wakeup.set()
            await answered.wait()
        if self.lost is not None:
            raise self.lost

    def lose(self, reason: str) -> None:
        """Fail all deliveries in progress, and end `run`."""
        if self.lost is not None:
            return
        self.lost = SinkUnavailableError(f"{self._address}: {reason}")
        for delivery in self._unfinished:
            delivery.fail(self.lost)
        for answered in self._pings:
            answered.set()
        self._unfinished.clear()
        self._unsent.clear()
        self._unconfirmed.clear()
        self._pings.clear()
        self._scope.cancel()

    # Sending

    async def _send(self) -> None:
        try:
            while True:
                data = self._next_chunk()
                if data:
                    await self._stream.send_all(data)
                else:
                    self._wakeup = trio.Event()
                    await self._wakeup.wait()
        except _BROKEN as error:
            self.lose(f"the connection broke: {innermost_reason(error)}")

    def _next_chunk(self) -> bytes:
        """The packets that may be sent now; empty if there are none, or no room in the broker's window."""
        packets = [encode(Pingreq(), self._version)] * self._pings_to_send
        self._pings_to_send = 0
        size_bytes = 0
        while self._unsent and len(self._unconfirmed) < self._window_count and size_bytes < _SEND_BYTES:
            delivery = self._unsent[0]
            message = delivery.messages[delivery.next_message]
            if self._unconfirmed and self._detector.must_go_alone(message.offset):
                break
            delivery.next_message += 1
            if delivery.is_sent:
                self._unsent.popleft()
            packet_id = self._free_packet_id()
            publish = Publish(message.topic, message.payload, 1, self._retain, packet_id=packet_id)
            try:
                packet = encode(publish, self._version)
            except ValueError as error:
                delivery.refuse(message, str(error))
                continue
            if self._max_packet_bytes is not None and len(packet) > self._max_packet_bytes:
                delivery.refuse(
                    message, f"as a packet it has {len(packet)} bytes, the broker accepts {self._max_packet_bytes}"
                )
                continue
            self._unconfirmed[packet_id] = delivery, message
            packets.append(packet)
            size_bytes += len(packet)
        return b"".join(packets)

    def _free_packet_id(self) -> int:
        packet_id = self._last_packet_id
        while True:
            packet_id = packet_id % _MAX_PACKET_ID + 1
            if packet_id not in self._unconfirmed:
                self._last_packet_id = packet_id
                return packet_id

    # Receiving

    async def _receive(self) -> None:
        try:
            while data := await self._stream.receive_some(_RECEIVE_BYTES):
                for packet in self._decoder.receive(data):
                    self._take(packet)
                self._wakeup.set()
            self._lose_by_broker("the broker closed the connection", blames_message=False)
        except MqttProtocolError as error:
            self.lose(f"the broker breaks the MQTT protocol: {error}")
        except _BROKEN as error:
            self._lose_by_broker(f"the connection broke: {innermost_reason(error)}", blames_message=False)

    def _take(self, packet: Packet) -> None:
        handle = _HANDLERS.get(type(packet))
        if handle is None:
            self.lose(f"the broker sent {type(packet).__name__.upper()}, which is not expected")
        else:
            handle(self, packet)

    def _take_puback(self, packet: Puback) -> None:
        found = self._unconfirmed.pop(packet.packet_id, None)
        if found is None:
            self.lose(f"the broker confirms packet {packet.packet_id}, which was not sent")
            return
        delivery, message = found
        if packet.reason_code < ReasonCode.UNSPECIFIED_ERROR:
            self._refused_last = None
            delivery.confirm()
            return
        reason = reason_text(packet.reason_code, packet.properties.reason_string)
        if packet.reason_code in REFUSES_MESSAGE:
            self._refused_last = delivery, message
            delivery.refuse(message, reason)
        else:
            # Messages in progress after it must not overtake it.
            self.lose(f"the broker cannot accept messages now: {reason}{advice(packet.reason_code)}")

    def _take_pingresp(self, _packet: Pingresp) -> None:
        if self._pings:
            self._pings.popleft().set()

    def _take_disconnect(self, packet: Disconnect) -> None:
        reason = reason_text(packet.reason_code, packet.properties.reason_string)
        self._lose_by_broker(
            f"the broker closed the connection: {reason}{advice(packet.reason_code)}",
            blames_message=packet.reason_code in BLAMES_MESSAGE,
        )

    def _lose_by_broker(self, reason: str, *, blames_message: bool) -> None:
        """Like `lose`, but a message may be the cause: counted as an outage, it would be sent for ever.

        Some brokers close right after the PUBACK that refuses a message (mosquitto 2.0.11 does), some send a DISCONNECT
        that says that a message was the reason, and some only close.
        """
        if self.lost is not None:
            return
        under_way = list(self._unconfirmed.values())
        is_surely_first = self._detector.closed([message.offset for _, message in under_way])
        blamed = self._refused_last
        if blamed is None and under_way and (blames_message or is_surely_first):
            blamed = under_way[0]
        if blamed is not None:
            delivery, message = blamed
            self.is_lost_over_message = sum(not each.finished.is_set() for each in self._unfinished) <= 1
            is_known = self._refused_last is not None or len(under_way) == 1
            delivery.fail(
                BatchRefusedError(
                    f"{self._address} does not accept a message: {reason}", index=message.index if is_known else None
                )
            )
        self.lose(reason)

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(self._ping_interval_s)
            with trio.move_on_after(self._ping_interval_s) as waiting:
                try:
                    await self.ping()
                except SinkUnavailableError:
                    return
            if waiting.cancelled_caught:
                self.lose(f"the broker has not answered for {self._ping_interval_s:g} s")


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Puback: BrokerConnection._take_puback,  # noqa: SLF001 - a table of the class's own methods
    Pingresp: BrokerConnection._take_pingresp,  # noqa: SLF001
    Disconnect: BrokerConnection._take_disconnect,  # noqa: SLF001
}


async def dial(peer: Peer, connect: Connect, detector: PoisonMessageDetector, *, retain: bool) -> BrokerConnection:
    """Connect to a broker. The caller must `run` the result.

    Raises:
        SinkUnavailableError: The broker cannot be reached, refuses the sink, or accepts no QoS 1.
    """
    try:
        stream: trio.abc.Stream = await trio.open_tcp_stream(peer.host, peer.port)
    except OSError as error:
        raise SinkUnavailableError(f"{peer.address} cannot be reached: {innermost_reason(error)}") from error
    try:
        if peer.tls is not None:
            stream = trio.SSLStream(stream, peer.tls, server_hostname=peer.host, https_compatible=True)
            await stream.do_handshake()
        await stream.send_all(encode(connect, connect.version))
        decoder = Decoder(of="server", version=connect.version)
        connack = await _connack(stream, decoder, peer)
        _check_connack(connack, peer, retain=retain)
    except MqttProtocolError as error:
        await trio.aclose_forcefully(stream)
        raise SinkUnavailableError(f"{peer.address} breaks the MQTT protocol: {error}") from error
    except _BROKEN as error:
        await trio.aclose_forcefully(stream)
        raise SinkUnavailableError(f"{peer.address} broke the connection: {innermost_reason(error)}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return BrokerConnection(
        stream, decoder, peer, connack, keep_alive_s=connect.keep_alive_s, retain=retain, detector=detector
    )


async def _connack(stream: trio.abc.Stream, decoder: Decoder, peer: Peer) -> Connack:
    while data := await stream.receive_some(_RECEIVE_BYTES):
        for packet in decoder.receive(data):
            if not isinstance(packet, Connack):
                _unavailable(peer, f"answered CONNECT with {type(packet).__name__.upper()}")
            # No packet can follow: nothing else was sent to the broker.
            return packet
    return _unavailable(peer, "closed the connection instead of answering CONNECT")


def _check_connack(connack: Connack, peer: Peer, *, retain: bool) -> None:
    if connack.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        reason = reason_text(connack.reason_code, connack.properties.reason_string)
        _unavailable(peer, f"refuses the sink: {reason}{advice(connack.reason_code)}")
    if connack.properties.maximum_qos == 0:
        _unavailable(peer, "accepts only QoS 0, without acknowledgements; it cannot be a sink")
    if retain and connack.properties.retain_available == 0:
        _unavailable(peer, "retains no messages; set retain to false")


def _unavailable(peer: Peer, reason: str) -> NoReturn:
    raise SinkUnavailableError(f"{peer.address} {reason}")
