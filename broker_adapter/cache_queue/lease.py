"""Lease of a cache queue: only its holder may take records out, one process at a time.

A lease is renewed as long as its holder is alive. A lease that was not renewed for a whole lease period, as seen by a
candidate that could read it all that time, is taken over with the next epoch. A holder that could not renew it stops by
itself before another process may take it: it counts the period from before its last renewal. A holder also gives the
lease up when another process requests it (`lease_request`).
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
from broker_adapter.cache_queue.lease_request import FoundRequest, OwnRequest, find_request, remove_request
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.errors import StorageError, VersionConflictError, is_retriable
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.state_forms import decode, encode
from shards.model import StateValue

_GIVE_BACK_S: Final = 2.0
_CLAIM_BYTES: Final = 8

_log = logging.getLogger(__name__)


@attrs.frozen(slots=True, kw_only=True)
class LeaseSettings:
    """Times of leases; the same for all drivers of a queue.

    Attributes:
        lease_s: A lease that has not been renewed for this long may be taken over.
        renew_interval_s: How often it is renewed, and how often candidates read it.
    """

    lease_s: float = 9.0
    renew_interval_s: float = 2.0

    @property
    def safe_s(self) -> float:
        """A holder stops when its last renewal began this long ago, in seconds."""
        return self.lease_s - self.renew_interval_s


@attrs.frozen(slots=True)
class Grant:
    """A lease that is held.

    Attributes:
        queue: The queue.
        holder: Name of the holder.
        epoch: Higher than that of any earlier holder.
        is_asked_for: Set when another process requests it: the holder finishes its work in progress and leaves the
            context. It is cancelled if that takes longer than `LeaseSettings.renew_interval_s`.
    """

    queue: str
    holder: str
    epoch: int
    is_asked_for: trio.Event = attrs.field(factory=trio.Event, eq=False, repr=False)


@attrs.frozen(slots=True)
class _Loss:
    """Why a lease is not held any more.

    Attributes:
        reason: For people.
        is_ours: Whether this holder still has to give it back.
    """

    reason: str
    is_ours: bool


class QueueLease:
    """A candidate for driving one queue.

    Args:
        adapter: The store.
        queue: The queue.
        holder: The candidate's name, for output.
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
    async def hold(self, *, ask: bool = False) -> AsyncIterator[Grant]:
        """Hold the lease as an async context manager: wait for it, and give it back at the end.

        Args:
            ask: Request it from the present holder, and ignore requests of others. Otherwise the lease is given up when
                another process requests it, and is not taken while there is a request.

        Raises:
            QueueLostError: It was lost meanwhile, or given up for a request; the body was cancelled.
        """
        grant = await self._take(OwnRequest(self._adapter, self._queue, self._holder) if ask else None)
        loss: _Loss | None = None
        with trio.CancelScope() as body:

            async def renewing() -> None:
                nonlocal loss
                try:
                    loss = await self._renew_until_lost(is_asker=ask)
                    if loss.is_ours:
                        grant.is_asked_for.set()
                        await trio.sleep(self._settings.renew_interval_s)
                except StorageError as error:
                    _log.warning("cache queue %s: the lease cannot be renewed: %s", self._queue, error)
                    loss = _Loss(f"its lease cannot be renewed: {error}", is_ours=False)
                body.cancel()

            async with background_tasks() as tasks:
                tasks.start_soon(renewing)
                try:
                    yield grant
                finally:
                    tasks.cancel_scope.cancel()
                    if loss is None or loss.is_ours:
                        await self._give_back()
        if loss is not None:
            raise QueueLostError(
                f"{self._holder} does not drive the cache queue {self._queue!r} any more: {loss.reason}"
            )

    async def holder(self) -> str:
        """Name of the holder, or of the last one if it did not give it back; empty if the lease is free."""
        found = await self._adapter.get_state(self._key)
        return "" if found is None else decode(Lease, found.key, found.value).holder

    async def _take(self, own: OwnRequest | None) -> Grant:
        watch = LeaseWatch(self._settings.lease_s, 2 * self._settings.renew_interval_s)
        try:
            while True:
                try:
                    grant = await self._try_to_take(watch, own)
                except StorageError as error:
                    if not is_retriable(error):
                        raise
                    _log.info("cache queue %s: the store does not answer: %s", self._queue, error)
                    grant = None
                if grant is not None:
                    return grant
                await trio.sleep(self._settings.renew_interval_s)
        finally:
            # The new holder needs no request any more: nothing can take the lease from it now.
            if own is not None:
                await own.withdraw()

    async def _try_to_take(self, watch: LeaseWatch, own: OwnRequest | None) -> Grant | None:
        began_s = trio.current_time()
        found = await self._adapter.get_state(self._key)
        lease = None if found is None else decode(Lease, found.key, found.value)
        request = await find_request(self._adapter, self._queue)
        versions: dict[str, int] = {}
        if found is not None and lease is not None and lease.holder and lease.claim != self._claim:
            versions[lease.claim] = found.version
        if request is not None and (own is None or not own.is_same(request)):
            versions[request.claim] = request.version
        _, run_out = watch.look(began_s, trio.current_time(), versions)
        if request is not None and request.claim in run_out:
            await remove_request(self._adapter, self._queue, request)
            request = None
        if request is not None and request.claim in versions:
            return None
        if own is not None:
            await own.renew(request)
        if lease is not None and lease.claim in versions:
            if lease.claim not in run_out:
                return None
            _log.warning("cache queue %s: %s has not renewed its lease, taking over", self._queue, lease.holder)
        epoch = 0 if lease is None else lease.epoch
        wanted = Lease(self._holder, self._claim, epoch + 1, 0)
        self._taken_s = trio.current_time()
        try:
            stored = await self._adapter.put_state(
                self._key, encode(wanted), expected_version=0 if found is None else found.version
            )
        except VersionConflictError:
            return None
        self._took(wanted, stored)
        if trio.current_time() >= self._taken_s + self._settings.safe_s:
            # The answer took so long that another process may have it by now: the next read shows that.
            return None
        return Grant(self._queue, self._holder, wanted.epoch)

    def _took(self, lease: Lease, stored: StateValue) -> None:
        self._held = lease
        self._version = stored.version

    async def _renew_until_lost(self, *, is_asker: bool) -> _Loss:
        """Renew the lease until it is lost or requested by another process."""
        last_s = began_s = self._taken_s
        while True:
            with trio.move_on_at(last_s + self._settings.safe_s) as patience:
                await trio.sleep(self._settings.renew_interval_s)
                began_s = trio.current_time()
                if not await self._renew():
                    return _Loss("another process took it over", is_ours=False)
            if patience.cancelled_caught:
                _log.warning("cache queue %s: the lease could not be renewed in time", self._queue)
                return _Loss("its lease could not be renewed in time", is_ours=False)
            last_s = began_s
            request = None if is_asker else await self._request()
            if request is not None:
                _log.info("cache queue %s: giving the lease up for %s", self._queue, request.asker)
                return _Loss(f"{request.asker} requested it", is_ours=True)

    async def _request(self) -> FoundRequest | None:
        """The request for it, if any; also None if the store does not answer at once: it is read again soon."""
        with trio.move_on_after(self._settings.renew_interval_s / 2):
            try:
                return await find_request(self._adapter, self._queue)
            except StorageError as error:
                if not is_retriable(error):
                    raise
        return None

    async def _renew(self) -> bool:
        """Renew it, with retries; false if another process has it."""
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
            # An earlier attempt may have been carried out without an answer.
            found = await self._adapter.get_state(self._key)
            is_ours = found is not None and decode(Lease, found.key, found.value) == renewed
            return found if is_ours else None

    async def _put_free(self, free: Lease) -> None:
        try:
            await self._adapter.put_state(self._key, encode(free), expected_version=self._version)
        except VersionConflictError:
            # A cancelled renewal may have been carried out.
            found = await self._adapter.get_state(self._key)
            if found is None or decode(Lease, found.key, found.value).claim != free.claim:
                return
            await self._adapter.put_state(self._key, encode(free), expected_version=found.version)

    async def _give_back(self) -> None:
        """Free the lease at once; if that fails, others wait until it expires."""
        held, self._held = self._held, None
        if held is None:
            return
        free = Lease("", held.claim, held.epoch, held.renewal_count)
        with trio.move_on_after(_GIVE_BACK_S, shield=True):
            try:
                await self._put_free(free)
            except (StorageError, trio.ClosedResourceError) as error:
                _log.info("cache queue %s: the lease was not given back: %s", self._queue, error)
