"""A subscriber that keeps what it gets, in order, for looking into a broker past the sink."""

from __future__ import annotations

import json
from collections.abc import Sequence

import trio

from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Publish
from broker_adapter.sinks import Row
from tests.mqtt.serving import Client
from tests.patience import PATIENCE_S

PREFIX = "contract"


class Collector:
    """Subscribes to everything below a prefix with QoS 0: a broker hands such a message on before it confirms it.

    Attributes:
        messages: All that came, markers of `wait_until_now` left out.
    """

    def __init__(self, port: int, topic_filter: str = f"{PREFIX}/#") -> None:
        self.messages: list[Publish] = []
        self._port = port
        self._filter = topic_filter
        self._marked = 0
        self._markers = 0
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Subscribe, and collect until the broker goes away."""
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            client = Client(stream, Version.V5)
            assert (await client.connect("collector")).reason_code is ReasonCode.SUCCESS
            await client.subscribe(self._filter)
            task_status.started()
            try:
                while True:
                    message = await client.receive_patiently()
                    assert isinstance(message, Publish), message
                    if message.topic == f"{PREFIX}/marker":
                        self._marked = int(message.payload)
                        self._changed.set()
                    else:
                        self.messages.append(message)
            except EOFError:
                return

    async def wait_until_now(self) -> None:
        """Wait until everything has come that the broker has confirmed."""
        self._markers += 1
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            client = Client(stream, Version.V5)
            await client.connect("marker")
            await client.publish(f"{PREFIX}/marker", str(self._markers).encode(), qos=1)
            await client.leave()
        with trio.fail_after(PATIENCE_S):
            while self._marked < self._markers:
                self._changed = trio.Event()
                await self._changed.wait()

    async def rows(self) -> Sequence[Row]:
        """The messages so far, whose payloads are rows as JSON."""
        await self.wait_until_now()
        return [json.loads(message.payload) for message in self.messages]
