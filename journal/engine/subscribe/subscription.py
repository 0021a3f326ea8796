"""The interface of every subscription of the engine: to one shard, by topic filter, or as a member of a group."""

from __future__ import annotations

import abc
from collections.abc import Callable

import attrs

from shards.subscriptions.events import Notice, Push


@attrs.frozen(slots=True)
class SubscriptionTarget:
    """What is subscribed to: one shard, or all shards that match a filter, now and later; alone or in a group.

    Groups are the same if their targets are equal. Shard and filter are two fields, because one text for both would let
    a client that may only subscribe to a shard of some name join the group on a filter.

    Attributes:
        shard: Name of the shard.
        topic_filter: The filter, if no shard is named.
        group: The group whose members share the records.
    """

    shard: str | None = None
    topic_filter: str | None = None
    group: str | None = None


class Subscription(abc.ABC):
    """A subscription that its owner pulls: a connection of the server, or an adapter inside the process.

    The owner calls `take` when it has credit and `has_more` is true. When `take` has returned None, it waits until the
    subscription calls ``on_ready``, which the owner passed to `Engine.subscribe`. One task at a time calls `take`; the
    other methods do not block, and may be called while `take` waits.
    """

    @property
    @abc.abstractmethod
    def has_more(self) -> bool:
        """Whether `take` may return something."""

    @abc.abstractmethod
    async def take(self, max_bytes: int) -> Push | Notice | None:
        """The next push of up to about ``max_bytes`` (at least one batch) or notice; None if there is none now.

        A shard's notice ``added`` comes before its first push. Pushes of one shard come in the order of offsets, except
        to a member of a group. A damaged or deleted shard ends with a notice. A read that fails because of a shortage
        is retried later. Cancelling `take` loses nothing.
        """

    def acknowledge(self, reference: int, first_offset: int, next_offset: int) -> None:
        """Note that these records were processed. It has an effect only in a group.

        Args:
            reference: The subscription's number for the shard.
            first_offset: First processed offset.
            next_offset: The offset after the last one.
        """

    def credit_changed(self) -> None:
        """Note that the owner can take more: a group then hands out records according to the owner's credit."""

    def restrict(self, may_deliver: Callable[[str], bool] | None) -> None:
        """Deliver from now on only records of shards for whose name this is true; None means all shards.

        It has an effect on subscriptions by filter, and on groups by filter. The answers may change with each call of
        this method. Outside a group, records that are left out are not delivered later, and the progress includes them.

        Args:
            may_deliver: Called with the name of a shard before each push of it. It must not block.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End the subscription; `take` returns nothing more."""
