"""Asking another server of the store whether it is alive. It is advice: a wrong answer costs a takeover, never data."""

from __future__ import annotations

import enum
import ssl
from typing import Final

import attrs
import trio

from journal.net.address import parse_address

SERVER_HEADER: Final = "Journal-Server"
"""Header of `/livez` with the id of the running server."""

EPOCH_HEADER: Final = "Journal-Epoch"
"""Header of `/livez` with the epoch that this server owns, 0 for none."""

LSN_HEADER: Final = "Journal-Lsn"
"""Header of `/livez` with the newest lsn that this server has of the log, 0 for none."""

ANSWER_S: Final = 1.0
"""A server that has not answered in this time is silent."""

_REQUEST: Final = b"GET /livez HTTP/1.1\r\nHost: journal\r\nConnection: close\r\n\r\n"
_MOST_BYTES: Final = 4096


class Life(enum.Enum):
    """What is known of a server."""

    ALIVE = "alive"
    """It runs and owns the store, or is about to."""

    WITHOUT_STORE = "alive, but does not own the store any more"
    SILENT = "silent"
    """It did not answer in time: its machine may be gone, or it may be suspended."""

    GONE = "gone"
    """Nothing listens there, or another process does: the one that was asked for has ended."""


@attrs.frozen(slots=True)
class Seen:
    """What a server answered.

    Attributes:
        life: What is known of it.
        lsn: The newest lsn that it has of the log; None if it did not say.
    """

    life: Life
    lsn: int | None = None


async def ask(address: str, server_id: str, epoch: int, *, encrypted: bool) -> Seen:
    """Ask a server whether it is alive, and still owns the store.

    Args:
        address: ``HOST:PORT`` of its HTTP listener.
        server_id: The id of the process that is asked for.
        epoch: The epoch that it claimed; 0 for a server that follows.
        encrypted: Whether the listener uses TLS. Its certificate is not checked, since nothing is sent or believed.
    """
    seen = Seen(Life.SILENT)
    with trio.move_on_after(ANSWER_S):
        try:
            seen = _seen_in(await _answer(address, encrypted=encrypted), server_id, epoch)
        except ConnectionRefusedError:
            seen = Seen(Life.GONE)
        except OSError as error:
            # trio tries all addresses of a name, and tells all errors together.
            causes = getattr(error.__cause__, "exceptions", ())
            if causes and all(isinstance(cause, ConnectionRefusedError) for cause in causes):
                seen = Seen(Life.GONE)
        except (trio.BrokenResourceError, ValueError):
            # Nobody can be reached at an address that is none.
            seen = Seen(Life.SILENT)
    return seen


async def _answer(address: str, *, encrypted: bool) -> bytes:
    host, port = parse_address(address) or ("", 0)
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(stream, context, https_compatible=True)
    answer = b""
    try:
        await stream.send_all(_REQUEST)
        while len(answer) < _MOST_BYTES and b"\r\n\r\n" not in answer and (data := await stream.receive_some()):
            answer += data
    finally:
        await trio.aclose_forcefully(stream)
    return answer


def _seen_in(answer: bytes, server_id: str, epoch: int) -> Seen:
    head, end, _ = answer.partition(b"\r\n\r\n")
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:] if end else ():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    found = headers.get(SERVER_HEADER.lower(), "")
    if not found:
        # It speaks, but does not say who it is: something else listens there, it does not reach the log store, or the
        # answer was cut off.
        return Seen(Life.SILENT)
    if found != server_id:
        return Seen(Life.GONE)
    lsn = headers.get(LSN_HEADER.lower(), "")
    return Seen(
        Life.ALIVE if headers.get(EPOCH_HEADER.lower()) == str(epoch) else Life.WITHOUT_STORE,
        int(lsn) if lsn.isdecimal() and lsn.isascii() else None,
    )
