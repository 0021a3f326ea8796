"""A small MQTT client for measuring: one connection of MQTT 5, QoS 1."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Version, encode, encode_pubacks
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from command_line.boundary import CommandError, UsageError

Answer = TypeVar("Answer", Connack, Suback)

VERSION: Final = Version.V5
_RECEIVE_BYTES: Final = 256 * 1024
_ANSWER_S: Final = 10.0
_MAX_PACKET_ID: Final = 0xFFFF
_MAX_PORT: Final = 0xFFFF
_REFUSED: Final = 0x80


class TraceClient:
    """A connected client; see `connected`.

    Attributes:
        local_port: Port of its own end.
        receive_maximum: Messages that the broker takes without having acknowledged them.
    """

    def __init__(self, stream: trio.SocketStream, place: str) -> None:
        self.local_port: int = stream.socket.getsockname()[1]
        self.receive_maximum = _MAX_PACKET_ID
        self._place = place
        self._stream = stream
        self._decoder = Decoder(of="server", version=VERSION)
        self._output: list[bytes] = []
        self._has_output = trio.Event()
        self._unsent: deque[tuple[int, str, bytes]] = deque()
        self._in_flight: dict[int, int] = {}
        self._packet_id = 0

    async def connect(self, client_id: str, user: str, password: str) -> None:
        """Begin a new session, which ends with the connection."""
        connect = Connect(client_id, username=user or None, password=password.encode() if password else None)
        answer = await self._ask(encode(connect, VERSION), Connack)
        if answer.reason_code >= _REFUSED:
            raise CommandError(f"the broker at {self._place} refuses the connection: {answer.reason_code.name}")
        self.receive_maximum = answer.properties.receive_maximum or _MAX_PACKET_ID

    async def subscribe(self, topic: str) -> None:
        """Subscribe with QoS 1."""
        request = Subscribe(1, (SubscriptionRequest(topic, qos=1),))
        answer = await self._ask(encode(request, VERSION), Suback)
        if answer.reason_codes[0] >= _REFUSED:
            raise CommandError(
                f"the broker at {self._place} refuses the subscription to {topic!r}: {answer.reason_codes[0].name}"
            )

    def publish(self, number: int, topic: str, payload: bytes) -> None:
        """Publish with QoS 1, once fewer than ``receive_maximum`` messages are in flight.

        Args:
            number: Number of the message, for `read_acknowledgements`.
        """
        self._unsent.append((number, topic, payload))
        self._publish_unsent()

    async def write_output(self) -> None:
        """Send what is published and acknowledged; runs until it is cancelled."""
        while True:
            while not self._output:
                self._has_output = trio.Event()
                await self._has_output.wait()
            data, self._output = b"".join(self._output), []
            await self._stream.send_all(data)

    async def read_acknowledgements(self, acknowledged: Callable[[list[int]], None]) -> None:
        """Call with the numbers of messages as they are acknowledged; runs until it is cancelled."""
        while True:
            numbers = []
            for packet in await self._receive():
                if isinstance(packet, Puback):
                    if packet.reason_code >= _REFUSED:
                        raise CommandError(f"the broker at {self._place} refuses a message: {packet.reason_code.name}")
                    numbers.append(self._in_flight.pop(packet.packet_id))
            acknowledged(numbers)
            self._publish_unsent()

    async def read_messages(self, delivered: Callable[[bytes], None]) -> None:
        """Call with the payloads of messages as they arrive, and acknowledge them; runs until it is cancelled."""
        while True:
            messages = [packet for packet in await self._receive() if isinstance(packet, Publish)]
            for message in messages:
                delivered(message.payload)
            self._send(encode_pubacks([message.packet_id for message in messages if message.qos]))

    def _publish_unsent(self) -> None:
        while self._unsent and len(self._in_flight) < self.receive_maximum:
            number, topic, payload = self._unsent.popleft()
            self._packet_id = self._packet_id % _MAX_PACKET_ID + 1
            while self._packet_id in self._in_flight:
                self._packet_id = self._packet_id % _MAX_PACKET_ID + 1
            self._in_flight[self._packet_id] = number
            self._send(encode(Publish(topic, payload, qos=1, packet_id=self._packet_id), VERSION))

    def _send(self, data: bytes) -> None:
        if data:
            self._output.append(data)
            self._has_output.set()

    async def _ask(self, request: bytes, kind: type[Answer]) -> Answer:
        await self._stream.send_all(request)
        with trio.move_on_after(_ANSWER_S):
            while True:
                for packet in await self._receive():
                    if isinstance(packet, kind):
                        return packet
        raise CommandError(f"the broker at {self._place} does not answer within {_ANSWER_S:.0f} s")

    async def _receive(self) -> list[Packet]:
        """Wait for packets; an empty list if only a part of one has arrived."""
        try:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            raise CommandError(f"the broker at {self._place} has closed the connection")
        try:
            packets = self._decoder.receive(data)
        except MqttProtocolError as error:
            raise CommandError(f"what answers at {self._place} is not a broker of MQTT 5: {error}") from error
        for packet in packets:
            if isinstance(packet, Disconnect):
                raise CommandError(f"the broker at {self._place} ends the connection: {packet.reason_code.name}")
        return packets


@asynccontextmanager
async def connected(place: str, client_id: str, user: str, password: str) -> AsyncIterator[TraceClient]:
    """A client that is connected to the broker at HOST:PORT for the length of the block.

    Raises:
        CommandError: No broker answers there, or it refuses the client.
    """
    host, port = parse_place(place)
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise CommandError(
            f"no broker answers at {place}; start one with `journal-broker serve`, or name it with --publish-to and "
            "--subscribe-at"
        ) from error
    async with stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = TraceClient(stream, place)
        await client.connect(client_id, user, password)
        yield client


def parse_place(place: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        UsageError: It is not that.
    """
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(f"{place!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
