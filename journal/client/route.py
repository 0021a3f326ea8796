"""The servers that an address names, of which one owns the store: which of them is tried next.

A client that only reads (``read=follower``) begins with any of them, so that many such clients spread. It takes the
owner only if no follower has answered in a round through all servers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from journal.client.address import Address
from journal.client.peer_probe import find_other_server
from journal.client.transport import Transport, open_transport
from journal.net.address import parse_address
from journal.protocol.messages import HelloReply
from shards.errors import InvalidRequestError, NotOwnerError, StorageError

LONGEST_DELAY_S: Final = 0.3
"""The longest delay before the next server is tried, while a store may be changing its owner."""

CONNECT_S: Final = 3.0
"""Bound on connecting and HELLO where there are other servers: one whose machine is gone does not answer at all."""

REACH_S: Final = 1.0
"""Bound on the TCP connection alone where there are others. A machine that is there answers at once, however busy its
server is. One that is gone is named as the owner until another server takes over: it is tried again and again."""

PING_S: Final = 2.0
"""Silence of a server after which it must answer a PING where there are others."""


class Route:
    """Which server is tried next: the one that another server says owns the store, or else the next of the address.

    Args:
        places: The servers of the address.
    """

    def __init__(self, places: Sequence[Address]) -> None:
        self._places = places
        self._next = random.randrange(len(places)) if self.prefers_followers else 0
        self._hint: Address | None = None
        self._failed = 0

    @property
    def prefers_followers(self) -> bool:
        """Whether the client only reads, and prefers a server that follows the owner of its store."""
        return bool(self._places[0].read)

    @property
    def place(self) -> Address:
        """The server that is tried next, or is connected."""
        return self._hint or self._places[self._next]

    @property
    def has_several(self) -> bool:
        """Whether the address names several servers."""
        return len(self._places) > 1

    async def connect(self, nursery: trio.Nursery) -> Transport:
        """Connect; see `open_transport`."""
        return await open_transport(self.place, nursery, reach_s=REACH_S if self.has_several else math.inf)

    async def find_other_server(self) -> InvalidRequestError | None:
        """The error for a server that speaks another protocol; see `peer_probe`."""
        return await find_other_server(self.place)

    def credentials(self) -> dict[str, str] | None:
        """The credentials of the address; all of its servers have the same."""
        return self._places[0].credentials()

    def check(self, hello: HelloReply) -> None:
        """Decide whether to stay with a server that has answered HELLO.

        Raises:
            NotOwnerError: It owns the store, and there may be a follower that serves reads.
        """
        if self.prefers_followers and not hello.is_follower and self._failed < len(self._places) - 1:
            raise NotOwnerError("")
        self._failed = 0

    def ended(self, reason: StorageError) -> None:
        """A session has ended, or none could be opened: choose the next server."""
        hint, self._hint = self._hint, None
        self._failed += 1
        looks_for_followers = self.prefers_followers and self._failed < len(self._places)
        if isinstance(reason, NotOwnerError) and hint is None and not looks_for_followers:
            self._hint = self._owner(reason.owner)
        if self._hint is None:
            self._next = (self._next + 1) % len(self._places)

    def _owner(self, owner: str) -> Address | None:
        place = self._places[self._next]
        # Servers tell each other the address of their native protocol only.
        if not owner or place.kind not in ("tcp", "tls"):
            return None
        try:
            parsed = parse_address(owner)
        except ValueError:
            return None
        return None if parsed is None else attrs.evolve(place, host=parsed[0], port=parsed[1])
