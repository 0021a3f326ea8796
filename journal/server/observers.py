"""Whether the server accepts appends, as shown by `/readyz`, and which clients may see why not, and the metrics."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from journal.access.rights import Operation, Use, UseRefusedError
from journal.engine import Engine
from journal.net.origins import Origins
from journal.server.http_identity import check_page, identity_of, peer_of
from journal.server.login import Login
from journal.server.statistics import ServerStatistics
from journal.telemetry.loop_monitor import LoopLag
from shards.errors import StorageError
from shards.quantities import format_size

_METRICS: Final = "metrics"


class Observers:
    """Decides which clients may see them.

    Args:
        admission: Authenticates clients.
        statistics: Counts refusals.
        origins: The web pages that may send requests without credentials.
    """

    def __init__(self, admission: Login, statistics: ServerStatistics, origins: Origins) -> None:
        self._admission = admission
        self._statistics = statistics
        self._origins = origins

    async def refusal(self, request: Request) -> StorageError | None:
        """The error for the sender of a request that may not see them; None if it may."""
        try:
            if "authorization" not in request.headers:
                # A browser on a machine that can reach this server adds no credentials to the requests of a page.
                check_page(request, self._origins)
            principal = (await identity_of(request, self._admission)).principal
            try:
                Use(Operation.SEE_METRICS).require(principal)
            except UseRefusedError as error:
                self._admission.record_refused(principal.name, peer_of(request), _METRICS, error)
                raise
        except StorageError as error:
            self._statistics.count_error(error)
            return error
        return None

    async def may_look(self, request: Request) -> bool:
        """Whether it may see them, for a page that others see in part: a missing login is not counted as refused."""
        if self._admission.asks and "authorization" not in request.headers:
            return False
        return await self.refusal(request) is None


PATIENCE_S: Final = 5.0
"""Appends that are held back for a moment are the normal back-pressure; for longer, the disk is too slow."""

RECOVERING: Final = "the server is recovering its journal; acknowledged data is being read back"
STOPPING: Final = "the server is stopping"


def why_not_ready(engine: Engine, loop_lag: LoopLag, *, is_stopping: bool) -> list[str]:
    """All reasons why it accepts no appends now; an empty list if it does."""
    reasons = [STOPPING] if is_stopping else []
    if engine.failure is not None:
        reasons.append(str(engine.failure))
    log = engine.statistics().log
    if engine.disk_full is not None:
        reasons.append(str(engine.disk_full))
    elif log is not None and log.trouble:
        # Before an append has failed, and if claims cannot be read: then another server may own the store.
        reasons.append(log.trouble)
    if log is not None and log.isolation:
        reasons.append(log.isolation)
    if loop_lag.held_back_s > PATIENCE_S:
        reasons.append(f"appends have been held back for {loop_lag.held_back_s:.0f} s: {_what_is_full(engine)}")
    return reasons


def _what_is_full(engine: Engine) -> str:
    storage = engine.config.storage
    statistics = engine.statistics()
    used, tails = statistics.journal_bytes, statistics.tail_bytes
    if used >= storage.journal_budget_bytes:
        return (
            f"the checkpoint is too far behind, journal files hold {format_size(used)} of "
            f"{format_size(storage.journal_budget_bytes)} (storage.journal_budget_bytes); the disk is slower than "
            "the incoming data"
        )
    return (
        f"{format_size(tails)} of {format_size(storage.tail_budget_bytes)} wait to be written to their segment files "
        f"(storage.tail_budget_bytes); the disk is slower than the incoming data"
    )
