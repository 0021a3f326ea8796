"""What a program may do when the connection to its store was lost and another one stands, before that one is used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol

from broker_adapter.results import PendingAppend
from shards.model import StateValue


class Reconnection(Protocol):
    """The store over the new connection, and the appends that were not answered over earlier ones."""

    async def get_state(self, key: bytes) -> StateValue | None:
        """See `StorageAdapter.get_state`."""

    def scan_state(self, prefix: bytes = b"") -> AsyncGenerator[StateValue, None]:
        """See `StorageAdapter.scan_state`."""

    def unanswered_batches(self) -> Sequence[Sequence[PendingAppend]]:
        """The appends of each batch that may have been sent and was not answered: they are stored together or not."""

    def withdraw(self, appends: Collection[PendingAppend]) -> None:
        """Never send these appends again, nor those that share a batch with one of them.

        They fail with `ConnectionLostError`: whether those that were sent are stored is not known.
        """
