"""What a supervisor and the processes of its broker send each other: lines of JSON over a pair of pipes.

The supervisor sends settings and requests to pages. The process sends answers, that it is ready, or why it fails. Both
ends run the same code, and no other program can reach the pipes.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import attrs
import trio

from broker_adapter.mqtt.config import BrokerConfig
from journal.telemetry.http_pages import Reply, Request

_LARGEST_LINE_BYTES: Final = 64 << 20
_RECEIVED_AT_ONCE: Final = 256 * 1024


@attrs.frozen
class Start:
    """The first line to a process.

    Attributes:
        number: Number of the process, from 1.
        settings: Its settings.
    """

    number: int
    settings: BrokerConfig


@attrs.frozen
class Reload:
    """The settings were read again.

    Attributes:
        settings: The new ones.
    """

    settings: BrokerConfig


@attrs.frozen
class Question:
    """A request to a page.

    Attributes:
        number: Identifies it among the questions to this process.
        method: The method of HTTP.
        request: The request.
    """

    number: int
    method: str
    request: Request


@attrs.frozen
class Answer:
    """The answer to a question of this number."""

    number: int
    reply: Reply


@attrs.frozen
class Ready:
    """The process accepts clients."""


@attrs.frozen
class Failed:
    """The process ends with an error.

    Attributes:
        message: One line.
        status: The exit status.
    """

    message: str
    status: int


Line: TypeAlias = Start | Reload | Question | Answer | Ready | Failed


def encode(line: Line) -> bytes:
    """The line, with its end."""
    match line:
        case Start(number, settings):
            fields: dict[str, Any] = {"start": number, "settings": _packed(settings)}
        case Reload(settings):
            fields = {"reload": True, "settings": _packed(settings)}
        case Question(number, method, request):
            plain = {**attrs.asdict(request), "headers": dict(request.headers), "body": _text(request.body)}
            fields = {"question": number, "method": method, "request": plain}
        case Answer(number, reply):
            plain = {**attrs.asdict(reply), "headers": dict(reply.headers), "body": _text(reply.body)}
            fields = {"answer": number, "reply": plain}
        case Ready():
            fields = {"ready": True}
        case Failed(message, status):
            fields = {"failed": message, "status": status}
    return json.dumps(fields).encode() + b"\n"


def decode(data: bytes) -> Line:
    """The line that `encode` made."""
    fields: dict[str, Any] = json.loads(data)
    if "start" in fields:
        return Start(fields["start"], _unpacked(fields["settings"]))
    if "reload" in fields:
        return Reload(_unpacked(fields["settings"]))
    if "question" in fields:
        plain = fields["request"]
        return Question(
            fields["question"], fields["method"], Request(**{**plain, "body": base64.b64decode(plain["body"])})
        )
    if "answer" in fields:
        plain = fields["reply"]
        return Answer(fields["answer"], Reply(**{**plain, "body": base64.b64decode(plain["body"])}))
    return Ready() if "ready" in fields else Failed(fields["failed"], fields["status"])


class LineReader:
    """The lines that arrive at one end."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def lines(self) -> AsyncIterator[Line]:
        """All lines until the other end is closed."""
        received = self._received
        while True:
            searched_bytes = 0
            while (at := received.find(b"\n", searched_bytes)) < 0:
                searched_bytes = len(received)
                if searched_bytes > _LARGEST_LINE_BYTES:
                    raise ValueError(f"a line between processes of a broker has more than {_LARGEST_LINE_BYTES} bytes")
                try:
                    data = await self._stream.receive_some(_RECEIVED_AT_ONCE)
                except trio.BrokenResourceError:
                    return
                if not data:
                    return
                received += data
            line = bytes(received[:at])
            del received[: at + 1]
            yield decode(line)


def _packed(settings: BrokerConfig) -> str:
    return _text(pickle.dumps(settings))


def _unpacked(text: str) -> BrokerConfig:
    settings = pickle.loads(base64.b64decode(text))  # noqa: S301 it comes from the same program over its own pipe
    assert isinstance(settings, BrokerConfig)
    return settings


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
