"""Closes sessions whose owner does not have them any more: of dead brokers, and of this one if it and the store differ.

They are closed in place of their owner, as if the connection had been lost, with will and timers.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import attrs
import msgspec
import trio

from broker_adapter.errors import CorruptionError, FormatVersionError, StorageError, VersionConflictError
from broker_adapter.mqtt.session import keys, transitions
from broker_adapter.mqtt.session.commits import Commits
from broker_adapter.mqtt.session.keyed_lock import KeyedLock
from broker_adapter.mqtt.session.leases import Leases
from broker_adapter.mqtt.session.owned_session import OwnedSession
from broker_adapter.mqtt.session.session import PendingPublishes
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.mqtt.session.stored import ProgressRecord, SessionRecord
from broker_adapter.mqtt.session.transitions import Found
from broker_adapter.state_forms import decode
from shards.model import StateValue
from shards.seams.clock import Clock

_log = logging.getLogger(__name__)

_MAX_AT_ONCE: Final = 16
_CLAIM_EVERY: Final = 200


class OrphanCleanup:
    """Closes sessions that no broker has open.

    Args:
        store_retry: The store.
        commits: Commits the changes.
        leases: Tells which brokers are dead.
        broker_id: This broker.
        locks: Held during each action about a client.
        pending_publishes: Unanswered publishes of this broker's lost sessions; answered before these are closed.
        fence: Ends the connections of brokers that had a client's session earlier.
        open_here: Returns the sessions that are open at this broker, by client.
        clock: Gives the time at which they end.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        commits: Commits,
        leases: Leases,
        broker_id: str,
        locks: KeyedLock,
        pending_publishes: PendingPublishes,
        *,
        fence: Callable[[str, Iterable[str]], Awaitable[None]],
        open_here: Callable[[], dict[str, OwnedSession]],
        clock: Clock,
        statistics: SessionStatistics,
    ) -> None:
        self._store_retry = store_retry
        self._commits = commits
        self._leases = leases
        self._fence = fence
        self._broker_id = broker_id
        self._locks = locks
        self._pending_publishes = pending_publishes
        self._open_here = open_here
        self._clock = clock
        self._statistics = statistics

    async def adopt(self, broker_id: str, lease: StateValue) -> None:
        """Close the connections of a dead broker to the store, and close its sessions.

        Stops when another broker does it, or when the broker has renewed its lease.

        Raises:
            StorageError: The store does not answer. The lease still exists, so a broker will try again.
        """
        claimed = await self._leases.claim(lease)
        if claimed is not None:
            await self._leases.end_client(claimed)
        seen: set[tuple[bytes, int]] = set()
        while claimed is not None:
            marks = await self._marks(broker_id)
            if not marks:
                await self._leases.remove(claimed)
                return
            if seen.issuperset((mark.key, mark.version) for mark in marks):
                _log.error("%d sessions of dead broker %r cannot be closed", len(marks), broker_id)
                return
            seen.update((mark.key, mark.version) for mark in marks)
            _log.warning("broker %r is dead: closing %d of its sessions", broker_id, len(marks))
            for first in range(0, len(marks), _CLAIM_EVERY):
                await self._close_all(broker_id, marks[first : first + _CLAIM_EVERY])
                claimed = await self._leases.claim(claimed)
                if claimed is None:
                    return

    async def audit(self) -> None:
        """Compare the sessions that this broker has open with those that are marked as its own in the store.

        Raises:
            StorageError: The store does not answer.
        """
        before = list(self._open_here().values())
        marks = await self._marks(self._broker_id)
        await self._close_all(self._broker_id, [one for one in marks if _client_of(one) not in self._open_here()])
        marked = {_client_of(one) for one in marks}
        for owned in before:
            if owned.session.client_id not in marked and owned.session.is_open:
                await self.verify(owned)

    async def verify(self, owned: OwnedSession) -> None:
        """Give up a session that the store says has another owner."""
        client_id = owned.session.client_id
        found = await read(self._store_retry, client_id, with_progress=False)
        if found.record is None or found.record.claim != owned.claim:
            _log.warning("the session of client %r was taken over without notice", client_id)
            owned.lose()

    async def check(self, client_id: str) -> None:
        """Close a session that the store says is open at this broker, if it is not.

        Raises:
            StorageError: The store does not answer.
        """
        await self._close(self._broker_id, client_id)

    async def _marks(self, broker_id: str) -> list[StateValue]:
        async with self._store_retry.scan(keys.owned(broker_id)) as values:
            return [value async for value in values]

    async def _close_all(self, owner: str, marks: Iterable[StateValue]) -> None:
        room = trio.CapacityLimiter(_MAX_AT_ONCE)
        failed: list[StorageError] = []

        async def close(mark: StateValue) -> None:
            async with room:
                try:
                    await self._close(owner, _client_of(mark), mark)
                except (CorruptionError, FormatVersionError):
                    _log.exception("a session of broker %r cannot be read; it is skipped", owner)
                except StorageError as error:
                    failed.append(error)

        async with trio.open_nursery() as nursery:
            for mark in marks:
                nursery.start_soon(close, mark)
        if failed:
            raise failed[0]

    async def _close(self, owner: str, client_id: str, mark: StateValue | None = None) -> None:
        """Close a session in place of its owner; does nothing if it has another owner now."""
        async with self._locks.take(client_id):
            if owner == self._broker_id:
                await self._pending_publishes.wait_answered(client_id)
            attempt = 0
            while not (owner == self._broker_id and client_id in self._open_here()):
                found = await read(self._store_retry, client_id)
                if found.record is None or found.record.owner != owner:
                    if mark is not None:
                        await self._forget(mark)
                    return
                transition = transitions.closed(
                    await self._fenced(found),
                    self._clock.now_us(),
                    publish_will=True,
                    claim=secrets.randbits(63),
                    restored_lsn=self._store_retry.restored_lsn,
                )
                try:
                    await self._commits.make(client_id, transition)
                except StorageError as error:
                    await self._store_retry.pause_after(error, attempt)
                else:
                    self._statistics.adopted_count += 1
                    return
                attempt += 1

    async def _fenced(self, found: Found) -> Found:
        """The session, after no broker that had it earlier can store publishes of it any more.

        The owner died, or lost the session, before it could end their connections; the record that names them would be
        replaced.
        """
        record = found.record
        if record is None or not record.unfenced:
            return found
        await self._fence(record.client_id, record.unfenced)
        return attrs.evolve(found, record=msgspec.structs.replace(record, unfenced=()))

    async def _forget(self, mark: StateValue) -> None:
        """Delete a mark that does not match the session's record, unless it was just set again."""
        try:
            await self._store_retry.adapter.delete_state(mark.key, expected_version=mark.version)
        except VersionConflictError:
            self._statistics.conflict_count += 1


async def read(store_retry: StoreRetry, client_id: str, *, with_progress: bool = True) -> Found:
    """Read a session from the store; retries as long as the store does not answer.

    The record is read last. A broker that takes a session takes its record no later than its progress, so the progress
    cannot be of a newer owner than the record.
    """
    progress_key, key = keys.progress(client_id), keys.session(client_id)
    progress = await store_retry.get(progress_key) if with_progress else None
    stored = await store_retry.get(key)
    return Found(
        client_id,
        None if stored is None else decode(SessionRecord, key, stored.value),
        0 if stored is None else stored.version,
        None if progress is None else decode(ProgressRecord, progress_key, progress.value),
        0 if progress is None else progress.version,
    )


def _client_of(mark: StateValue) -> str:
    return mark.value.decode()
