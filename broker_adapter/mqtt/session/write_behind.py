"""Write-behind of sessions: positions that moved are stored at intervals, many sessions in one commit."""

from __future__ import annotations

import itertools
import logging
from typing import Final

import trio

from broker_adapter.changes import Changes
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.session.errors import SessionTakenOverError
from broker_adapter.mqtt.session.owned_session import OwnedSession
from broker_adapter.mqtt.session.store_retry import StoreRetry

_log = logging.getLogger(__name__)

_SAVED_TOGETHER: Final = 64


class WriteBehind:
    """The sessions of one broker whose positions moved since they were stored.

    Args:
        store_retry: The store.
        interval_s: How often they are stored, in seconds.
    """

    def __init__(self, store_retry: StoreRetry, interval_s: float) -> None:
        self._store_retry = store_retry
        self._interval_s = interval_s
        self._moved: dict[OwnedSession, None] = {}

    def add(self, owned: OwnedSession) -> None:
        """Store a session at the next interval."""
        self._moved[owned] = None

    def discard(self, owned: OwnedSession) -> None:
        """Remove a session that this broker does not own any more."""
        self._moved.pop(owned, None)

    async def run(self) -> None:
        """Store the sessions that moved at each interval, until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            moved, self._moved = self._moved, {}
            rest = iter(moved)
            while chunk := list(itertools.islice(rest, _SAVED_TOGETHER)):
                await self._save_together(chunk)

    async def _save_together(self, chunk: list[OwnedSession]) -> None:
        """Store many sessions in one commit; if it is refused, each by itself."""
        held: list[OwnedSession] = []
        is_stored = False
        try:
            for owned in chunk:
                if not owned.session.is_open:
                    continue
                if owned.lock.locked():
                    self._moved[owned] = None  # it is being written now, perhaps without the newest position
                    continue
                owned.lock.acquire_nowait()
                held.append(owned)
            if not held:
                await trio.lowlevel.checkpoint()
                return
            snapshots = [owned.begin_snapshot() for owned in held]
            committed = await self._store_retry.commit(Changes(puts=tuple(put for put, _ in snapshots)))
            for owned, value, (_, covers) in zip(held, committed.values, snapshots, strict=True):
                owned.snapshot_stored(value.version, covers)
            is_stored = True
        except StorageError as error:
            _log.debug("%d sessions are stored one by one: %s", len(held), error)
        finally:
            for owned in held:
                owned.lock.release()
        if not is_stored:
            for owned in held:
                await self._save_alone(owned)

    async def _save_alone(self, owned: OwnedSession) -> None:
        try:
            await owned.save()
        except SessionTakenOverError as error:
            _log.info("%s", error)
        except StorageError:
            # The connection gets the same error when it has to store something.
            _log.exception("the session of client %r cannot be stored", owned.session.client_id)
