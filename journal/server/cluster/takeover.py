"""When a server that follows the log takes the store over: the rule, and the task that waits for it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from journal.engine import Claim, Decision
from journal.server.cluster.liveness import Life
from journal.settings.values import ConfigurationError

LOOK_S: Final = 1.0
"""How often the owner is asked, and the log is looked at, while the owner is alive."""

_LOOK_AGAIN_S: Final = 0.2
GONE_S: Final = 0.5
"""A server that is gone for this time has lost the store."""

SILENT_S: Final = 3.0
"""The same for one that is silent, or says that it does not own the store. It may only be slow, or about to own it."""

_SPREAD_S: Final = 0.5
"""A random time is added, so that several servers do not take the store from each other in turn."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class OwnerWatch:
    """Watches the owner of the store, and decides that it has lost it.

    Args:
        server_id: The id of this server.
        address: The address that this server tells others.
        ask: Asks the server of a claim whether it is alive.
        source: Of the random times.
    """

    def __init__(
        self,
        server_id: str,
        address: str,
        ask: Callable[[Claim], Awaitable[Life]],
        source: random.Random | None = None,
    ) -> None:
        self._server_id = server_id
        self._address = address
        self._ask = ask
        self._source = source or random.Random()
        self._first_epoch: int | None = None
        self._life = Life.ALIVE
        self._since = 0.0
        self._patience_s = 0.0
        self._told_epoch = 0

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        """See `journal.engine.shared_log.log.Takeover`.

        Raises:
            ConfigurationError: Another server tells others the same address as this one.
        """
        if self._first_epoch is None:
            self._first_epoch = claim.epoch
        if not claim.epoch or claim.server_id == self._server_id:
            return Decision.TAKE_OVER
        if claim.addresses.tcp == self._address:
            if claim.epoch > self._first_epoch or await self._ask(claim) is Life.ALIVE:
                raise ConfigurationError(
                    f"another server of the store has the address {self._address}, too: give each server an address "
                    "of its own at which the others reach it (cluster.advertise)"
                )
            # A former process of this server: its port is ours now.
            return Decision.TAKE_OVER
        if claim.epoch != self._told_epoch:
            self._told_epoch = claim.epoch
            log.info("follows the owner of the store", owner=claim.addresses.tcp, epoch=claim.epoch)
        life = await self._ask(claim)
        now = trio.current_time()
        if life is Life.ALIVE or has_moved or life is not self._life:
            self._life, self._since = life, now
            self._patience_s = GONE_S if life is Life.GONE else SILENT_S
            self._patience_s += self._source.uniform(0.0, _SPREAD_S)
        elif now - self._since >= self._patience_s:
            log.warning(
                "the owner of the store is lost: will take it over",
                former_owner=claim.addresses.tcp,
                owner_is=life.name.lower(),
            )
            self._since = now
            return Decision.TAKE_OVER
        if life is Life.ALIVE:
            await trio.sleep(LOOK_S)
            return Decision.FOLLOW
        # Perhaps another server has taken the store over already.
        await trio.sleep(_LOOK_AGAIN_S)
        return Decision.LOOK
