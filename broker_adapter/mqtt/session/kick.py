"""Ending the connection of a client, and its session, because an administrator asks for it: the part of its broker.

`broker_adapter.mqtt.clients.kick` sends the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from broker_adapter.errors import StorageError
from broker_adapter.mqtt.session import transitions
from broker_adapter.mqtt.session.commits import Commits
from broker_adapter.mqtt.session.keyed_lock import KeyedLock
from broker_adapter.mqtt.session.orphan_cleanup import read
from broker_adapter.mqtt.session.owned_session import OwnedSession
from broker_adapter.mqtt.session.peer_channel import PeerMessage
from broker_adapter.mqtt.session.session import Session
from broker_adapter.mqtt.session.store_retry import StoreRetry

_log = logging.getLogger(__name__)

DISCONNECTED: Final = "disconnected"
ENDED: Final = "session ended"
NOT_HERE: Final = ""


@attrs.frozen(slots=True)
class Kick:
    """A request of an administrator.

    Attributes:
        client_id: The client.
        by: Who asks for it, for people.
        end_session: Whether its session is to end, too.
    """

    client_id: str
    by: str
    end_session: bool


OnKick = Callable[[Kick, Session | None], None]
"""Called with a request that is carried out here. The connection of the session must end then, and with it the session
if the request says so; the call must not block. None: a session without a connection has ended."""


class Kicks:
    """Carries out requests at one broker.

    Args:
        store_retry: The store.
        commits: Commits the end of a session.
        locks: Held during each action about a client.
        open_here: Returns the sessions that are open at this broker, by client.
        closed: Woken when a session is closed here.
        on_kick: Ends the connection.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        commits: Commits,
        locks: KeyedLock,
        open_here: Callable[[], Mapping[str, OwnedSession]],
        closed: trio.lowlevel.ParkingLot,
        on_kick: OnKick,
    ) -> None:
        self._store_retry = store_retry
        self._commits = commits
        self._locks = locks
        self._open_here = open_here
        self._closed = closed
        self._on_kick = on_kick

    async def carry_out(self, message: PeerMessage) -> str:
        """End a connection that is open here, or the session of a client that is away.

        Returns:
            The outcome, when it is in the store; `NOT_HERE` if another broker has the session.

        Raises:
            StorageError: The store refuses it.
        """
        kick = Kick(message.client_id, message.by, message.end_session)
        owned = self._open_here().get(kick.client_id)
        if owned is not None:
            is_durable = owned.session.is_durable
            self._on_kick(kick, owned.session)
            while self._open_here().get(kick.client_id) is owned:
                await self._closed.park()
            # The connection may have been ending already when the request came, without an end of the session.
            if kick.end_session and is_durable:
                await self._end(kick)
            return ENDED if kick.end_session else DISCONNECTED
        return await self._end(kick) if kick.end_session else NOT_HERE

    async def _end(self, kick: Kick) -> str:
        """End a session without a connection."""
        attempt = 0
        while True:
            async with self._locks.take(kick.client_id):
                found = await read(self._store_retry, kick.client_id)
                if found.record is None:
                    return ENDED
                if found.record.owner != transitions.NO_OWNER:
                    return NOT_HERE
                try:
                    await self._commits.make(kick.client_id, transitions.expired(found))
                except StorageError as error:
                    await self._store_retry.pause_after(error, attempt)
                else:
                    self._on_kick(kick, None)
                    return ENDED
            attempt += 1
