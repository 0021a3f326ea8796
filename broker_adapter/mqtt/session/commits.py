"""Commits of session transitions: one commit with all changes that belong to a transition.

The publisher says what publishing a will changes, the shared subscriptions what the end of a membership changes. A will
that the store refuses does not stop the transition: the will is dropped, counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from broker_adapter.changes import Changes, Committed
from broker_adapter.errors import ShardNotFoundError, StorageError, VersionConflictError
from broker_adapter.mqtt.access.permissions import user_shown
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry, may_pass
from broker_adapter.mqtt.session.stored import StoredMembership, will_message
from broker_adapter.mqtt.session.transitions import Transition, merged
from broker_adapter.mqtt_codec.text import shown
from shards.seams.clock import Clock

_log = logging.getLogger(__name__)

ChangesFor = Callable[[Message], Awaitable[Changes]]
"""Returns what storing a message takes: its append, and its retained value if it is retained."""


MayPublishWill = Callable[[str, str | None, str | None, str], bool]
"""Returns whether a will may be published: of this client, of a session of this user, from this address, to this
topic. A user or address of None is not known."""


class Memberships(Protocol):
    """Ends memberships of shared subscriptions."""

    async def changes_of_leaving(self, client_id: str, memberships: Sequence[StoredMembership]) -> Changes:
        """The changes that end these memberships of a client; called again after a conflict."""


class Commits:
    """Commits transitions, and messages that were waiting.

    Args:
        store_retry: The store.
        changes_for: Returns the changes of publishing a message.
        memberships: Returns the changes of ending memberships.
        may_publish_will: Returns whether a will may be published.
        clock: Gives published wills their time.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        changes_for: ChangesFor,
        memberships: Memberships,
        may_publish_will: MayPublishWill,
        clock: Clock,
        statistics: SessionStatistics,
    ) -> None:
        self._store_retry = store_retry
        self._changes_for = changes_for
        self._memberships = memberships
        self._may_publish_will = may_publish_will
        self._clock = clock
        self._statistics = statistics

    async def make(self, client_id: str, transition: Transition) -> Committed:
        """Commit a transition.

        Returns:
            The result of the transition's own changes, followed by those of the others.

        Raises:
            VersionConflictError: The session, or a shared subscription, has changed: read it and decide again.
            StorageError: See `StorageAdapter.commit`.
        """
        left = await self._memberships.changes_of_leaving(client_id, transition.left)
        changes = merged((transition.changes, left))
        if transition.will is None:
            return await self._store_retry.commit(changes)
        if not self._may_publish_will(
            client_id, transition.will_user, transition.will_host, transition.will.message.topic
        ):
            _log.warning(
                "the will of client %s to %s is not published: %s may not publish there any more, or is banned",
                shown(client_id),
                shown(transition.will.message.topic),
                user_shown(transition.will_user or ""),
            )
            return await self._store_retry.commit(changes)
        committed = await self.publish(will_message(transition.will, self._clock.now_us()), changes)
        if committed is not None:
            self._statistics.will_count += 1
            return committed
        _log.warning("the will of client %s to %s is dropped", shown(client_id), shown(transition.will.message.topic))
        return await self._store_retry.commit(changes)

    async def publish(self, message: Message, changes: Changes) -> Committed | None:
        """Publish a message together with other changes; None if the store refuses the message permanently.

        Raises:
            VersionConflictError: Of the changes.
            StorageError: The call may be repeated.
        """
        # The shard may have been deleted a moment ago; in the second attempt the publisher creates it again.
        for attempt in range(2):
            try:
                return await self._store_retry.commit(merged((changes, await self._changes_for(message))))
            except VersionConflictError:
                raise
            except ShardNotFoundError:
                if not attempt:
                    continue
                _log.exception("no shard for a message to %s", shown(message.topic))
            except StorageError as error:
                if may_pass(error):
                    raise
                _log.exception("the store refuses a message to %s", shown(message.topic))
        self._statistics.refused_count += 1
        return None
