"""Quotas of users: how many connections each may have at this broker, and how much it may publish through them.

Connections are refused. Rates delay: a client that has exceeded the rate of its user is not read until the excess is
compensated. An anonymous client counts as a user of its own, by its client identifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from broker_adapter.mqtt.access.permissions import Principal
from journal.access.quotas import Bucket

_LONGEST_WAIT_S: Final = 5.0
"""A client is read at least this often, so that it can send PINGREQ and is noticed when it has gone."""

_REMEMBERED: Final = 10_000


@attrs.frozen(slots=True)
class Quota:
    """Limits of a user at one broker; 0 means no limit.

    Attributes:
        user: Name of the user; empty for each user without a quota of its own, and for anonymous clients.
        connections: Clients that are connected.
        publishes_per_s: PUBLISH packets from its clients per second.
        bytes_per_s: Bytes from its clients per second.
    """

    user: str = ""
    connections: int = 0
    publishes_per_s: int = 0
    bytes_per_s: int = 0


class Account:
    """The present use of one user.

    Attributes:
        quota: Its limits.
        clients: Its connections, by client identifier.
    """

    def __init__(self, quota: Quota, now_s: float) -> None:
        self.quota = quota
        self.clients: Counter[str] = Counter()
        self._publishes = Bucket(quota.publishes_per_s, now_s) if quota.publishes_per_s else None
        self._bytes = Bucket(quota.bytes_per_s, now_s) if quota.bytes_per_s else None

    def received(self, publish_count: int, received_bytes: int, now_s: float) -> float:
        """Count what a client sent; return for how many seconds nothing more may be read from it."""
        wait_s = 0.0
        for bucket, amount in ((self._publishes, publish_count), (self._bytes, received_bytes)):
            if bucket is not None:
                bucket.spend(amount, now_s)
                wait_s = max(wait_s, bucket.wait_s(now_s))
        return min(wait_s, _LONGEST_WAIT_S)

    def is_idle(self, now_s: float) -> bool:
        """Whether it has no connections, and no rate to compensate."""
        buckets = (self._publishes, self._bytes)
        return not self.clients and all(bucket is None or bucket.is_full(now_s) for bucket in buckets)


class Quotas:
    """The quotas of a broker, and the present use of its users.

    Args:
        quotas: At most one for each user.
        clock: Seconds, never going backwards.
    """

    def __init__(self, quotas: Iterable[Quota] = (), clock: Callable[[], float] = trio.current_time) -> None:
        self._quotas = {quota.user: quota for quota in quotas}
        self._clock = clock
        self._accounts: dict[tuple[str, str], Account] = {}

    def enter(self, principal: Principal) -> Account | None:
        """Count a connection of a client until `leave`; None if it has no quota.

        A client that connects again while its earlier connection is open takes no second place.

        Raises:
            TooManyConnectionsError: Its user has as many connections as it may have.
        """
        quota = self._quotas.get(principal.username) or self._quotas.get("")
        if quota is None:
            return None
        key = (principal.username, "" if principal.username else principal.client_id)
        account = self._accounts.get(key)
        if account is None:
            self._forget_idle()
            account = self._accounts[key] = Account(quota, self._clock())
        clients = account.clients
        if quota.connections and principal.client_id not in clients and len(clients) >= quota.connections:
            raise TooManyConnectionsError(quota.connections)
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


class TooManyConnectionsError(Exception):
    """A user has as many connections as its quota allows."""

    def __init__(self, allowed: int) -> None:
        super().__init__(f"its user has {allowed} connections, the most that [[quotas]] allows")
