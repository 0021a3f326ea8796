"""One session, as the broker that owns it holds it. How it is stored and moves is the business of its neighbours."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import attrs

from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session.outbound_window import OutboundWindow
from broker_adapter.mqtt.session.retained_scan import RetainedScan
from broker_adapter.mqtt_codec.version import Version
from broker_adapter.results import PendingAppend

NEVER_EXPIRES_S: Final = 0xFFFF_FFFF
"""Session expiry interval that stands for no expiry at all."""


@attrs.frozen(slots=True)
class Membership:
    """A session's place in a shared subscription.

    Attributes:
        group: Name of the store's group that the members share. When the last member of a shared subscription is gone,
            the next one founds a group of another name.
        after: The group gets what lies behind this.
    """

    group: str
    after: Position


class Publishes(Protocol):
    """What a connection has appended in the name of its session. What it commits is the session's own business."""

    @property
    def is_answered(self) -> bool:
        """Whether the store has answered all appends."""

    def unanswered(self) -> Collection[PendingAppend]:
        """The appends that the store has not answered."""

    def stop(self) -> None:
        """Hand nothing more to the store, and answer nothing to the client."""

    async def wait_answered(self) -> None:
        """Return when the store has answered all appends."""


@attrs.define(slots=True, eq=False)
class Session:
    """State of one client between and during its connections.

    The connection changes it and tells `Sessions` when something must be, or may be, stored.

    Attributes:
        epoch: Rises with each owner; an older owner is refused by the store.
        expiry_interval_s: How long it outlives its connection; `NEVER_EXPIRES_S` for ever.
        subscriptions: Options by topic filter; shared ones under their whole filter (``$share/...``).
        memberships: Of shared subscriptions, by (group name, topic filter).
        out: Messages on their way to the client.
        inbound: Packet identifiers of QoS 2 messages from the client that are stored and not released, each with the
            digest of its message (`message.digest_of`; 0 if it is not known).
            `Sessions.commit` adds to them; the connection takes out what PUBREL names, and saves that before it sends
            PUBCOMP.
        retained: What is still owed of retained messages, in the order of the subscriptions.
        is_open: Whether this broker still has it. It turns false when the session is closed or taken over.
        publishes: What its connection has published; None before the first PUBLISH.
    """

    client_id: str
    epoch: int
    version: Version
    expiry_interval_s: int
    subscriptions: dict[str, SubscriptionOptions] = attrs.Factory(dict)
    memberships: dict[tuple[str, str], Membership] = attrs.Factory(dict)
    out: OutboundWindow = attrs.Factory(OutboundWindow)
    inbound: dict[int, int] = attrs.Factory(dict)
    retained: list[RetainedScan] = attrs.Factory(list)
    is_open: bool = True
    publishes: Publishes | None = None

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its connection. If not, the store knows little more of it than who owns it."""
        return self.expiry_interval_s > 0

    @property
    def position_lsn(self) -> ReachedLsn:
        """Every matching message with this lsn or a lower one has been taken: it is finished, or under way in `out`."""
        return self.out.position_lsn

    def advance(self, position_lsn: ReachedLsn) -> None:
        """Move the position; a lower one changes nothing. `Sessions.save_soon` stores it."""
        self.out.advance(position_lsn)
