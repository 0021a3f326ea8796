"""The subscriptions of one session: from where the oldest applies, at a cost that does not grow with their number."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, cast

import pytest

from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.shared_tails import SharedTails
from broker_adapter.mqtt.delivery.subscribers import Subscribed, Subscriber
from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.mqtt.model.subscription import SubscriptionOptions

NO_INBOX = cast("Inbox", None)
NO_TAILS = cast("SharedTails", None)


class Counted(dict[str, Subscriber]):
    """Counts how often all subscriptions are gone through."""

    count = 0

    def values(self) -> Any:
        self.count += 1
        return super().values()


def subscriber(number: int, since_lsn: int) -> Subscriber:
    return Subscriber(NO_INBOX, f"a/{number}/+", SubscriptionOptions(1, since=Position(ReachedLsn(since_lsn))))


def oldest_of(subscribers: Iterable[Subscriber]) -> Position | None:
    return min((one.options.since for one in subscribers), default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_subscription_is_known_whatever_is_added_and_removed(seed: int) -> None:
    chance = random.Random(seed)
    subscribed = Subscribed(NO_TAILS)
    for number in range(200):
        if subscribed.by_filter and chance.random() < 0.45:
            subscribed.remove(chance.choice(list(subscribed.by_filter.values())))
        else:
            subscribed.add(subscriber(number, chance.randrange(100)))
        if chance.random() < 0.7:
            assert subscribed.oldest_since == oldest_of(subscribed.by_filter.values())


def test_a_new_subscription_costs_no_look_at_all_others() -> None:
    """It did, so the ten thousandth SUBSCRIBE of a client took thousands of times as long as the first."""
    subscribed = Subscribed(NO_TAILS)
    by_filter = subscribed.by_filter = Counted()
    for number in range(1000):
        subscribed.add(subscriber(number, number))
        assert subscribed.oldest_since == Position(ReachedLsn(0))
    assert by_filter.count == 1
