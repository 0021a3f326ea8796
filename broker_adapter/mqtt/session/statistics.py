"""Counters of sessions at one broker."""

from __future__ import annotations

import attrs


@attrs.define(slots=True)
class SessionStatistics:
    """Counters since the broker started; the first two are gauges.

    Attributes:
        connected_count: Sessions that this broker has open now.
        durable_count: Those of them that outlive their connection.
        opened_count: Sessions opened, new ones and others.
        resumed_count: Sessions that existed when their client connected.
        taken_over_count: Sessions taken from another broker or connection that had them open.
        fenced_count: Sessions taken over by another broker or connection.
        forced_count: Sessions taken although their owner did not answer.
        adopted_count: Sessions of dead brokers that this broker closed.
        expired_count: Sessions that this broker ended because they expired.
        fired_count: Timers that this broker fired.
        will_count: Will messages published.
        delayed_count: Delayed messages published.
        refused_count: Will and delayed messages that the store refused permanently, so that they were dropped.
        conflict_count: Writes that were refused because another writer was first.
        retry_count: Calls to the store that were tried again.
    """

    connected_count: int = 0
    durable_count: int = 0
    opened_count: int = 0
    resumed_count: int = 0
    taken_over_count: int = 0
    fenced_count: int = 0
    forced_count: int = 0
    adopted_count: int = 0
    expired_count: int = 0
    fired_count: int = 0
    will_count: int = 0
    delayed_count: int = 0
    refused_count: int = 0
    conflict_count: int = 0
    retry_count: int = 0
