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

CLAIMED_HEADER: Final = "Journal-Claimed"
"""Header of a request for `/livez`, by which the new owner of a store informs the former one. Three fields with spaces
between them: epoch of the new owner, address of its native protocol, nonce of the claim of the former owner."""

FOLLOWS_HEADER: Final = "Journal-Follows"
"""Header of a request for `/livez` by a server that follows the owner which it asks: the epoch of that one."""

_REQUEST: Final = "GET /livez HTTP/1.1\r\nHost: journal\r\nConnection: close\r\n"
_TAKEN: Final = b"HTTP/1.1 200"
_MOST_BYTES: Final = 4096
_MOST_DIGITS: Final = 10


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


@attrs.frozen(slots=True)
class Notice:
    """The message of the new owner of a store to the former one.

    Attributes:
        epoch: The epoch that it has claimed.
        owner: ``HOST:PORT`` of its native protocol.
        nonce: Nonce of the former owner's claim. It proves that the sender can read the log store.
    """

    epoch: int
    owner: str
    nonce: bytes

    def encode(self) -> str:
        """The value of `CLAIMED_HEADER`."""
        return f"{self.epoch} {self.owner} {self.nonce.hex()}"

    @classmethod
    def decode(cls, value: str) -> Notice | None:
        """Read the value of a header; None if it is no notice."""
        match value.split(" "):
            case [epoch, owner, nonce] if epoch.isascii() and epoch.isdecimal() and len(epoch) <= _MOST_DIGITS:
                try:
                    return cls(int(epoch), owner, bytes.fromhex(nonce)) if parse_address(owner) else None
                except ValueError:
                    return None
        return None


async def ask(address: str, server_id: str, epoch: int, *, encrypted: bool, follows: bool = False) -> Seen:
    """Ask a server whether it is alive, and still owns the store.

    Args:
        address: ``HOST:PORT`` of its HTTP listener.
        server_id: The id of the process that is asked for.
        epoch: The epoch that it claimed; 0 for a server that follows.
        encrypted: Whether the listener uses TLS. Its certificate is not checked: nothing that is secret is sent, and
            nothing that matters is believed.
        follows: Say that this server follows the one that is asked.
    """
    request = f"{_REQUEST}{FOLLOWS_HEADER}: {epoch}\r\n" if follows else _REQUEST
    answer = await _exchange(address, request, encrypted=encrypted)
    return Seen(answer) if isinstance(answer, Life) else _seen_in(answer, server_id, epoch)


async def send_notice(address: str, notice: Notice, *, encrypted: bool) -> bool:
    """Inform a server that another one has claimed the store.

    The nonce is no secret any more: the claim that it belongs to is out of date.

    Args:
        address: ``HOST:PORT`` of its HTTP listener.
        notice: The information.
        encrypted: As for `ask`.

    Returns:
        Whether it needs no further attempt: the server has received the notice, or its process has ended.
    """
    answer = await _exchange(address, f"{_REQUEST}{CLAIMED_HEADER}: {notice.encode()}\r\n", encrypted=encrypted)
    return answer is Life.GONE if isinstance(answer, Life) else answer.startswith(_TAKEN)


async def _exchange(address: str, request: str, *, encrypted: bool) -> bytes | Life:
    """The answer to a request, or what is known of a server that does not answer."""
    result: bytes | Life = Life.SILENT
    with trio.move_on_after(ANSWER_S):
        try:
            result = await _answer(address, f"{request}\r\n".encode(), encrypted=encrypted)
        except ConnectionRefusedError:
            result = Life.GONE
        except OSError as error:
            # trio tries all addresses of a name, and tells all errors together.
            causes = getattr(error.__cause__, "exceptions", ())
            if causes and all(isinstance(cause, ConnectionRefusedError) for cause in causes):
                result = Life.GONE
        except (trio.BrokenResourceError, ValueError):
            # Nobody can be reached at an address that is none.
            result = Life.SILENT
    return result


async def _answer(address: str, request: bytes, *, encrypted: bool) -> bytes:
    host, port = parse_address(address) or ("", 0)
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(stream, context, https_compatible=True)
    answer = b""
    try:
        await stream.send_all(request)
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
