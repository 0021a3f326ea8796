"""A new connection before it is used: operations on it, and withdrawing appends of earlier connections."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from journal.client.append_future import AppendFuture
from journal.client.appends import Appends
from journal.client.connection import Connection
from journal.client.operations import Operations
from journal.protocol import Op, decode_reply, encode
from journal.protocol.messages import OpenShardReply, OpenShardRequest


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
