"""A client as the standard wants it: it keeps its session while it has no connection, and goes on at another broker.

Publishing and receiving are in one: what it sends and what it gets goes into the ledger. Nothing here knows of brokers
that die; a connection ends, for whatever reason, and the next one is opened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs
import trio

from tests.mqtt.cluster import packets
from tests.mqtt.cluster.ledger import Ledger, Stream
from tests.mqtt.cluster.packets import Packet, Reader

ANSWER_TIMEOUT_S = 5.0
PING_INTERVAL_S = 1.0
PAUSE_S = (0.05, 0.3)
WINDOW = 16
RECEIVE_BYTES = 65_536
FOREIGN = b"foreign"
"""Payload of what no client has sent. Clients of MQTT 3.1.1 may get it."""


class BrokenConnectionError(Exception):
    """This connection is of no use any more."""


LOST = (OSError, BrokenConnectionError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


@attrs.define
class Outgoing:
    """A publish that is not through.

    Attributes:
        delay_s: Seconds after which a broker is to publish it; 0 for at once.
        expiry_s: Seconds after which it need not be delivered any more; 0 for never.
        is_received: The broker has said PUBREC.
        sent_on: The newest connection on which it was sent.
    """

    stream: Stream
    number: int
    is_retained: bool
    delay_s: int = 0
    expiry_s: int = 0
    is_received: bool = False
    sent_on: trio.SocketStream | None = None

    def encoded(self, version: int, packet_id: int, *, dup: bool) -> bytes:
        """PUBLISH, or PUBREL if the broker has it."""
        if self.is_received:
            return packets.answer(packets.PUBREL, packet_id)
        payload = f"{self.stream.publisher} {self.stream.qos} {self.number}".encode()
        stream = self.stream
        topic = f"$delayed/{self.delay_s}/{stream.topic}" if self.delay_s else stream.topic
        return packets.publish(
            version, packet_id, topic, payload, stream.qos, dup=dup, retain=self.is_retained, expiry_s=self.expiry_s
        )


class Client:
    """One client with a durable session.

    Args:
        ports: Brokers it may go to.
        ledger: Where it enters what it sends and gets.
        subscriber: Name in the ledger under which it receives; empty if it does not subscribe.
        subscription: Its topic filter and QoS.
        receive_maximum: How much may be under way to it, for MQTT 5; 0 for the standard's 65,535.
        sets_dup: Whether it sets DUP when it sends a publish again, which some clients forget.
        breaks_after: How many messages it acknowledges on its first connection before it loses that; None for any.
    """

    def __init__(
        self,
        client_id: str,
        version: int,
        ports: Sequence[int],
        ledger: Ledger,
        rng: random.Random,
        *,
        subscriber: str = "",
        subscription: tuple[str, int] = ("", 0),
        receive_maximum: int = 0,
        sets_dup: bool = True,
        breaks_after: int | None = None,
    ) -> None:
        self.client_id = client_id
        self.connections = 0
        self.is_subscribed = trio.Event()
        self._version = version
        self._ports = ports
        self._ledger = ledger
        self._rng = rng
        self._subscriber = subscriber
        self._subscription = subscription
        self._receive_maximum = receive_maximum
        self._sets_dup = sets_dup
        self._left_to_take = breaks_after
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: set[int] = set()
        self._next_id = 1
        self._moved = trio.Event()
        self._has_asked = False
        self._stream: trio.SocketStream | None = None
        self._sending = trio.Lock()
        self._connection = trio.CancelScope()
        self._left_open: list[trio.SocketStream] = []
        self._handlers: dict[int, Callable[[Packet], bytes]] = {
            packets.PUBLISH: self._on_publish,
            packets.PUBACK: self._on_puback,
            packets.PUBREC: self._on_pubrec,
            packets.PUBREL: self._on_pubrel,
            packets.PUBCOMP: self._on_pubcomp,
        }

    @property
    def is_idle(self) -> bool:
        """Whether everything it has sent is through."""
        return not self._outgoing

    async def run(self) -> None:
        """Be connected, somewhere, until cancelled."""
        try:
            while True:
                try:
                    await self._be_connected(self._rng.choice(self._ports))
                except* LOST:
                    self._stream = None
                await trio.sleep(self._rng.uniform(*PAUSE_S))
        finally:
            for stream in self._left_open:
                stream.socket.close()

    async def publish(
        self,
        stream: Stream,
        *,
        is_retained: bool = False,
        delay_s: int = 0,
        may_be_lost: bool = False,
        expiry_s: int = 0,
    ) -> None:
        """Hand over the next message of a stream; waits while too many are not through."""
        while len(self._outgoing) >= WINDOW:
            await self._moved.wait()
        packet_id = self._free_id()
        number = self._ledger.send(
            stream,
            is_retained=is_retained,
            is_delayed=bool(delay_s),
            may_be_lost=may_be_lost,
            expiry_s=expiry_s if self._version == packets.V5 else 0,
        )
        outgoing = Outgoing(stream, number, is_retained, delay_s, expiry_s if self._version == packets.V5 else 0)
        self._outgoing[packet_id] = outgoing
        async with self._sending:
            # On a connection that was opened while this waited it was sent already.
            if self._stream is not None and outgoing.sent_on is not self._stream:
                outgoing.sent_on = self._stream
                self._ledger.write(stream, number)
                await self._send_now(self._stream, outgoing.encoded(self._version, packet_id, dup=False))

    async def cut(self) -> None:
        """Lose the connection."""
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)

    def leave(self) -> None:
        """Continue over another connection while this one stays open: the broker there is not notified."""
        if self._stream is not None:
            self._left_open.append(self._stream)
            self._stream = None
            self._connection.cancel()

    async def _be_connected(self, port: int) -> None:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        with trio.CancelScope() as self._connection:
            try:
                await self._use(stream)
            finally:
                if stream not in self._left_open:
                    await trio.aclose_forcefully(stream)

    async def _use(self, stream: trio.SocketStream) -> None:
        reader = Reader(self._version)
        unread = await self._open_session(stream, reader)
        # What is sent from now on comes after what is sent again: nothing may pass it.
        async with self._sending:
            self._stream = stream
            again: list[bytes] = []
            for packet_id, outgoing in self._outgoing.items():
                again.append(
                    outgoing.encoded(self._version, packet_id, dup=self._sets_dup and outgoing.sent_on is not None)
                )
                outgoing.sent_on = stream
                if not outgoing.is_received:
                    self._ledger.write(outgoing.stream, outgoing.number)
            await self._send_now(stream, b"".join(again))
        await self._handle(unread)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ping)
            while True:
                await self._handle(reader.feed(await self._receive(stream)))

    async def _ping(self) -> None:
        """Ask for a sign of life, so that a broker that is frozen is left."""
        while True:
            await trio.sleep(PING_INTERVAL_S)
            await self._send(packets.pingreq())

    async def _open_session(self, stream: trio.SocketStream, reader: Reader) -> list[Packet]:
        """CONNECT and, for a new session, SUBSCRIBE; the packets that came after the answers."""
        # A SUBSCRIBE whose answer was lost is repeated in a new session, where there is MQTT 5: in its own what is
        # retained comes a second time.
        is_asked_again = self._has_asked and not self.is_subscribed.is_set()
        hello = packets.connect(
            self._version,
            self.client_id,
            clean_start=is_asked_again and self._version == packets.V5,
            is_durable=True,
            receive_maximum=self._receive_maximum,
        )
        connack, *rest = await self._answer(stream, reader, hello)
        if connack.kind != packets.CONNACK or connack.code:
            raise BrokenConnectionError(f"refused: {connack}")
        if self.connections and not connack.session_present and not is_asked_again:
            self._ledger.lose_session(self.client_id)
            self._incoming.clear()
        self.connections += 1
        if self._subscriber and not self.is_subscribed.is_set():
            if is_asked_again and connack.session_present:
                self._ledger.ask_again(self._subscriber)
            self._has_asked = True
            suback, *rest = await self._answer(
                stream, reader, packets.subscribe(self._version, 65_535, *self._subscription)
            )
            if suback.kind != packets.SUBACK or suback.code != self._subscription[1]:
                raise BrokenConnectionError(f"not subscribed: {suback}")
            self._ledger.subscribed(self._subscriber)
            self.is_subscribed.set()
            if self._left_to_take == 0:
                self._break()
        return rest

    def _break(self) -> None:
        self._left_to_take = None
        raise BrokenConnectionError("as it was asked to")

    async def _answer(self, stream: trio.SocketStream, reader: Reader, request: bytes) -> list[Packet]:
        found: list[Packet] = []
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            await stream.send_all(request)
            while not found:
                found = reader.feed(await self._receive(stream))
        if not found:
            raise BrokenConnectionError("no answer")
        return found

    async def _receive(self, stream: trio.SocketStream) -> bytes:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            data = bytes(await stream.receive_some(RECEIVE_BYTES))
        if not data:
            raise BrokenConnectionError("the broker has closed")
        return data

    async def _handle(self, received: list[Packet]) -> None:
        answers = b"".join(self._handlers[packet.kind](packet) for packet in received if packet.kind in self._handlers)
        if answers:
            await self._send(answers)
        if self._left_to_take is not None and self.is_subscribed.is_set():
            self._left_to_take -= sum(packet.kind == packets.PUBLISH for packet in received)
            if self._left_to_take <= 0:
                self._break()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            if self._stream is not None:
                await self._send_now(self._stream, data)

    async def _send_now(self, stream: trio.SocketStream, data: bytes) -> None:
        try:
            await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The receiver notices too, and connects again.
            self._stream = None

    def _on_publish(self, packet: Packet) -> bytes:
        if packet.qos < 2:
            self._enter(packet)
            return packets.answer(packets.PUBACK, packet.packet_id) if packet.qos else b""
        if packet.packet_id not in self._incoming:
            self._incoming.add(packet.packet_id)
            self._enter(packet)
        return packets.answer(packets.PUBREC, packet.packet_id)

    def _on_pubrel(self, packet: Packet) -> bytes:
        self._incoming.discard(packet.packet_id)
        return packets.answer(packets.PUBCOMP, packet.packet_id)

    def _on_puback(self, packet: Packet) -> bytes:
        self._take_over(packet, self._outgoing.pop(packet.packet_id, None))
        self._move()
        return b""

    def _on_pubrec(self, packet: Packet) -> bytes:
        outgoing = self._outgoing.get(packet.packet_id)
        if packet.code >= 0x80:
            self._outgoing.pop(packet.packet_id, None)
        self._take_over(packet, outgoing)
        if outgoing is None or packet.code >= 0x80:
            return b""
        outgoing.is_received = True
        return packets.answer(packets.PUBREL, packet.packet_id)

    def _on_pubcomp(self, packet: Packet) -> bytes:
        self._outgoing.pop(packet.packet_id, None)
        self._move()
        return b""

    def _take_over(self, packet: Packet, outgoing: Outgoing | None) -> None:
        if outgoing is not None and packet.code < 0x80:
            self._ledger.acknowledge(outgoing.stream, outgoing.number)
        elif outgoing is not None:
            self._ledger.refuse(f"{self.client_id} (0x{packet.code:02x})")

    def _enter(self, packet: Packet) -> None:
        if packet.payload == FOREIGN:
            return
        publisher, qos, number = packet.payload.decode().split()
        if self._subscriber:
            self._ledger.receive(
                self._subscriber,
                Stream(publisher, packet.topic, int(qos)),
                int(number),
                connection=f"{self.client_id}/{self.connections}",
                dup=packet.dup,
            )

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _free_id(self) -> int:
        while self._next_id in self._outgoing:
            self._next_id = self._next_id % 60_000 + 1
        found, self._next_id = self._next_id, self._next_id % 60_000 + 1
        return found
