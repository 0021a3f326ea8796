"""Requests for the lease of a cache queue that another process holds.

A live driver holds the lease of its queue for as long as it lives. A process that needs the queue for a while stores a
request next to the lease and renews it: the holder sees it at its next renewal and gives the lease back, and no other
process takes the lease while the request exists. Clocks are not compared: a request that has not changed for a whole
lease period is that of a dead process, and any process that waits for the lease removes it.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.stored import Request
from broker_adapter.errors import StorageError, VersionConflictError
from broker_adapter.state_forms import decode, encode

_CLAIM_BYTES: Final = 8
_WITHDRAW_S: Final = 2.0

_log = logging.getLogger(__name__)


@attrs.frozen(slots=True)
class FoundRequest:
    """A request as it was read.

    Attributes:
        asker: Name of the process that made it, for output.
        claim: Random; distinguishes the request from others.
        version: Changes as long as the requesting process is alive.
    """

    asker: str
    claim: str
    version: int


async def find_request(adapter: StorageAdapter, queue: str) -> FoundRequest | None:
    """The request for a queue, if there is one."""
    found = await adapter.get_state(names.request_key(queue))
    if found is None:
        return None
    request = decode(Request, found.key, found.value)
    return FoundRequest(request.asker, request.claim, found.version)


async def remove_request(adapter: StorageAdapter, queue: str, dead: FoundRequest) -> None:
    """Remove the request of a dead process; a request that was renewed meanwhile stays."""
    try:
        await adapter.delete_state(names.request_key(queue), expected_version=dead.version)
    except VersionConflictError:
        return
    _log.warning("cache queue %s: %s requested it and is gone", queue, dead.asker)


class OwnRequest:
    """The request of one process. There is one at a time: a later process waits until the earlier request is gone."""

    def __init__(self, adapter: StorageAdapter, queue: str, asker: str) -> None:
        self._adapter = adapter
        self._queue = queue
        self._key = names.request_key(queue)
        self._asker = asker
        self._claim = secrets.token_hex(_CLAIM_BYTES)
        self._renewal_count = 0
        self._may_stand = False

    def is_same(self, found: FoundRequest) -> bool:
        """Whether a request that was read is this one."""
        return found.claim == self._claim

    async def renew(self, found: FoundRequest | None) -> None:
        """Make the request, or renew it.

        Args:
            found: The present request, None if there is none.
        """
        self._renewal_count += 1
        self._may_stand = True
        request = Request(self._asker, self._claim, self._renewal_count)
        try:
            await self._adapter.put_state(
                self._key, encode(request), expected_version=0 if found is None else found.version
            )
        except VersionConflictError:
            # Another process was first, or this one was declared dead: the next read shows that.
            return

    async def withdraw(self) -> None:
        """Remove the request; if that fails, others wait until it has expired."""
        if not self._may_stand:
            return
        with trio.move_on_after(_WITHDRAW_S, shield=True):
            try:
                found = await find_request(self._adapter, self._queue)
                if found is not None and self.is_same(found):
                    await self._adapter.delete_state(self._key, expected_version=found.version)
                self._may_stand = False
            except (StorageError, trio.ClosedResourceError) as error:
                _log.info("cache queue %s: the request for it was not removed: %s", self._queue, error)
