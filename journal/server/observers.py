"""Who may look at a server over HTTP: at its metrics, and at why it is not ready. Metrics name groups and queues."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from journal.access.authorization import Action
from journal.protocol.errors import NotAuthorizedError
from journal.server.http_identity import asker_of
from journal.server.login import Login
from journal.server.statistics import ServerStatistics
from shards.errors import StorageError

METRICS: Final = "$metrics"
"""What stands for the metrics where rules are asked: a program that scrapes them needs no right to read records."""


class Observers:
    """Tells who may look.

    Args:
        admission: Who there is.
        statistics: Counts those who may not.
    """

    def __init__(self, admission: Login, statistics: ServerStatistics) -> None:
        self._admission = admission
        self._statistics = statistics

    async def refusal(self, request: Request) -> StorageError | None:
        """Why who sent a request may not look; None if it may."""
        try:
            principal = (await asker_of(request, self._admission)).principal
            if not (
                principal.may(Action.READ, METRICS)
                or principal.may(Action.READ, "#")
                or principal.may(Action.ADMINISTER, "#")
            ):
                raise NotAuthorizedError(
                    f"principal {principal.name!a} may not look at the metrics; have it allowed to read {METRICS!a} in "
                    "the server's access rules"
                )
        except StorageError as error:
            self._statistics.count_error(error)
            return error
        return None

    async def may_look(self, request: Request) -> bool:
        """The same for a page that others may see, too, but not all of it: who gives nothing is not refused a login."""
        if self._admission.asks and "authorization" not in request.headers:
            return False
        return await self.refusal(request) is None
