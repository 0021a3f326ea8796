"""Refused and failed acts in the audit log: a limited number of lines for each principal; others are counted.

Who may do nothing can still send requests, as many as the network carries. A line for each would fill the disk, and
hide those of others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
import trio

from journal.access.audit import AuditEntry, AuditLog
from journal.access.authentication import network_of
from journal.access.rights import UseRefusedError

PERIOD_S: Final = 60.0
LINES_PER_PRINCIPAL: Final = 30
LINES_PER_PERIOD: Final = 300
"""Limit for all principals, for servers that let in peers without a name: those count by their network."""

_MAX_NAME_CHARACTERS: Final = 1024
_LEFT_OUT: Final = "refused"


class RefusedActs:
    """Writes a line for an act that was refused or failed, at most `LINES_PER_PRINCIPAL` in `PERIOD_S`.

    After the period, or by `keep_telling`, there is a line for each principal with the number of its acts without one.

    Args:
        audit: The audit log.
        clock: Seconds, never going backwards.
    """

    def __init__(self, audit: AuditLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._ends_at = 0.0
        self._shown: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[str] = Counter()

    def write(self, entry: AuditEntry) -> None:
        """Record one act. Long names are cut."""
        if not self._audit.is_kept:
            return
        self.tell()
        now = self._clock()
        if now >= self._ends_at:
            self._ends_at = now + PERIOD_S
            self._shown.clear()
        network = "" if entry.principal else network_of(entry.peer.rpartition(":")[0].strip("[]"))
        who = entry.principal, network
        if self._shown.total() >= LINES_PER_PERIOD or self._shown[who] >= LINES_PER_PRINCIPAL:
            self._left_out[entry.principal] += 1
            return
        self._shown[who] += 1
        cut = {name: getattr(entry, name)[:_MAX_NAME_CHARACTERS] for name in ("target", "cursor", "group")}
        self._audit.write(attrs.evolve(entry, **cut))

    def write_use(self, *, principal: str, peer: str, act: str, error: UseRefusedError) -> None:
        """Record a request for which its principal lacks the rights."""
        use = error.use
        self.write(
            AuditEntry(
                principal=principal,
                peer=peer,
                act=act,
                target=use.target,
                outcome=error.code,
                cursor=use.cursor or "",
                group=use.group or "",
            )
        )

    def tell(self, *, also_unfinished: bool = False) -> None:
        """Write the numbers of left out lines of a period that has ended, or also of the present one."""
        if self._left_out and (also_unfinished or self._clock() >= self._ends_at):
            left_out, self._left_out = self._left_out, Counter()
            for principal, count in left_out.items():
                self._audit.write(
                    AuditEntry(
                        principal=principal, peer="", act=_LEFT_OUT, target="", outcome=_LEFT_OUT, left_out=count
                    )
                )

    async def keep_telling(self) -> None:
        """Do so until cancelled, for periods after which no further act is refused."""
        while True:
            await trio.sleep(PERIOD_S)
            self.tell()
