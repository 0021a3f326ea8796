"""A connection that follows a lost one, before it is used: the server can be asked, and appends be withdrawn."""

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
    """Operations over one connection, for the check of `Client.before_resending`. None is repeated.

    Args:
        connection: HELLO was answered on it.
        appends: What earlier connections have left unanswered.
    """

    def __init__(self, connection: Connection, appends: Appends) -> None:
        self._connection = connection
        self._appends = appends

    def unanswered_batches(self) -> list[list[AppendFuture]]:
        """The appends of each batch that may have been sent and was not answered."""
        return self._appends.unanswered_batches()

    def withdraw(self, appends: Collection[object]) -> None:
        """Send these appends never again, nor those that share a batch with one of them.

        They fail with `ConnectionLostError`: whether those that were sent are stored is not known.
        """
        self._appends.withdraw(appends)

    async def _call(self, op: Op, message: object, *, repeat: bool = False) -> Any:
        return decode_reply(op, await self._connection.exchange(op, encode(message)))

    async def _with_handle(self, name: str, op: Op, make_body: Callable[[int], bytes]) -> bytes | memoryview:
        reply: OpenShardReply = await self._connection.call(Op.OPEN_SHARD, OpenShardRequest(name))
        return await self._connection.exchange(op, make_body(reply.handle))
