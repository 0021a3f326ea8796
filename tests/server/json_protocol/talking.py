"""A plain client of the JSON sub-protocol: requests out, replies and pushes in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from journal.server.json_protocol import SUBPROTOCOL
from tests.patience import PATIENCE_S
from tests.server.serving import Served


class RefusedError(Exception):
    """What the server answered."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.retriable = error["retriable"]
        self.details = error.get("details", {})


class Talker:
    """Messages by their place: replies by id, pushes by tail."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self.websocket = websocket
        self.others: list[dict[str, Any]] = []
        self._last_id = 0

    async def send(self, message: dict[str, Any] | str | bytes) -> None:
        await self.websocket.send_message(json.dumps(message) if isinstance(message, dict) else message)

    async def receive(self, **wanted: Any) -> dict[str, Any]:
        """The next message with these fields, also out of ``others``.

        Raises:
            ConnectionClosed: The server closed.
        """
        for at, message in enumerate(self.others):
            if wanted.items() <= message.items():
                return self.others.pop(at)
        with trio.fail_after(PATIENCE_S):
            while True:
                text = await self.websocket.get_message()
                assert isinstance(text, str)
                message = json.loads(text)
                if wanted.items() <= message.items():
                    return message
                self.others.append(message)

    async def start(self, op: str, **fields: Any) -> int:
        self._last_id += 1
        await self.send({"id": self._last_id, "op": op, **fields})
        return self._last_id

    async def result(self, number: int) -> Any:
        reply = await self.receive(id=number)
        if "error" in reply:
            raise RefusedError(reply["error"])
        return reply["result"]

    async def call(self, op: str, **fields: Any) -> Any:
        """Request and result.

        Raises:
            RefusedError: What the server answered.
        """
        return await self.result(await self.start(op, **fields))

    async def append(self, shard: str, *values: str, **fields: Any) -> Any:
        records = [{"value": value} for value in values]
        return await self.call("append", shard=shard, records=records, **fields)

    async def pushed_values(self, tail: int, count: int) -> list[str]:
        """Values of the next records of a tail."""
        values: list[str] = []
        while len(values) < count:
            message = await self.receive(tail=tail, event="records")
            values += [record["value"] for record in message["records"]]
        return values

    async def receive_until_closed(self) -> list[dict[str, Any]]:
        messages, self.others = self.others, []
        with trio.fail_after(PATIENCE_S):
            try:
                while True:
                    messages.append(json.loads(await self.websocket.get_message()))
            except ConnectionClosed:
                return messages


@asynccontextmanager
async def talking(
    served: Served, *, greet: bool = True, origin: str | None = None, client: str = "test", **credentials: str
) -> AsyncIterator[Talker]:
    headers = [] if origin is None else [(b"origin", origin.encode())]
    # trio-websocket leaves the stream open when the server refuses, or is the first to close.
    async with await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream:
        async with trio.open_nursery() as nursery:
            websocket = await wrap_client_stream(
                nursery,
                stream,
                "127.0.0.1",
                "/",
                subprotocols=[SUBPROTOCOL],
                extra_headers=headers,
                max_message_size=64 << 20,
            )
            assert websocket.subprotocol == SUBPROTOCOL
            talker = Talker(websocket)
            if greet:
                await talker.call("hello", client=client, credentials=credentials or None)
            yield talker
            nursery.cancel_scope.cancel()
