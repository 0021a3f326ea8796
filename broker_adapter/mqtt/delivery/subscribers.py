"""The subscriptions of the sessions at this broker, and lookup by topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from broker_adapter.mqtt.delivery.record_group import Match
from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from shards.topics.filter_index import FilterIndex

if TYPE_CHECKING:
    from broker_adapter.mqtt.delivery.inbox import Inbox
    from broker_adapter.mqtt.delivery.shared_tails import Need, SharedTails

_CACHED_TOPICS: Final = 10_000


class Subscriber:
    """One subscription of a session that is connected here.

    Attributes:
        options: May be replaced; call `Subscribers.changed` then.
        needs: Targets that it needs from the tails.
        live_need: Target that it needs from the tail of messages that are not kept.
    """

    __slots__ = ("inbox", "live_need", "needs", "options", "topic_filter")

    def __init__(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> None:
        self.inbox = inbox
        self.topic_filter = topic_filter
        self.options = options
        self.needs: list[Need] = []
        self.live_need: Need | None = None


class Subscribed:
    """The subscriptions of one session that is connected here.

    Attributes:
        by_filter: All of them.
        version: Changes whenever they change.
    """

    __slots__ = ("_known_at", "_oldest", "_reached_lsn", "_tails", "by_filter", "version")

    def __init__(self, tails: SharedTails) -> None:
        self.by_filter: dict[str, Subscriber] = {}
        self._tails = tails
        self.version = 0
        self._known_at = -1
        self._oldest: Subscriber | None = None  # found when it is asked for
        self._reached_lsn = ReachedLsn(0)

    def add(self, subscriber: Subscriber) -> None:
        """Add a subscription; the session has none to this filter."""
        self.by_filter[subscriber.topic_filter] = subscriber
        if self._oldest is not None and subscriber.options.since < self._oldest.options.since:
            self._oldest = subscriber
        self.changed()

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscription."""
        del self.by_filter[subscriber.topic_filter]
        if subscriber is self._oldest:
            self._oldest = None
        self.changed()

    @property
    def oldest_since(self) -> Position | None:
        """The position from which the oldest subscription applies; None without subscriptions.

        It is kept, because a session may have thousands of subscriptions, and it is asked for at each new one.
        """
        if self._oldest is None:
            self._oldest = min(self.by_filter.values(), key=lambda one: one.options.since.lsn, default=None)
        return None if self._oldest is None else self._oldest.options.since

    @property
    def reached_lsn(self) -> ReachedLsn:
        """Everything that they need was handed out by tails up to this lsn; 0 without subscriptions."""
        if self._known_at != self._tails.progress_count:
            self._known_at = self._tails.progress_count
            reached = [need.reached_lsn for subscriber in self.by_filter.values() for need in subscriber.needs]
            self._reached_lsn = min(reached, default=ReachedLsn(0))
        return self._reached_lsn

    def changed(self) -> None:
        """The subscriptions were changed, or options of one were replaced; where one applies from never changes."""
        self._known_at = -1
        self.version += 1

    def targets(self) -> list[str]:
        """Shards and filters over shards in which their messages are stored."""
        return [need.target for subscriber in self.by_filter.values() for need in subscriber.needs]


class Subscribers:
    """A set of subscriptions, with lookup by topic."""

    def __init__(self, subscribers: Iterable[Subscriber] = ()) -> None:
        self._index: FilterIndex[Subscriber] = FilterIndex()
        self._known: dict[str, list[Match]] = {}
        for subscriber in subscribers:
            self.add(subscriber)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, subscriber: Subscriber) -> None:
        """Add a subscription.

        Raises:
            InvalidNameError: Its filter is not valid.
        """
        self._index.add(subscriber.topic_filter, subscriber)
        self._known.clear()

    def discard(self, subscriber: Subscriber) -> None:
        """Remove a subscription."""
        self._index.discard(subscriber.topic_filter, subscriber)
        self._known.clear()

    def changed(self) -> None:
        """Options of a subscription were replaced."""
        self._known.clear()

    def match(self, topic: str) -> list[Match]:
        """The sessions with subscriptions that match a topic, each once."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _CACHED_TOPICS:
                self._known.clear()
            found = self._known[topic] = self._look_up(topic)
        return found

    def _look_up(self, topic: str) -> list[Match]:
        by_inbox: dict[Inbox, list[SubscriptionOptions]] = {}
        for subscriber in self._index.match(topic):
            by_inbox.setdefault(subscriber.inbox, []).append(subscriber.options)
        return [Match(inbox, options) for inbox, options in by_inbox.items()]
