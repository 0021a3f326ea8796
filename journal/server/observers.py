"""Access to metrics, and to the reasons why the server is not ready, over HTTP. Metrics name groups and queues."""

from __future__ import annotations

from starlette.requests import Request

from journal.access.rights import Operation, require
from journal.server.http_identity import identity_of
from journal.server.login import Login
from journal.server.statistics import ServerStatistics
from shards.errors import StorageError


class Observers:
    """Decides which clients may see them.

    Args:
        admission: Authenticates clients.
        statistics: Counts refusals.
    """

    def __init__(self, admission: Login, statistics: ServerStatistics) -> None:
        self._admission = admission
        self._statistics = statistics

    async def refusal(self, request: Request) -> StorageError | None:
        """The error for the sender of a request that may not see them; None if it may."""
        try:
            require((await identity_of(request, self._admission)).principal, Operation.SEE_METRICS)
        except StorageError as error:
            self._statistics.count_error(error)
            return error
        return None

    async def may_look(self, request: Request) -> bool:
        """Whether it may see them, for a page that others see in part: a missing login is not counted as refused."""
        if self._admission.asks and "authorization" not in request.headers:
            return False
        return await self.refusal(request) is None
