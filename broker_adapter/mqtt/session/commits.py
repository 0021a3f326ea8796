"""Carrying out what has been decided of a session: one commit with all that belongs to it.

What a will's publication changes is asked of the publisher, what an ended membership changes of the shared
subscriptions. A will that the store does not want holds nothing up: it is dropped, counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from broker_adapter.changes import Changes, Committed
from broker_adapter.errors import ShardNotFoundError, StorageError, VersionConflictError
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry, may_pass
from broker_adapter.mqtt.session.stored import StoredMembership
from broker_adapter.mqtt.session.stored_message import will_message
from broker_adapter.mqtt.session.transitions import Transition, merged
from shards.seams.clock import Clock

_log = logging.getLogger(__name__)

ChangesFor = Callable[[Message], Awaitable[Changes]]
"""What storing a message takes: its append, and its retained value if it is retained."""


class Memberships(Protocol):
    """Where memberships of shared subscriptions end."""

    async def changes_of_leaving(self, client_id: str, memberships: Sequence[StoredMembership]) -> Changes:
        """What it changes that a client leaves them; on a conflict it is asked again."""


class Commits:
    """Makes the commits of transitions, and of messages that were waiting.

    Args:
        store_retry: The store.
        changes_for: The publisher's part.
        memberships: The shared subscriptions' part.
        clock: Dates published wills.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        changes_for: ChangesFor,
        memberships: Memberships,
        clock: Clock,
        statistics: SessionStatistics,
    ) -> None:
        self._store_retry = store_retry
        self._changes_for = changes_for
        self._memberships = memberships
        self._clock = clock
        self._statistics = statistics

    async def make(self, client_id: str, transition: Transition) -> Committed:
        """Carry out a transition.

        Returns:
            What became of the transition's own changes, and behind them of the others.

        Raises:
            VersionConflictError: The session, or a shared subscription, is not what it was: read it and decide again.
            StorageError: As `StorageAdapter.commit` has it.
        """
        left = await self._memberships.changes_of_leaving(client_id, transition.left)
        changes = merged((transition.changes, left))
        if transition.will is None:
            return await self._store_retry.commit(changes)
        committed = await self.publish(will_message(transition.will, self._clock.now_us()), changes)
        if committed is not None:
            self._statistics.will_count += 1
            return committed
        _log.warning("the will of client %r to %r is dropped", client_id, transition.will.message.topic)
        return await self._store_retry.commit(changes)

    async def publish(self, message: Message, changes: Changes) -> Committed | None:
        """Publish a message together with changes; None if the store refuses the message for good.

        Raises:
            VersionConflictError: Of the changes.
            StorageError: It may be tried again.
        """
        # A shard that was there a moment ago may have been deleted; the second time the publisher makes it again.
        for attempt in range(2):
            try:
                return await self._store_retry.commit(merged((changes, await self._changes_for(message))))
            except VersionConflictError:
                raise
            except ShardNotFoundError:
                if not attempt:
                    continue
                _log.exception("no shard for a message to %r", message.topic)
            except StorageError as error:
                if may_pass(error):
                    raise
                _log.exception("the store refuses a message to %r", message.topic)
        self._statistics.refused_count += 1
        return None
