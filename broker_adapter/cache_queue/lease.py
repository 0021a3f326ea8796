"""Who may take records out of a cache queue: exactly one at a time, whoever holds its lease.

A lease is renewed as long as its holder lives. One that has not been renewed for a whole lease period, as seen by a
candidate that could look all the time, is taken over with the next epoch. A holder that could not renew it lets go by
itself before anybody may take it: it counts the period from before its last renewal.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.state_forms import decode, encode
from journal.protocol.errors import is_retriable
from shards.errors import StorageError, VersionConflictError
from shards.model import StateValue

_GIVE_BACK_S: Final = 2.0
_CLAIM_BYTES: Final = 8

_log = logging.getLogger(__name__)


@attrs.frozen(slots=True, kw_only=True)
class LeaseSettings:
    """How patient candidates are; the same for all drivers of a queue.

    Attributes:
        lease_s: A lease that has not been renewed for so long may be taken over.
        renew_interval_s: How often it is renewed, and how often candidates look.
    """

    lease_s: float = 9.0
    renew_interval_s: float = 2.0

    @property
    def safe_s(self) -> float:
        """A holder lets go when its last renewal began so long ago."""
        return self.lease_s - self.renew_interval_s


@attrs.frozen(slots=True)
class Grant:
    """A lease that is held.

    Attributes:
        queue: The queue.
        holder: Who holds it.
        epoch: Higher than that of any holder before.
    """

    queue: str
    holder: str
    epoch: int


class QueueLease:
    """A candidate for driving one queue.

    Args:
        adapter: The store.
        queue: The queue.
        holder: The candidate's name, for people.
    """

    def __init__(
        self, adapter: StorageAdapter, queue: str, holder: str, settings: LeaseSettings = LeaseSettings()
    ) -> None:
        self._adapter = adapter
        self._queue = queue
        self._holder = holder
        self._settings = settings
        self._key = names.lease_key(queue)
        self._claim = secrets.token_hex(_CLAIM_BYTES)
        self._held: Lease | None = None
        self._version = 0
        self._taken_s = 0.0

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Grant]:
        """Wait for the lease and hold it while the body runs; give it back afterwards.

        Raises:
            QueueLostError: It was lost meanwhile; the body was cancelled.
        """
        grant = await self._take()
        is_lost = False
        with trio.CancelScope() as body:

            async def renewing() -> None:
                nonlocal is_lost
                try:
                    await self._renew_for_ever()
                except StorageError as error:
                    _log.warning("cache queue %s: the lease cannot be renewed: %s", self._queue, error)
                is_lost = True
                body.cancel()

            async with background_tasks() as tasks:
                tasks.start_soon(renewing)
                try:
                    yield grant
                finally:
                    tasks.cancel_scope.cancel()
                    if not is_lost:
                        await self._give_back()
        if is_lost:
            raise QueueLostError(f"{self._holder} does not drive the cache queue {self._queue!r} any more")

    async def _take(self) -> Grant:
        watch = LeaseWatch(self._settings.lease_s, 2 * self._settings.renew_interval_s)
        while True:
            try:
                grant = await self._try_to_take(watch)
            except StorageError as error:
                if not is_retriable(error):
                    raise
                _log.info("cache queue %s: the store does not answer: %s", self._queue, error)
                grant = None
            if grant is not None:
                return grant
            await trio.sleep(self._settings.renew_interval_s)

    async def _try_to_take(self, watch: LeaseWatch) -> Grant | None:
        began_s = trio.current_time()
        found = await self._adapter.get_state(self._key)
        epoch, version = 0, 0
        if found is not None:
            lease = decode(Lease, found.key, found.value)
            epoch, version = lease.epoch, found.version
            if lease.holder and lease.claim != self._claim:
                _, run_out = watch.look(began_s, trio.current_time(), {lease.claim: version})
                if not run_out:
                    return None
                _log.warning("cache queue %s: %s has not renewed its lease, taking over", self._queue, lease.holder)
        wanted = Lease(self._holder, self._claim, epoch + 1, 0)
        self._taken_s = trio.current_time()
        try:
            self._took(wanted, await self._adapter.put_state(self._key, encode(wanted), expected_version=version))
        except VersionConflictError:
            return None
        if trio.current_time() >= self._taken_s + self._settings.safe_s:
            # The answer took so long that others may have it by now: the next look tells.
            return None
        return Grant(self._queue, self._holder, wanted.epoch)

    def _took(self, lease: Lease, stored: StateValue) -> None:
        self._held = lease
        self._version = stored.version

    async def _renew_for_ever(self) -> None:
        """Renew the lease; return when it is lost."""
        last_s = began_s = self._taken_s
        while True:
            with trio.move_on_at(last_s + self._settings.safe_s) as patience:
                await trio.sleep(self._settings.renew_interval_s)
                began_s = trio.current_time()
                if not await self._renew():
                    return
            if patience.cancelled_caught:
                _log.warning("cache queue %s: the lease could not be renewed in time", self._queue)
                return
            last_s = began_s

    async def _renew(self) -> bool:
        """Renew it, however often that takes; false if somebody else has it."""
        assert self._held is not None
        renewed = Lease(self._held.holder, self._held.claim, self._held.epoch, self._held.renewal_count + 1)
        while True:
            try:
                stored = await self._put(renewed)
            except StorageError as error:
                if not is_retriable(error):
                    raise
                await trio.sleep(self._settings.renew_interval_s / 4)
                continue
            if stored is not None:
                self._took(renewed, stored)
            return stored is not None

    async def _put(self, renewed: Lease) -> StateValue | None:
        try:
            return await self._adapter.put_state(self._key, encode(renewed), expected_version=self._version)
        except VersionConflictError:
            # An earlier try may have been carried out without an answer.
            found = await self._adapter.get_state(self._key)
            is_ours = found is not None and decode(Lease, found.key, found.value) == renewed
            return found if is_ours else None

    async def _give_back(self) -> None:
        """Let others have it at once; if that fails they wait for its end."""
        held, self._held = self._held, None
        if held is None:
            return
        free = Lease("", held.claim, held.epoch, held.renewal_count)
        with trio.move_on_after(_GIVE_BACK_S, shield=True):
            try:
                await self._adapter.put_state(self._key, encode(free), expected_version=self._version)
            except (StorageError, trio.ClosedResourceError) as error:
                _log.info("cache queue %s: the lease was not given back: %s", self._queue, error)
