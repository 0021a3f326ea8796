"""``python -m benchmarks.queues.web_service``: accepts batches by POST, parses their JSON, and counts rows.

GET returns the number of rows so far, and whether each came once and in order: ``{"rows": 500, "in_order": true}``. It
stores nothing, so a run measures the bridge and HTTP, not a database.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

Send = Callable[[dict[str, Any]], Awaitable[None]]


class WebService:
    """The ASGI application."""

    def __init__(self) -> None:
        self._rows = 0
        self._next_offset = 0
        self._in_order = True

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        pieces = []
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            pieces.append(event.get("body", b""))
            if not event.get("more_body"):
                break
        if scope["method"] == "GET":
            await _answer(send, 200, json.dumps(self.state).encode())
        elif scope["method"] == "POST":
            self.take(msgspec.json.decode(b"".join(pieces)))
            await _answer(send, 204)
        else:
            await _answer(send, 405)

    @property
    def state(self) -> dict[str, Any]:
        """The body of the response to GET."""
        return {"rows": self._rows, "in_order": self._in_order}

    def take(self, rows: list[dict[str, Any]]) -> None:
        """Count rows."""
        self._rows += len(rows)
        for row in rows:
            # A queue begins at 0; another one may come after it.
            self._in_order &= row["offset"] in (0, self._next_offset)
            self._next_offset = row["offset"] + 1


async def _answer(send: Send, status: int, body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.errorlog = None
    config.keep_alive_timeout = 60
    trio.run(serve, WebService(), config)


if __name__ == "__main__":
    main()
