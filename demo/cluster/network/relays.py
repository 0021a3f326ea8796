"""Hosts at loopback addresses, behind relays that stop to forward: where there are no namespaces.

A relay stands before the ports of a server, and one between the server and the object store. While a host is cut, bytes
wait in its relays: connections hang, and none is refused or reset. Other servers' ports can still be reached by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from demo.processes.ports import free_port

SERVICES: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65_536


class Gate:
    """Open, or shut for all that would pass."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    def shut(self) -> None:
        """Nothing passes from now on."""
        self._opened = trio.Event()

    def open(self) -> None:
        """What waits passes."""
        self._opened.set()

    async def wait(self) -> None:
        """Wait until it is open."""
        while not self._opened.is_set():
            await self._opened.wait()


class Relay:
    """Forwards connections from one address to another, through a gate.

    Args:
        port: Port of the loopback interface at which it listens.
        target: Host and port to which it forwards.
        gate: Bytes, and the ends of connections, pass when it is open.
    """

    def __init__(self, port: int, target: tuple[str, int], gate: Gate) -> None:
        self.port = port
        self._target = target
        self._gate = gate
        self._serving = trio.CancelScope()

    async def begin(self, nursery: trio.Nursery) -> None:
        """Listen."""
        self._serving = trio.CancelScope()
        await nursery.start(self._serve)

    def end(self) -> None:
        """Close the port and all connections."""
        self._serving.cancel()

    async def _serve(self, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        with self._serving:
            await trio.serve_tcp(self._forward, self.port, host=SERVICES, task_status=task_status)

    async def _forward(self, here: trio.SocketStream) -> None:
        await self._gate.wait()
        try:
            there = await trio.open_tcp_stream(*self._target)
        except OSError:
            # As the server would: the connection ends.
            await trio.aclose_forcefully(here)
            return
        async with here, there, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, here, there)
            nursery.start_soon(self._pump, there, here)

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(_CHUNK_BYTES):
                await self._gate.wait()
                await target.send_all(data)
            await self._gate.wait()
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # One side has reset its connection; the other side hears of it in the same way.
            await self._gate.wait()
            await trio.aclose_forcefully(target)
            await trio.aclose_forcefully(source)


class RelayHost:
    """See `demo.cluster.network.host.Host`.

    Args:
        address: Loopback address at which its server listens.
        nursery: Its relays run there.
    """

    def __init__(self, name: str, address: str, store_port: int, nursery: trio.Nursery) -> None:
        tcp_port, http_port, endpoint_port = free_port(), free_port(), free_port()
        self.name = name
        self.tcp = f"{address}:{tcp_port}"
        self.http = f"{address}:{http_port}"
        self.reached_at = f"{SERVICES}:{tcp_port}"
        self.http_reached_at = f"{SERVICES}:{http_port}"
        self.store_endpoint = f"http://{SERVICES}:{endpoint_port}"
        self.command_prefix: Sequence[str] = ()
        self._gate = Gate()
        self._to_store = Relay(endpoint_port, (SERVICES, store_port), self._gate)
        self._to_server = [Relay(port, (address, port), self._gate) for port in (tcp_port, http_port)]
        self._nursery = nursery

    async def connect(self) -> None:
        """Connect it to the object store."""
        await self._to_store.begin(self._nursery)

    async def cut(self) -> None:
        """Its relays forward nothing from now on."""
        self._gate.shut()

    async def mend(self) -> None:
        self._gate.open()

    async def open_ports(self) -> None:
        for relay in self._to_server:
            await relay.begin(self._nursery)

    async def close_ports(self) -> None:
        """A relay would accept connections for a server that has ended."""
        for relay in self._to_server:
            relay.end()


@asynccontextmanager
async def relay_hosts(names: Sequence[str], store_port: int) -> AsyncIterator[list[RelayHost]]:
    """Hosts behind relays, for the context.

    Args:
        names: Names of the servers.
        store_port: Port of the object store.
    """
    async with trio.open_nursery() as nursery:
        hosts = [RelayHost(name, f"127.0.1.{number}", store_port, nursery) for number, name in enumerate(names, 1)]
        for host in hosts:
            await host.connect()
        yield hosts
        nursery.cancel_scope.cancel()
