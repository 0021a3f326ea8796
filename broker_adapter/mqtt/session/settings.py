"""Times and limits of sessions; the defaults are those that brokers use."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True, kw_only=True)
class SessionSettings:
    """Timeouts and intervals of the brokers of one store.

    Attributes:
        lease_s: A broker that has not renewed its lease for so long is declared dead. The same on all brokers.
        renew_interval_s: How often a broker renews its lease, and reads those of the others.
        yield_timeout_s: How long to wait for the owner of a session to give it up before it is taken by force.
        open_timeout_s: How long opening a session may take before CONNACK says that the server is unavailable.
        save_interval_s: How often positions that moved are stored.
        claims_interval_s: How often claims of messages that a group has passed are deleted.
        timer_interval_s: How often due timers are looked for.
        preference_s: How long a due timer is left to the broker that its key prefers.
        audit_interval_s: How often a broker compares its open sessions with those that the store says it has open.
        min_backoff_s: First delay before a call to the store is tried again; it doubles up to ``max_backoff_s``.
        max_backoff_s: Longest such delay.
    """

    lease_s: float = 15.0
    renew_interval_s: float = 5.0
    yield_timeout_s: float = 1.0
    open_timeout_s: float = 5.0
    save_interval_s: float = 1.0
    claims_interval_s: float = 5.0
    timer_interval_s: float = 1.0
    preference_s: float = 2.0
    audit_interval_s: float = 60.0
    min_backoff_s: float = 0.05
    max_backoff_s: float = 2.0
