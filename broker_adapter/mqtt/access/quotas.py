"""Quotas of users: what each may have and do at this broker, and what it may have in the store.

Connections, subscriptions and stored things are refused. Rates delay: a client that has exceeded the rate of its user
is not read until the excess is compensated, and is disconnected if it goes on. An anonymous client counts as a user of
its own, by its client identifier. What is in the store is counted by `session.stored_use`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import structlog
import trio

from broker_adapter.mqtt.access.permissions import Principal, user_shown
from journal.access.quotas import DEEPEST_DEBT_S, Bucket

_LONGEST_WAIT_S: Final = 5.0
"""A client is read at least this often, so that it can send PINGREQ and is noticed when it has gone."""

_REMEMBERED: Final = 10_000
_LOGGED_EVERY_S: Final = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class Limit(enum.StrEnum):
    """The limits of a user: names of settings, and of `rate`, which stands for messages and bytes per second."""

    CONNECTIONS = "connections"
    CONNECTS = "connects_per_s"
    RATE = "rate"
    SUBSCRIPTIONS = "subscriptions"
    SESSIONS = "sessions"
    RETAINED = "retained"
    RETAINED_BYTES = "retained_bytes"
    DELAYED = "delayed"


_STORED: Final = frozenset({Limit.SESSIONS, Limit.RETAINED, Limit.RETAINED_BYTES, Limit.DELAYED})


@attrs.frozen(slots=True)
class Quota:
    """Limits of a user; 0 means no limit. Those of `sessions` and below hold for all brokers of the store together.

    Attributes:
        user: Name of the user; empty for each user without a quota of its own, and for anonymous clients.
        connections: Clients that are connected.
        publishes_per_s: PUBLISH packets from its clients per second.
        bytes_per_s: Bytes from its clients per second.
        connects_per_s: Clients that are accepted per second.
        subscriptions: Of each of its sessions.
        sessions: Of connected clients, and of those that are away.
        retained: Retained messages.
        retained_bytes: Payloads of the retained messages.
        delayed: Messages that wait until they are due.
    """

    user: str = ""
    connections: int = 0
    publishes_per_s: int = 0
    bytes_per_s: int = 0
    connects_per_s: int = 0
    subscriptions: int = 0
    sessions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    delayed: int = 0

    def allowed(self, limit: Limit) -> int:
        """The value of a limit that is a number of things; 0 for no limit."""
        return int(getattr(self, limit.value))

    @property
    def stored_limits(self) -> frozenset[Limit]:
        """The limits of things in the store that it has."""
        return frozenset(limit for limit in _STORED if self.allowed(limit))


_NO_QUOTA: Final = Quota()


class Refusals:
    """Counts what was refused because of quotas, and logs it, at most one line in a second.

    Args:
        clock: Seconds, never going backwards.

    Attributes:
        counts: Refusals by limit.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[Limit] = Counter(dict.fromkeys(Limit, 0))
        self._clock = clock
        self._logged_at_s = -_LOGGED_EVERY_S
        self._unlogged = 0

    def note(self, limit: Limit, user: str) -> None:
        """Something was refused to a user."""
        self.counts[limit] += 1
        now_s = self._clock()
        if now_s - self._logged_at_s < _LOGGED_EVERY_S:
            self._unlogged += 1
            return
        log.warning("a quota is exceeded", user=user_shown(user), limit=limit.value, others_since=self._unlogged)
        self._logged_at_s, self._unlogged = now_s, 0


class Account:
    """The present use of one user.

    Attributes:
        user: Name of the user; empty for an anonymous client.
        quota: Its limits.
        clients: Its connections, by client identifier.
        is_overrun: Its clients went on sending while they were delayed, and it cannot compensate that in a minute.
    """

    def __init__(self, user: str, quota: Quota, now_s: float) -> None:
        self.user = user
        self.quota = quota
        self.clients: Counter[str] = Counter()
        self._publishes = Bucket(quota.publishes_per_s, now_s) if quota.publishes_per_s else None
        self._bytes = Bucket(quota.bytes_per_s, now_s) if quota.bytes_per_s else None
        self._connects = Bucket(quota.connects_per_s, now_s) if quota.connects_per_s else None
        self.is_overrun = False

    def connect(self, now_s: float) -> bool:
        """Count a client that connects; false if there were too many in the last second, and it does not count."""
        if self._connects is None:
            return True
        if self._connects.wait_s(now_s):
            return False
        self._connects.spend(1, now_s)
        return True

    def received(self, publish_count: int, received_bytes: int, now_s: float) -> float:
        """Count what a client sent; return for how many seconds nothing more may be read from it."""
        wait_s = 0.0
        for bucket, amount in ((self._publishes, publish_count), (self._bytes, received_bytes)):
            if bucket is not None:
                was_delayed = bucket.wait_s(now_s) > _LONGEST_WAIT_S
                bucket.spend(amount, now_s)
                left_s = bucket.wait_s(now_s)
                if was_delayed and amount and left_s >= DEEPEST_DEBT_S:
                    self.is_overrun = True
                wait_s = max(wait_s, left_s)
        return min(wait_s, _LONGEST_WAIT_S)

    def is_idle(self, now_s: float) -> bool:
        """Whether it has no connections, and no rate to compensate."""
        buckets = (self._publishes, self._bytes, self._connects)
        return not self.clients and all(bucket is None or bucket.is_full(now_s) for bucket in buckets)


class Quotas:
    """The quotas of a broker, and the present use of its users.

    Args:
        quotas: At most one for each user.
        clock: Seconds, never going backwards.

    Attributes:
        refusals: Counts what was refused.
        limits_of_any: The limits of things in the store that any quota has.
    """

    def __init__(self, quotas: Iterable[Quota] = (), clock: Callable[[], float] = trio.current_time) -> None:
        self._quotas = {quota.user: quota for quota in quotas}
        self._clock = clock
        self._accounts: dict[tuple[str, str], Account] = {}
        self.refusals = Refusals(clock)
        self.limits_of_any = frozenset[Limit]().union(*(quota.stored_limits for quota in self._quotas.values()))

    @property
    def limit_stored(self) -> bool:
        """Whether any quota limits what is in the store."""
        return bool(self.limits_of_any)

    def of(self, user: str) -> Quota:
        """The quota of a user; one without limits if it has none."""
        return self._quotas.get(user) or self._quotas.get("") or _NO_QUOTA

    def enter(self, principal: Principal) -> Account | None:
        """Count a connection of a client until `leave`; None if it has no quota.

        A client that connects again while its earlier connection is open takes no second place.

        Raises:
            TooManyConnectionsError: Its user has as many connections as it may have.
            ConnectsTooFastError: Its user connects too often.
        """
        quota = self._quotas.get(principal.username) or self._quotas.get("")
        if quota is None:
            return None
        key = (principal.username, "" if principal.username else principal.client_id)
        account = self._accounts.get(key)
        if account is None:
            self._forget_idle()
            account = self._accounts[key] = Account(principal.username, quota, self._clock())
        clients = account.clients
        if quota.connections and principal.client_id not in clients and len(clients) >= quota.connections:
            raise TooManyConnectionsError(quota.connections)
        if not account.connect(self._clock()):
            raise ConnectsTooFastError(quota.connects_per_s)
        clients[principal.client_id] += 1
        return account

    def leave(self, account: Account, principal: Principal) -> None:
        """The connection has ended."""
        account.clients[principal.client_id] -= 1
        if not account.clients[principal.client_id]:
            del account.clients[principal.client_id]

    def _forget_idle(self) -> None:
        # An account is kept for a while, or a client could begin with a full rate again by reconnecting.
        if len(self._accounts) >= _REMEMBERED:
            now_s = self._clock()
            self._accounts = {key: one for key, one in self._accounts.items() if not one.is_idle(now_s)}


class QuotaError(Exception):
    """A quota of a user does not allow it.

    Attributes:
        limit: The limit that was reached.
    """

    limit: Limit


class TooManyConnectionsError(QuotaError):
    """A user has as many connections as its quota allows."""

    limit = Limit.CONNECTIONS

    def __init__(self, allowed: int) -> None:
        super().__init__(f"its user has {allowed} connections, the most that [[quotas]] allows")


class ConnectsTooFastError(QuotaError):
    """The clients of a user connect more often than its quota allows."""

    limit = Limit.CONNECTS

    def __init__(self, allowed: int) -> None:
        super().__init__(f"clients of its user connect more than {allowed} times a second, quotas.connects_per_s")


class TooManySessionsError(QuotaError):
    """A user has as many sessions as its quota allows."""

    limit = Limit.SESSIONS

    def __init__(self, allowed: int) -> None:
        super().__init__(
            f"its user has {allowed} sessions, the most that quotas.sessions allows; end some, by a DISCONNECT with "
            "session expiry 0 or by a clean session, or wait until they expire"
        )
