"""Times and bounds of sessions; the defaults are what brokers run with."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True, kw_only=True)
class SessionSettings:
    """How patient the brokers of one store are with each other and with the store.

    Attributes:
        lease_s: A broker that has not renewed its lease for so long is taken for dead. The same on all brokers.
        renew_interval_s: How often a broker renews its own, and looks at those of the others.
        yield_timeout_s: How long to wait for the owner of a session to give it up before it is taken.
        open_timeout_s: How long opening a session may take before the client is told that the store is unavailable.
        save_interval_s: How often positions that moved are stored.
        claims_interval_s: How often claims of messages that a group has passed are deleted.
        timer_interval_s: How often due timers are looked for.
        preference_s: How long a due timer is left to the broker that its key prefers.
        audit_interval_s: How often a broker compares the sessions that it has with those that the store says it has.
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
