"""A broker that answers as configured, for what real ones do rarely."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import attrs
import trio

from broker_adapter.mqtt_codec import Decoder, Packet, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish

Answer: TypeAlias = Callable[[Publish], Packet | None]


def confirm(publish: Publish) -> Packet | None:
    return Puback(publish.packet_id)


@attrs.define
class ScriptedBroker:
    """Any number of connections.

    Attributes:
        connack: Its answer to CONNECT.
        answer: To each PUBLISH. Behind any packet but PUBACK it closes, and with None at once.
        answers_pings: Or leaves them.
        most_together: How many PUBLISH came at once at most.
    """

    port: int = 0
    connack: Connack = attrs.Factory(Connack)
    answer: Answer = confirm
    answers_pings: bool = True
    connects: list[Connect] = attrs.Factory(list)
    published: list[Publish] = attrs.Factory(list)
    ping_count: int = 0
    most_together: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        decoder = Decoder(of="client")
        try:
            while data := await stream.receive_some(65_536):
                packets = decoder.receive(data)
                together = sum(isinstance(packet, Publish) for packet in packets)
                self.most_together = max(self.most_together, together)
                for packet in packets:
                    if not await self._take(packet, stream):
                        return
        except trio.BrokenResourceError:
            return

    async def _take(self, packet: Packet, stream: trio.SocketStream) -> bool:
        reply: Packet | None = None
        if isinstance(packet, Connect):
            self.connects.append(packet)
            reply = self.connack
        elif isinstance(packet, Pingreq):
            self.ping_count += 1
            reply = Pingresp() if self.answers_pings else None
        elif isinstance(packet, Publish):
            self.published.append(packet)
            reply = self.answer(packet)
            if reply is None:
                return False
        if reply is not None:
            await stream.send_all(encode(reply, self.connects[-1].version))
        return reply is None or isinstance(reply, Puback | Connack | Pingresp)


@asynccontextmanager
async def scripted_broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1"))
        broker.port = listeners[0].socket.getsockname()[1]
        yield broker
        tasks.cancel_scope.cancel()
