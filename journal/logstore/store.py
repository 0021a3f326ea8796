"""The interface of a log store: what an existing replicated system has to do for a log.

The implementations are in `stores`, and all pass `tests/logstore/test_store_contract.py`. They block, are called from
threads, and several threads may use one at the same time.
"""

from __future__ import annotations

import enum
from typing import Protocol


class Created(enum.Enum):
    """The answer to one create."""

    OURS = "ours"
    """The key did not exist. Now it holds these bytes, durably and visibly for every reader."""

    EXISTS = "exists"
    """The store says that the key exists. An earlier attempt with an unknown outcome may have made it; some libraries
    also report so that a rival is still being decided about. Who needs to know reads the key."""


class LogStore(Protocol):
    """Immutable objects under keys (see `journal.logstore.keys.check_key`). A key never gets other bytes.

    Every method raises an error of `journal.logstore.errors`: `UnknownOutcomeError`, `StoreUnreachableError`,
    `StoreCredentialsError`, `StoreFullError` or `ForeignStoreError`. It makes one attempt within a bounded time, and
    does not try again inside: the one loop that does is `journal.logstore.settling`.
    """

    def create(self, key: str, data: bytes) -> Created:
        """Store an object if its key does not exist. One of several rivals gets `Created.OURS`.

        It must not return `Created.OURS` before the object is durable and seen by every later `get` and `list_after`.
        After `Created.EXISTS` the object that exists is durable too.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The bytes of an object, durable ones; `None` if there is none."""
        ...

    def list_after(self, key: str) -> list[str]:
        """The keys of the same folder (all up to the last ``/``) that sort after this one, in any order.

        Keys of folders below it are not among them. Every object is listed whose create had returned before the call.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is no error."""
        ...

    def close(self) -> None:
        """Release connections. Nothing else is called afterwards."""
        ...
