"""The way in which a run cuts a server from the network."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from demo.cluster.network import namespaces, relays
from demo.cluster.network.host import Host


class Way(enum.Enum):
    """How hosts are made, and cut from the network."""

    NAMESPACES = "namespaces"
    RELAYS = "relays"

    @property
    def services(self) -> str:
        """Address of the object store."""
        return namespaces.SERVICES if self is Way.NAMESPACES else relays.SERVICES

    @property
    def told(self) -> str:
        """The cut, in words."""
        if self is Way.NAMESPACES:
            return "its network namespace was taken from the bridge"
        return "the relays before its ports and before the object store stopped forwarding"


@asynccontextmanager
async def open_hosts(way: Way, names: Sequence[str], store_port: int) -> AsyncIterator[Sequence[Host]]:
    """Hosts for the context.

    Raises:
        DemoError: This machine does not allow it.
    """
    if way is Way.NAMESPACES:
        async with namespaces.namespace_hosts(names, store_port) as isolated:
            yield isolated
    else:
        async with relays.relay_hosts(names, store_port) as relayed:
            yield relayed
