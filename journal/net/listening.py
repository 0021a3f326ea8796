"""Listening sockets: binding, accepting, and preparing and closing accepted sockets.

The protocols of the connections are implemented elsewhere.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import structlog
import trio

from journal.net.address import parse_address

_BACKLOG = 1024
_LINGER_S = 0.5
_DISCARDED_AT_ONCE = 64 * 1024
_RETRY_S = 0.1
_KEEPALIVE_IDLE_S = 30
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 3

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


def bind(addresses: Mapping[str, str], main: str) -> dict[str, socket.socket]:
    """Listen on the configured addresses.

    Args:
        addresses: Addresses by name of the setting under ``[listen]``; empty ones are skipped.
        main: The name of the setting that the option ``--listen`` changes.

    Raises:
        OSError: An address is in use or not of this machine; the message names the setting.
    """
    return _bound(addresses, main, _bind_alone, listen)


def reserve(addresses: Mapping[str, str], main: str) -> dict[str, socket.socket]:
    """Reserve the configured addresses for processes of this user that `share` them; nothing listens yet.

    Until the sockets are closed, no program that does not share can have the addresses. See `bind` for the arguments.

    Raises:
        OSError: An address is in use or not of this machine; the message names the setting.
    """
    return _bound(addresses, main, _bind_alone, _allow_sharing)


def share(addresses: Mapping[str, str], main: str) -> dict[str, socket.socket]:
    """Bind reserved addresses as one of several processes, between which the kernel distributes connections.

    A process gets connections from `listen` on, until its socket is closed. See `bind` for the arguments.

    Raises:
        OSError: An address cannot be shared; the message names the setting.
    """
    return _bound(addresses, main, _bind_shared, lambda sock: None)


def listen(sock: socket.socket) -> None:
    """Begin to accept connections at a bound socket."""
    sock.listen(_BACKLOG)


def _bind_alone(sock: socket.socket, address: tuple[str, int]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)


def _bind_shared(sock: socket.socket, address: tuple[str, int]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind_alone(sock, address)


def _allow_sharing(sock: socket.socket) -> None:
    # Without SO_REUSEADDR the socket keeps others out although it does not listen.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _bound(
    addresses: Mapping[str, str],
    main: str,
    bind_to: Callable[[socket.socket, tuple[str, int]], None],
    finish: Callable[[socket.socket], None],
) -> dict[str, socket.socket]:
    sockets: dict[str, socket.socket] = {}
    for name, text in addresses.items():
        address = parse_address(text)
        if address is None:
            continue
        host, port = address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            bind_to(sock, (host, port))
            finish(sock)
        except OSError as error:
            sock.close()
            for other in sockets.values():
                other.close()
            option = "--listen HOST:PORT or " if name == main else ""
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port} (listen.{name}): {error.strerror}; "
                f"choose another with {option}--set listen.{name}=HOST:PORT, or in the configuration",
            ) from error
        sockets[name] = sock
    return sockets


def listens_at(sock: socket.socket) -> str:
    """``HOST:PORT`` of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_at(sock: socket.socket) -> str:
    """``HOST:PORT`` for connecting to a listening socket from this machine."""
    host, _, port = listens_at(sock).rpartition(":")
    # The address for all interfaces cannot be connected to.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 it is compared, not bound
    return f"{host}:{port}"


async def accept(sock: socket.socket, admit: Callable[[socket.socket, str], bool]) -> None:
    """Accept until cancelled; sockets that ``admit`` refuses are closed."""
    sock.setblocking(False)
    while True:
        try:
            client, address = sock.accept()
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        except OSError as error:
            # Out of descriptors, or the client has disconnected already: other clients must still be served.
            log.warning("cannot accept", error=str(error))
            await trio.sleep(_RETRY_S)
            continue
        if not admit(client, f"{address[0]}:{address[1]}"):
            client.close()
        await trio.lowlevel.checkpoint()


def prepare(sock: socket.socket) -> None:
    """Prepare a socket: no delay for small frames, and a dead peer is noticed within a minute."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


async def linger(sock: socket.socket) -> None:
    """Shut down the outgoing side and wait a moment for the peer to close its side.

    Closing a socket with unread bytes resets the connection, and the peer may lose the last bytes that were sent:
    acknowledgements, or the reason for the end of the connection.
    """
    with trio.move_on_after(_LINGER_S):
        try:
            sock.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not sock.recv(_DISCARDED_AT_ONCE):
                        return
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(sock)
                await trio.lowlevel.checkpoint()
        except (OSError, trio.ClosedResourceError):
            # The peer has disconnected: nothing can be lost. Or another task closes the socket at once.
            return
