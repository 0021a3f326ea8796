"""Watches the acknowledgements of an append: shows on stderr why they take long, and ends it at the user's limit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from command_line.boundary import CommandError, one_line
from command_line.output import note

if TYPE_CHECKING:
    from journal.client import AppendFuture, Client
    from shards.errors import StorageError

_PROGRAM = "journal"
_TOLD_AFTER_S = 2.0


class AppendWatch:
    """Follows the batches of one shard in the order in which they are sent.

    Args:
        client: The client that sends them.
        shard: Name of the shard.
        timeout_s: Longest time without an acknowledgement.

    Attributes:
        failure: Set when that time has passed.
    """

    def __init__(self, client: Client, shard: str, timeout_s: float) -> None:
        self._client = client
        self._shard = shard
        self._timeout_s = timeout_s
        self._sent: deque[AppendFuture] = deque()
        self._any_sent = trio.Event()
        self._told = ""
        self.failure: CommandError | None = None

    def sent(self, pending: AppendFuture) -> None:
        """Note that a batch was sent."""
        self._sent.append(pending)
        self._any_sent.set()

    async def run(self, ends: trio.CancelScope) -> None:
        """Watch until cancelled, or until an acknowledgement took too long, which cancels ``ends``."""
        while self.failure is None:
            while self._sent and self.failure is None:
                await self._follow(self._sent[0])
                self._sent.popleft()
            if self.failure is None:
                self._any_sent = trio.Event()
                await self._any_sent.wait()
        ends.cancel()

    async def _follow(self, pending: AppendFuture) -> None:
        """Return when a batch is acknowledged, refused, or took too long."""
        began_s = trio.current_time()
        look_s = _TOLD_AFTER_S
        while self.failure is None:
            with trio.move_on_at(began_s + min(look_s, self._timeout_s)) as patience:
                await pending.wait_done()
            if not patience.cancelled_caught:
                break
            if look_s >= self._timeout_s:
                self.failure = CommandError(
                    f"gave up after {self._timeout_s:g}s without an acknowledgement (--timeout): {self._reason()}; "
                    f"records that are not acknowledged may be stored or not"
                )
            else:
                look_s += _TOLD_AFTER_S
                self._tell()
        if self._told and pending.is_accepted:
            self._told = ""
            note(_PROGRAM, f"{self._shard}: appends are acknowledged again")

    def _tell(self) -> None:
        refusal = self._client.append_refusal(self._shard)
        kind = "silence" if refusal is None else refusal.code
        if kind != self._told:
            self._told = kind
            note(_PROGRAM, f"{self._shard}: waiting: {self._reason(refusal)}")

    def _reason(self, refusal: StorageError | None = None) -> str:
        refusal = refusal or self._client.append_refusal(self._shard)
        return "the server has not answered yet" if refusal is None else one_line(refusal)
