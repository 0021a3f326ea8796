"""What the demo needs of a host on which a server runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Host(Protocol):
    """A host.

    Attributes:
        name: Name of its server.
        tcp: Where its server listens for clients.
        http: Where it listens for HTTP.
        reached_at: Where clients reach it.
        http_reached_at: Where the other servers reach it.
        store_endpoint: Where it reaches the object store.
        command_prefix: What a command begins with that is to run on it.
    """

    name: str
    tcp: str
    http: str
    reached_at: str
    http_reached_at: str
    store_endpoint: str
    command_prefix: Sequence[str]

    async def cut(self) -> None:
        """Cut it from the network: packets in both directions are lost from now on, and no connection is reset."""

    async def mend(self) -> None:
        """Connect it to the network again."""

    async def open_ports(self) -> None:
        """Its server is about to be started."""

    async def close_ports(self) -> None:
        """Its server has ended: connections to it are refused."""
