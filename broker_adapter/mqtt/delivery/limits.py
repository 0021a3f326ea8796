"""Limits and statistics of delivery."""

from __future__ import annotations

import attrs

from broker_adapter.errors import InvalidRequestError


def _positive(_owner: object, field: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidRequestError(f"{field.name} is {value}, it must be at least 1")


@attrs.frozen(slots=True, kw_only=True)
class DeliveryLimits:
    """Limits of delivery at one broker.

    Attributes:
        max_queued_count: Arrivals that wait in one inbox.
        max_queued_bytes: Bytes of their payloads, plus `ARRIVAL_BYTES` for each. An empty inbox always accepts one.
        max_tails: Live feeds of the broker; with more targets they are replaced by feeds of wider filters.
        max_catching_up: Inboxes that catch up at the same time.
        window_records: Approximate number of records read for an inbox before its position moves on.
        max_unacknowledged: Most unacknowledged arrivals of a member of a group; more go to other members.
        patience_s: An inbox that is not emptied for this long makes room for another one in catch-up, in seconds.
        linger_s: A tail that is not needed any more is kept for this long, in seconds, in case it is needed again.
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
    """Statistics of delivery; `dropped` and `gaps` count from the start, the others are gauges.

    Attributes:
        inboxes: Sessions that are connected here.
        behind: Inboxes that are filled from the store.
        queued: Arrivals that wait in all inboxes.
        dropped: Messages dropped because an inbox was full.
        tails: Live feeds.
        catching_up: Inboxes that catch up now.
        members: Memberships of groups.
        replays: Replays under way.
        gaps: Ranges of records that were lost or trimmed before they could be delivered, or that cannot be read.
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
