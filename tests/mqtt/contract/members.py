"""Clients that keep to the protocol and to their session, whatever becomes of their connections."""

from __future__ import annotations

import attrs
import trio

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from tests.mqtt.serving import Client, Serving

FOR_EVER = Properties(session_expiry_interval=0xFFFF_FFFF)


@attrs.define
class Publisher:
    """Publishes one message after the other, and sends again what was not answered, wherever it is connected.

    Attributes:
        pending: The message under way: topic, payload, QoS, retain, and whether PUBREC has come.
    """

    name: str
    version: Version = Version.V5
    pending: Publish | None = None
    is_received: bool = False
    packet_id: int = 0

    async def publish(self, broker: Serving, message: Publish) -> None:
        """Publish at a broker, after what is still under way; raises `EOFError` when the connection breaks."""
        if self.pending is not None:
            await self._send(broker, self.pending, dup=True)
        self.packet_id = self.packet_id % 60_000 + 1
        message.packet_id = self.packet_id
        self.pending, self.is_received = message, False
        await self._send(broker, message, dup=False)

    async def finish(self, broker: Serving) -> None:
        """Bring what is under way to its end."""
        if self.pending is not None:
            await self._send(broker, self.pending, dup=True)

    async def _send(self, broker: Serving, message: Publish, *, dup: bool) -> None:
        client = await broker.client(self.name, self.version, clean_start=False, properties=_kept(self.version))
        if not self.is_received:
            message.dup = dup
            await client.send(message)
            if message.qos == 1:
                assert (await client.expect(Puback)).reason_code < ReasonCode.UNSPECIFIED_ERROR
            else:
                assert (await client.expect(Pubrec)).reason_code < ReasonCode.UNSPECIFIED_ERROR
                self.is_received = True
        if message.qos == 2:
            await client.send(Pubrel(message.packet_id))
            await client.expect(Pubcomp)
        self.pending = None
        await client.stream.aclose()


@attrs.define
class Subscriber:
    """Has a durable session, receives in the background, and answers unless that is switched off.

    Attributes:
        received: Payloads in the order in which they came; repetitions that the protocol marks are left out, and so are
            retained messages that come with a subscription, whatever came before it.
    """

    name: str
    tasks: trio.Nursery
    version: Version = Version.V5
    received: list[bytes] = attrs.Factory(list)
    is_connected: bool = False
    answers: bool = True
    _client: Client | None = None
    _incoming: set[int] = attrs.Factory(set)
    _subacks: dict[int, trio.Event] = attrs.Factory(dict)
    _news: trio.Event = attrs.Factory(trio.Event)

    async def connect(self, broker: Serving, *, answers: bool = True) -> None:
        """Connect; another connection of this client is taken over by it."""
        client = broker.dial(self.version)
        answer: Connack = await client.connect(self.name, clean_start=False, properties=_kept(self.version))
        assert answer.reason_code == ReasonCode.SUCCESS
        if not answer.session_present:
            self._incoming.clear()
        self._client, self.is_connected, self.answers = client, True, answers
        self.tasks.start_soon(self._receive, client)

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self._client is not None
        packet_id = self._client.packet_id()
        done = self._subacks[packet_id] = trio.Event()
        await self._client.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter, qos),)))
        await done.wait()

    async def leave(self, *, politely: bool) -> None:
        """End the connection, with DISCONNECT or without a word."""
        if self._client is not None and self.is_connected:
            client, self._client, self.is_connected = self._client, None, False
            if politely:
                await client.send(Disconnect())
            await client.stream.aclose()

    async def wait_for(self, payloads: set[bytes]) -> None:
        """Return when all of them have come."""
        while not payloads <= set(self.received):
            self._news = trio.Event()
            await self._news.wait()

    async def _receive(self, client: Client) -> None:
        try:
            while True:
                await self._take(client, await client.receive_patiently())
        except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            if self._client is client:
                self._client, self.is_connected = None, False

    async def _take(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self._subacks.pop(packet.packet_id).set()
        elif isinstance(packet, Publish):
            await self._take_message(client, packet)
        elif isinstance(packet, Pubrel):
            self._incoming.discard(packet.packet_id)
            await client.send(Pubcomp(packet.packet_id))

    async def _take_message(self, client: Client, message: Publish) -> None:
        if not message.retain and (message.qos < 2 or message.packet_id not in self._incoming):
            self.received.append(message.payload)
            self._news.set()
        if message.qos == 2:
            self._incoming.add(message.packet_id)
        if self.answers and message.qos:
            await client.send((Puback if message.qos == 1 else Pubrec)(message.packet_id))


def _kept(version: Version) -> Properties:
    return FOR_EVER if version is Version.V5 else Properties()
