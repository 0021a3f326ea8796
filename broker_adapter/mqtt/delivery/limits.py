"""Bounds of the delivery side, and how it stands."""

from __future__ import annotations

import attrs

from broker_adapter.errors import InvalidRequestError


def _positive(_owner: object, field: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidRequestError(f"{field.name} is {value}, it must be at least 1")


@attrs.frozen(slots=True, kw_only=True)
class DeliveryLimits:
    """What the delivery side may hold.

    Attributes:
        max_queued_count: Arrivals that wait in one inbox.
        max_queued_bytes: Their payloads, and `ARRIVAL_BYTES` for each. One arrival fits into an empty inbox always.
        max_tails: Live feeds of the broker; with more targets than that they are followed by wider filters.
        max_catching_up: Inboxes that are read for at the same time.
        window_records: About so many records are read for an inbox before its position moves on.
        max_unacknowledged: Arrivals that a member of a group may hold unacknowledged; more go to other members.
        patience_s: A client that takes nothing for so long gives its place among those that are read for to others.
        linger_s: A tail that nobody needs any more stays for so long, for who comes again.
    """

    max_queued_count: int = attrs.field(default=1000, validator=_positive)
    max_queued_bytes: int = attrs.field(default=4 << 20, validator=_positive)
    max_tails: int = attrs.field(default=200, validator=_positive)
    max_catching_up: int = attrs.field(default=64, validator=_positive)
    window_records: int = attrs.field(default=20_000, validator=_positive)
    max_unacknowledged: int = attrs.field(default=64, validator=_positive)
    patience_s: float = 1.0
    linger_s: float = 5.0


@attrs.frozen(slots=True, kw_only=True)
class DeliveryStatistics:
    """The delivery side at one moment; `dropped` and `gaps` count from the start.

    Attributes:
        inboxes: Sessions that are connected here.
        behind: Those that get what they missed from the store.
        queued: Arrivals that wait in all of them.
        dropped: Messages that inboxes did not get because they were full.
        tails: Live feeds.
        catching_up: Inboxes that the store is being read for.
        members: Shares in groups.
        replays: Replays under way.
        gaps: Ranges of records that were lost or trimmed before they could be delivered.
    """

    inboxes: int
    behind: int
    queued: int
    dropped: int
    tails: int
    catching_up: int
    members: int
    replays: int
    gaps: int
