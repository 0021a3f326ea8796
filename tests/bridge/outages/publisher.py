"""An MQTT publisher as the standard wants it: it keeps its session, and publishes again what was not acknowledged.

It numbers its messages and enters them into the ledger. It knows nothing of bridges.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence

import attrs
import trio

from tests.bridge.outages.ledger import Ledger
from tests.mqtt.cluster import packets
from tests.mqtt.cluster.client import BrokenConnectionError
from tests.mqtt.cluster.packets import V5, Packet, Reader
from tests.torture.deliveries.history import Message

WINDOW = 16
ANSWER_TIMEOUT_S = 5.0
PAUSE_S = 0.05
PAYLOAD_BYTES = 150
_RECEIVE_BYTES = 65_536
_LOST = (OSError, BrokenConnectionError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


@attrs.frozen
class Poison:
    """A message that the sink refuses by itself.

    Attributes:
        topic: Empty if any topic will do.
        body: Of its payload.
        share: Of all messages.
    """

    topic: str
    body: str
    share: float


def payload_of(message: Message, body: str) -> bytes:
    return json.dumps({"n": message.number, "body": body}).encode()


def message_of(topic: str, payload: bytes) -> Message:
    """The message of a payload."""
    return Message(topic, json.loads(payload)["n"])


@attrs.define
class _Outgoing:
    """A publish that was not answered."""

    message: Message
    payload: bytes
    was_sent: bool = False


class Publisher:
    """Publishes at QoS 1 to topics of its own, to whichever broker lets it in.

    Args:
        name: Its client id.
        ports: Where brokers are.
        interval_s: Between messages.

    Attributes:
        poison: What to publish now and then among the rest; None for nothing.
        acknowledged_count: Messages that a broker took.
    """

    def __init__(
        self, name: str, ports: Sequence[int], ledger: Ledger, rng: random.Random, *, interval_s: float
    ) -> None:
        self.poison: Poison | None = None
        self.acknowledged_count = 0
        self._name = name
        self._ports = ports
        self._ledger = ledger
        self._rng = rng
        self._interval_s = interval_s
        self._outgoing: dict[int, _Outgoing] = {}
        self._last_id = 0
        self._moved = trio.Event()
        self._stream: trio.SocketStream | None = None
        self._sending = trio.Lock()
        self._is_stopped = False
        self._connection_count = 0
        self._last_refusal: Packet | None = None

    def __str__(self) -> str:
        return (
            f"publisher {self._name}: {self.acknowledged_count} acknowledged, {len(self._outgoing)} unanswered, "
            f"{'connected' if self._stream is not None else 'not connected'}, {self._connection_count} connections, "
            f"last refusal: {self._last_refusal}"
        )

    async def run(self) -> None:
        """Publish until told to stop, and be connected until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stay_connected)
            nursery.start_soon(self._publish_all)

    def stop(self) -> None:
        """Publish nothing new."""
        self._is_stopped = True

    async def wait_answered(self) -> None:
        """Wait until everything is acknowledged or refused."""
        while self._outgoing:
            await self._moved.wait()

    async def wait_acknowledged(self, count: int) -> None:
        """Wait until so many more messages have been acknowledged."""
        wanted = self.acknowledged_count + count
        while self.acknowledged_count < wanted:
            await self._moved.wait()

    async def wait_stuck(self) -> None:
        """Wait until as much is unanswered as may be."""
        while len(self._outgoing) < WINDOW:
            await trio.sleep(self._interval_s)

    async def _publish_all(self) -> None:
        while not self._is_stopped:
            while len(self._outgoing) >= WINDOW and not self._is_stopped:
                await self._moved.wait()
            if self._is_stopped:
                # Stopped while it waited: the last answers that made room also end the wait for all of them.
                return
            await self._publish()
            await trio.sleep(self._rng.uniform(0, 2 * self._interval_s))

    async def _publish(self) -> None:
        poison = self.poison
        if poison is None or self._rng.random() >= poison.share:
            message = self._ledger.send(f"plant/{self._name}/{self._rng.randrange(2)}")
            outgoing = _Outgoing(message, payload_of(message, "x" * PAYLOAD_BYTES))
        else:
            message = self._ledger.send(poison.topic or f"plant/{self._name}/0", is_poison=True)
            outgoing = _Outgoing(message, payload_of(message, poison.body))
        self._last_id = packet_id = self._last_id % 60_000 + 1
        self._outgoing[packet_id] = outgoing
        async with self._sending:
            # On a connection that was opened while this waited it was sent already.
            if self._stream is not None and not outgoing.was_sent:
                await self._send(self._stream, [(packet_id, outgoing)])

    async def _stay_connected(self) -> None:
        while True:
            try:
                await self._be_connected(self._rng.choice(self._ports))
            except _LOST:
                self._stream = None
                await trio.sleep(PAUSE_S)

    async def _be_connected(self, port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            reader = Reader(V5)
            with trio.fail_after(ANSWER_TIMEOUT_S):
                await stream.send_all(packets.connect(V5, self._name, clean_start=False))
                connack, *others = await self._receive(stream, reader)
            if connack.kind != packets.CONNACK or connack.code:
                raise BrokenConnectionError(f"refused: {connack}")
            # What is published from now on comes after what is published again: nothing may pass it.
            async with self._sending:
                self._connection_count += 1
                self._stream = stream
                await self._send(stream, self._outgoing.items())
            self._take(others)
            while True:
                self._take(await self._receive(stream, reader))

    async def _send(self, stream: trio.SocketStream, outgoing: Iterable[tuple[int, _Outgoing]]) -> None:
        data = bytearray()
        for packet_id, each in outgoing:
            message = each.message
            data += packets.publish(V5, packet_id, message.source, each.payload, 1, dup=each.was_sent)
            self._ledger.write(message)
            each.was_sent = True
        try:
            await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The receiver notices too, and connects again.
            self._stream = None

    async def _receive(self, stream: trio.SocketStream, reader: Reader) -> list[Packet]:
        found: list[Packet] = []
        while not found:
            data = bytes(await stream.receive_some(_RECEIVE_BYTES))
            if not data:
                raise BrokenConnectionError("the broker has closed")
            found = reader.feed(data)
        return found

    def _take(self, answers: Iterable[Packet]) -> None:
        for answer in answers:
            if answer.kind == packets.DISCONNECT:
                raise BrokenConnectionError(f"told to go: {answer}")
            outgoing = self._outgoing.pop(answer.packet_id)
            is_taken = answer.code < 0x80
            if not is_taken:
                self._last_refusal = answer
            self._ledger.settle(outgoing.message, is_taken=is_taken)
            self.acknowledged_count += is_taken
        self._moved.set()
        self._moved = trio.Event()
