"""What a check may do after the connection to the store was lost, before the new connection is used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol

from broker_adapter.results import PendingAppend
from shards.model import StateValue


class Reconnection(Protocol):
    """The store over the new connection, and the appends that were not acknowledged over earlier ones."""

    async def get_state(self, key: bytes) -> StateValue | None:
        """See `StorageAdapter.get_state`."""

    def scan_state(self, prefix: bytes = b"") -> AsyncGenerator[StateValue, None]:
        """See `StorageAdapter.scan_state`."""

    def unanswered_batches(self) -> Sequence[Sequence[PendingAppend]]:
        """The appends of each batch that may have been sent and is not acknowledged. A batch is stored as a whole."""

    def withdraw(self, appends: Collection[PendingAppend]) -> None:
        """Never send these appends again, nor those in the same batch as one of them.

        They fail with `ConnectionLostError`; whether those that were sent are stored is unknown.
        """
