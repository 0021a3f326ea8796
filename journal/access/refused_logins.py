"""Refused logins in the audit log: a limited number of lines, so that they cannot fill the disk; others are counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import trio

from journal.access.audit import AuditEntry, AuditLog
from journal.access.authentication import network_of
from journal.protocol.errors import AuthenticationError

PERIOD_S: Final = 60.0
LINES_PER_PERIOD: Final = 60
LINES_PER_NETWORK: Final = 10
"""Limit for one network in one period, so that one guessing client does not hide another one."""

_ACT: Final = "login"


class RefusedLogins:
    """Writes a line for a refused login, at most `LINES_PER_PERIOD` in `PERIOD_S`.

    The number of left out lines is written after the period, by the next refused login or by `keep_telling`.

    Args:
        audit: The audit log.
        clock: Seconds, never going backwards.
    """

    def __init__(self, audit: AuditLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._ends_at = 0.0
        self._shown: Counter[str] = Counter()
        self._left_out = 0

    def write(self, *, user: str, peer: str) -> None:
        """Record one refused login.

        Args:
            user: The user name; empty if there is no such user, since people type passwords there.
            peer: Address of the client, ``HOST:PORT``.
        """
        if not self._audit.is_kept:
            return
        self.tell()
        now = self._clock()
        if now >= self._ends_at:
            self._ends_at = now + PERIOD_S
            self._shown.clear()
        network = network_of(peer.rpartition(":")[0].strip("[]"))
        if self._shown.total() >= LINES_PER_PERIOD or self._shown[network] >= LINES_PER_NETWORK:
            self._left_out += 1
            return
        self._shown[network] += 1
        self._audit.write(AuditEntry(principal="", peer=peer, act=_ACT, target=user, outcome=AuthenticationError.code))

    def tell(self, *, also_unfinished: bool = False) -> None:
        """Write the number of left out lines of a period that has ended, or also of the present one."""
        if self._left_out and (also_unfinished or self._clock() >= self._ends_at):
            left_out, self._left_out = self._left_out, 0
            self._audit.write(
                AuditEntry(
                    principal="", peer="", act=_ACT, target="", outcome=AuthenticationError.code, left_out=left_out
                )
            )

    async def keep_telling(self) -> None:
        """Do so until cancelled, for periods after which no further login is refused."""
        while True:
            await trio.sleep(PERIOD_S)
            self.tell()
