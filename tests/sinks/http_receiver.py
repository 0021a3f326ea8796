"""A web service that keeps the batches that it is sent: ``python -m tests.sinks.http_receiver PORT FILE``.

POST /rows takes a batch from any client with the token; rows whose ``body`` is ``bad`` are refused by 207. Each batch
that is taken becomes one line of the file before the reply, with the headers that came with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

TOKEN = "right"


class Receiver:
    """The ASGI application."""

    def __init__(self, path: Path) -> None:
        whole = path.read_bytes() if path.exists() else b""
        # What was being written when the last process was killed was not confirmed.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.truncate(path, whole.rfind(b"\n") + 1)
        os.lseek(self._file, 0, os.SEEK_END)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if event["type"] == "http.disconnect":
                return
            if not event.get("more_body"):
                break
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        status, answer = self._answer(scope["path"], scope["method"], headers, body)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, path: str, method: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if path != "/rows":
            return 404, b"nothing is here"
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, b"who are you?"
        if method != "POST":
            return 405, b""
        rows = json.loads(body)
        bad = [index for index, row in enumerate(rows) if row["body"] == "bad"]
        taken = [row for index, row in enumerate(rows) if index not in bad]
        line = json.dumps({"headers": headers, "rows": taken}).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        if bad:
            refused = [{"index": index, "reason": "its body is bad"} for index in bad]
            return 207, json.dumps({"refused": refused}).encode()
        return 204, b""


def main() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.errorlog = None
    config.keep_alive_timeout = 60
    trio.run(serve, Receiver(Path(sys.argv[2])), config)


if __name__ == "__main__":
    main()
