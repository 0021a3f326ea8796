"""A broker in this process and small clients for it, built on the codec."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.broker.broker import Broker
from broker_adapter.mqtt.transport.streams import TcpStream
from broker_adapter.mqtt_codec import EMPTY, Decoder, Packet, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.patience import PATIENCE_S

Kind = TypeVar("Kind", bound=Packet)


class AllowAll:
    """Allows everything to every client."""

    changes = 0

    async def authenticate(
        self, client_id: str, username: str | None, password: bytes | None, peer: str, certificate_name: str = ""
    ) -> Principal | None:
        return Principal(client_id, username or "")

    def may_use_client_id(self, principal: Principal) -> bool:
        return True

    def may_open_session(self, principal: Principal, user: str) -> bool:
        return True

    def is_admitted(self, principal: Principal) -> bool:
        return True

    def may_publish_will(self, principal: Principal, topic: str) -> bool:
        return True

    def may_publish(self, principal: Principal, topic: str) -> bool:
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        return True

    def may_subscribe_except(self, principal: Principal, topic_filter: str) -> bool:
        return True


class Client:
    """One connection of a client that sends what the test wants."""

    def __init__(self, stream: trio.abc.Stream, version: Version, *, patience_s: float = PATIENCE_S) -> None:
        self.stream = stream
        self.version = version
        self._patience_s = patience_s
        self._sending = trio.Lock()
        self._decoder = Decoder(of="server", version=version)
        self._received: deque[Packet] = deque()
        self._last_packet_id = 0

    def packet_id(self) -> int:
        self._last_packet_id += 1
        return self._last_packet_id

    async def send(self, *packets: Packet) -> None:
        async with self._sending:
            await self.stream.send_all(b"".join(encode(packet, self.version) for packet in packets))

    async def receive(self) -> Packet:
        """The next packet, soon. Raises `EOFError` if the broker closes instead."""
        with trio.fail_after(self._patience_s):
            return await self.receive_patiently()

    async def receive_patiently(self) -> Packet:
        """The next packet, whenever it comes."""
        while not self._received:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                raise EOFError("the broker closed the connection")
            self._received.extend(self._decoder.receive(data))
        return self._received.popleft()

    async def expect(self, kind: type[Kind]) -> Kind:
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def closed(self) -> None:
        """The broker closes, without another word."""
        try:
            packet = await self.receive()
        except EOFError:
            return
        raise AssertionError(f"instead of closing the broker sent {packet}")

    async def refused(self, reason_code: ReasonCode) -> None:
        """The broker closes; in MQTT 5 it says why."""
        if self.version is Version.V5:
            assert (await self.expect(Disconnect)).reason_code == reason_code
        await self.closed()

    async def silent(self) -> None:
        """Nothing comes but the answer to a PINGREQ."""
        await self.send(Pingreq())
        await self.expect(Pingresp)

    # Conversations

    async def connect(
        self,
        client_id: str = "client",
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties = EMPTY,
        username: str | None = None,
        password: bytes | None = None,
    ) -> Connack:
        await self.send(
            Connect(client_id, clean_start, keep_alive_s, username, password, will, properties, self.version)
        )
        return await self.expect(Connack)

    async def subscribe(
        self, *filters: str, qos: int = 0, properties: Properties = EMPTY, **options: Any
    ) -> tuple[ReasonCode, ...]:
        packet_id = self.packet_id()
        requests = tuple(SubscriptionRequest(topic_filter, qos, **options) for topic_filter in filters)
        await self.send(Subscribe(packet_id, requests, properties))
        answer = await self.expect(Suback)
        assert answer.packet_id == packet_id
        return answer.reason_codes

    async def unsubscribe(self, *filters: str) -> tuple[ReasonCode, ...]:
        packet_id = self.packet_id()
        await self.send(Unsubscribe(packet_id, filters))
        answer = await self.expect(Unsuback)
        assert answer.packet_id == packet_id
        return answer.reason_codes

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, properties: Properties = EMPTY
    ) -> ReasonCode:
        """Publish and wait for the end of it. Messages that arrive meanwhile are kept for `message`."""
        packet_id = self.packet_id() if qos else 0
        await self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties))
        if not qos:
            return ReasonCode.SUCCESS
        answer = await self._answer(Puback if qos == 1 else Pubrec, packet_id)
        if qos == 1 or answer.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            return answer.reason_code
        await self.send(Pubrel(packet_id))
        return (await self._answer(Pubcomp, packet_id)).reason_code

    async def _answer(self, kind: type[Puback | Pubrec | Pubcomp], packet_id: int) -> Puback | Pubrec | Pubcomp:
        aside: list[Packet] = []
        while True:
            packet = await self.receive()
            if isinstance(packet, kind):
                self._received.extendleft(reversed(aside))
                assert packet.packet_id == packet_id
                return packet
            assert isinstance(packet, Publish), packet
            aside.append(packet)

    async def message(self) -> Publish:
        """The next message, acknowledged."""
        message = await self.expect(Publish)
        if message.qos == 1:
            await self.send(Puback(message.packet_id))
        elif message.qos == 2:
            await self.send(Pubrec(message.packet_id))
            assert (await self._answer(Pubrel, message.packet_id)).packet_id == message.packet_id
            await self.send(Pubcomp(message.packet_id))
        return message

    async def leave(self, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> None:
        await self.send(Disconnect(reason_code))
        await self.closed()
        await self.stream.aclose()


class Serving:
    """A broker that runs, and its clients."""

    def __init__(
        self, broker: Broker, adapter: StorageAdapter, tasks: trio.Nursery, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.broker = broker
        self.adapter = adapter
        self._tasks = tasks
        self._patience_s = patience_s
        self._dialled: list[TcpStream] = []

    async def hang_up(self) -> None:
        """Close what tests have left open."""
        with trio.CancelScope(shield=True):
            for stream in self._dialled:
                await trio.aclose_forcefully(stream)

    def dial(self, version: Version = Version.V5, peer: str = "test") -> Client:
        """A connection on which nothing has been said."""
        here, there = socket.socketpair()
        for end in (here, there):
            end.setblocking(False)
        self._tasks.start_soon(self._serve, TcpStream(there), peer)
        stream = TcpStream(here)
        self._dialled.append(stream)
        return Client(stream, version, patience_s=self._patience_s)

    async def _serve(self, stream: trio.abc.Stream, peer: str) -> None:
        await self.broker.serve_stream(stream, peer=peer, transport="tcp")

    async def client(
        self, client_id: str = "client", version: Version = Version.V5, peer: str = "test", **options: Any
    ) -> Client:
        """A client that was let in."""
        client = self.dial(version, peer)
        answer = await client.connect(client_id, **options)
        assert answer.reason_code == ReasonCode.SUCCESS
        return client

    def notice_no_pauses(self) -> None:
        """Take no pause of this process by a busy machine for one of the broker, which refuses clients after it."""
        services = self.broker._services
        assert services is not None
        detector = services.pause_detector
        # The process counts as having worked all the time.
        detector._worked_s, detector._worked_before_s = trio.current_time, detector._looked_at_s


@asynccontextmanager
async def serving(
    adapter: StorageAdapter | None = None, *, broker_id: str = "one", patience_s: float = PATIENCE_S, **options: Any
) -> AsyncIterator[Serving]:
    """A broker, on a store in memory unless another is given; its clients wait ``patience_s`` for each answer."""
    if adapter is None:
        async with (
            open_adapter("memory:") as opened,
            serving(opened, broker_id=broker_id, patience_s=patience_s, **options) as served,
        ):
            yield served
        return
    options.setdefault("access", AllowAll())
    broker = Broker(adapter, broker_id, **options)
    async with background_tasks() as tasks:
        await tasks.start(broker.run)
        served = Serving(broker, adapter, tasks, patience_s=patience_s)
        served.notice_no_pauses()
        try:
            yield served
        finally:
            await served.hang_up()
        with trio.fail_after(patience_s):
            await broker.stop()
