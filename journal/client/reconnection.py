"""What a client finds when it connects again: appends without an answer, and a server with another history."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs

from journal.client.append_future import AppendFuture
from journal.client.appends import Appends
from journal.client.connection import Connection
from journal.client.operations import Operations
from journal.protocol import Op, decode_reply, encode
from journal.protocol.messages import HelloReply, OpenShardReply, OpenShardRequest
from shards.history import common_lsn


class Reconnection(Operations):
    """Operations on one connection, for the check of `Client.before_resending`. None of them is repeated.

    Args:
        connection: A connection on which HELLO was answered.
        appends: The unanswered appends of earlier connections.
    """

    def __init__(self, connection: Connection, appends: Appends) -> None:
        self._connection = connection
        self._appends = appends

    def unanswered_batches(self) -> list[list[AppendFuture]]:
        """The appends of each batch that may have been sent and was not answered."""
        return self._appends.unanswered_batches()

    def withdraw(self, appends: Collection[object]) -> None:
        """Never send these appends again, nor those that share a batch with one of them.

        They fail with `ConnectionLostError`: it is not known whether those that were sent are stored.
        """
        self._appends.withdraw(appends)

    async def _call(self, op: Op, message: object, *, repeat: bool = False) -> Any:
        return decode_reply(op, await self._connection.exchange(op, encode(message)))

    async def _with_handle(self, name: str, op: Op, make_body: Callable[[int], bytes]) -> bytes | memoryview:
        reply: OpenShardReply = await self._connection.call(Op.OPEN_SHARD, OpenShardRequest(name))
        return await self._connection.exchange(op, make_body(reply.handle))


@attrs.frozen(slots=True)
class ServerRestored:
    """The server was restored from a backup while this client had no connection, or another server has replaced it.

    Everything that the client received with a higher lsn than ``common_lsn`` (records, also acknowledged ones,
    versions, cursors) is lost or was replaced; offsets of lost records are assigned to others. Everything up to it is
    unchanged.

    Attributes:
        node_id: The server that answers now.
        common_lsn: Up to here the server has the same data as before; 0 if it is another server.
        former_node_id: The server that answered before, if it was another one.
    """

    node_id: str
    common_lsn: int
    former_node_id: str | None = None

    def __str__(self) -> str:
        if self.former_node_id is not None:
            return (
                f"another server answers at the address: node {self.node_id} instead of node {self.former_node_id}, "
                f"with which it has no common history"
            )
        return (
            f"the server {self.node_id} was restored from a backup: data that it had sent with an lsn above "
            f"{self.common_lsn} does not exist any more"
        )


def lost_history(known: HelloReply, found: HelloReply) -> ServerRestored | None:
    """Compare the server's history with that of an earlier session; None if it is the same."""
    if found.node_id != known.node_id:
        return ServerRestored(found.node_id, 0, known.node_id)
    lsn = common_lsn(known.restores, found.restores)
    return None if lsn is None else ServerRestored(found.node_id, lsn)
