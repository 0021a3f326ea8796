"""Acts that programs repeat, in the audit log: a line for the first, then at most one in a period for all that follow.

A consumer commits a cursor for every batch, and a program that scrapes metrics logs in with every request. A line for
each would fill the disk and hide the rest.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import attrs
import trio

from journal.access.audit import AuditEntry, AuditLog
from journal.access.authentication import network_of

PERIOD_S: Final = 600.0
_REMEMBERED: Final = 10_000
_SEVERAL: Final = "several"
"""Outcome in the line of acts that are too many to have lines of their own."""


@attrs.frozen(slots=True)
class _Act:
    """What makes acts the same: the peer counts by its network, since each connection has another port."""

    principal: str
    network: str
    act: str
    target: str
    cursor: str
    client: str
    outcome: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """What acts with too many different targets have in common."""
        return self.principal, self.network, self.act


@attrs.define(slots=True)
class _Repeats:
    ends_at: float
    peer: str
    left_out: int = 0


class RepeatedActs:
    """Writes such acts. The number of acts without a line of their own is in the line after their period.

    Args:
        audit: The audit log.
        clock: Seconds, never going backwards.
        max_different: Acts of one kind, of one principal from one network, that have lines of their own in a period.
            They may differ in target, cursor, client and outcome. Those beyond are one act, without these.
    """

    def __init__(
        self,
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
        max_different: int = _REMEMBERED,
    ) -> None:
        self._audit = audit
        self._clock = clock
        self._max_different = max_different
        self._different: Counter[tuple[str, str, str]] = Counter()
        # In the order in which their periods end.
        self._acts: OrderedDict[_Act, _Repeats] = OrderedDict()

    def write(self, entry: AuditEntry) -> None:
        """Record one act; see `AuditLog.write`."""
        if not self._audit.is_kept:
            return
        self.tell()
        peer, network = entry.peer, network_of(entry.peer.rpartition(":")[0].strip("[]"))
        one = _Act(entry.principal, network, entry.act, entry.target, entry.cursor, entry.client, entry.outcome)
        repeats = self._acts.get(one)
        if repeats is None and self._different[one.kind] >= self._max_different:
            one = attrs.evolve(one, target="", cursor="", client="", outcome=_SEVERAL)
            repeats = self._acts.get(one)
        if repeats is not None:
            repeats.left_out += 1
            repeats.peer = peer
            return
        if len(self._acts) >= _REMEMBERED:
            self._end_first()
        self._acts[one] = _Repeats(self._clock() + PERIOD_S, peer)
        self._different[one.kind] += 1
        self._line(one, peer)

    def tell(self, *, also_unfinished: bool = False) -> None:
        """Write the lines of periods that have ended, or also of those that have not."""
        now = self._clock()
        while self._acts and (also_unfinished or next(iter(self._acts.values())).ends_at <= now):
            self._end_first()

    async def keep_telling(self) -> None:
        """Do so until cancelled."""
        while True:
            await trio.sleep(PERIOD_S)
            self.tell()

    def _end_first(self) -> None:
        one, repeats = self._acts.popitem(last=False)
        self._different[one.kind] -= 1
        if not self._different[one.kind]:
            del self._different[one.kind]
        if repeats.left_out:
            self._line(one, repeats.peer, repeats.left_out)

    def _line(self, one: _Act, peer: str, left_out: int = 0) -> None:
        self._audit.write(
            AuditEntry(
                principal=one.principal,
                peer=peer,
                act=one.act,
                target=one.target,
                cursor=one.cursor,
                client=one.client,
                outcome=one.outcome,
                left_out=left_out,
            )
        )
