"""Quotas: how much one principal, and all of them together, may have of the server. What they do have, is counted here.

Rates delay: who has overspent is not read from until the debt is paid, so a client that sends ahead is slowed down and
one that waits for answers notices longer answers. Connections are refused. Shards and stored bytes are refused by who
measures them, by the limits that are kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from journal.access.rates import Bucket
from journal.access.rules import AccessRule, User
from journal.protocol.errors import QuotaExceededError
from journal.settings.values import format_size
from shards.topics.topic_filters import matches

ALL_TOGETHER: Final = "*"
_LONGEST_WAIT_S: Final = 5.0
"""A connection is read from at least this often, so that a peer that asks whether the server lives gets its answer."""


@attrs.frozen(slots=True)
class Quota:
    """Bounds; 0 is none.

    Attributes:
        principal: Whose; empty for each that has no quota of its own, ``*`` for all together.
        topics: Which shards count for `stored_bytes` and `shards`; ``%u`` stands for the principal's name.
        connections: At the same time.
        requests_per_s: Requests and record batches.
        bytes_per_s: Received, fetched and pushed.
        stored_bytes: In the shards.
        shards: How many.
        producers: Names of producers, of which those that are not used for long go by themselves.
    """

    principal: str = ""
    topics: tuple[str, ...] = ()
    connections: int = 0
    requests_per_s: int = 0
    bytes_per_s: int = 0
    stored_bytes: int = 0
    shards: int = 0
    producers: int = 0

    def filters_for(self, name: str) -> tuple[str, ...]:
        """Which shards count for a principal."""
        return AccessRule(True, self.topics).filters_for(User(name))


class Account:
    """What one principal, or all together, have at the moment.

    Attributes:
        name: Whose it is; ``*`` for all together.
        quota: Its bounds.
        connections: How many are open.
        filters: Which shards count for it.
        shards: How many there are, as far as it was measured.
        stored_bytes: How much they hold, as far as it was measured.
        was_measured: Whether it ever was.
    """

    def __init__(self, name: str, quota: Quota, now: float) -> None:
        self.name = name
        self.quota = quota
        self.connections = 0
        self.filters = quota.filters_for(name)
        self.shards = 0
        self.stored_bytes = 0
        self.was_measured = False
        self._requests = Bucket(quota.requests_per_s, now) if quota.requests_per_s else None
        self._bytes = Bucket(quota.bytes_per_s, now) if quota.bytes_per_s else None

    def counts(self, shard: str) -> bool:
        """Whether a shard counts for it."""
        return any(matches(each, shard) for each in self.filters)

    def counts_earlier(self, shard: str, before: int) -> bool:
        """Whether one of its first filters has a shard, which must not be counted twice."""
        return any(matches(each, shard) for each in self.filters[:before])

    @property
    def is_full(self) -> bool:
        """Whether its shards hold all that they may."""
        return 0 < self.quota.stored_bytes <= self.stored_bytes

    @property
    def measures(self) -> bool:
        """Whether its shards have to be measured."""
        return bool(self.filters and (self.quota.stored_bytes or self.quota.shards))

    def __str__(self) -> str:
        if self.quota.principal == ALL_TOGETHER:
            return "all principals together"
        return f"principal {self.name!a}" if self.name else "principals without a name"

    def spend(self, requests: int, size_bytes: int, now: float) -> None:
        """Take note of traffic."""
        if self._requests is not None and requests:
            self._requests.spend(requests, now)
        if self._bytes is not None and size_bytes:
            self._bytes.spend(size_bytes, now)

    def wait_s(self, now: float) -> float:
        """How long until it may go on."""
        return max((bucket.wait_s(now) for bucket in (self._requests, self._bytes) if bucket is not None), default=0.0)


class Meter:
    """The accounts of one connection: its principal's and that of all together.

    Args:
        accounts: At least one.
        clock: Seconds, never going backwards.
    """

    def __init__(self, accounts: tuple[Account, ...], clock: Callable[[], float]) -> None:
        self.accounts = accounts
        self._clock = clock

    def spend(self, requests: int, size_bytes: int) -> None:
        """Take note of traffic."""
        now = self._clock()
        for account in self.accounts:
            account.spend(requests, size_bytes, now)

    @property
    def has_overspent(self) -> bool:
        """Whether `wait` would wait."""
        now = self._clock()
        return any(account.wait_s(now) for account in self.accounts)

    async def wait(self) -> None:
        """Return when the debt is paid, or after so long that the peer would wonder."""
        now = self._clock()
        await trio.sleep(min(_LONGEST_WAIT_S, max(account.wait_s(now) for account in self.accounts)))

    def check_new_shard(self, name: str) -> None:
        """Make sure that there may be a shard more.

        Raises:
            QuotaExceededError: There may be none.
        """
        for account in self.accounts:
            limit = account.quota.shards
            if limit and account.shards >= limit and account.counts(name):
                raise QuotaExceededError(
                    f"{account} have {account.shards} shards in {', '.join(account.filters)}, and quotas.shards allows "
                    f"{limit}; delete some, or have the quota raised"
                )

    def check_new_producer(self, own: int, of_all: int) -> None:
        """Make sure that there may be a producer more.

        Args:
            own: How many the principal has.
            of_all: How many there are.

        Raises:
            QuotaExceededError: There may be none.
        """
        for account in self.accounts:
            limit = account.quota.producers
            found = of_all if account.quota.principal == ALL_TOGETHER else own
            if limit and found >= limit:
                raise QuotaExceededError(
                    f"{account} have {found} producers, and quotas.producers allows {limit}; use the names again that "
                    "there are, wait until unused ones expire, or have the quota raised"
                )

    def count_shard(self, name: str, change: int) -> None:
        """There is a shard more, or one less, until it is measured again."""
        for account in self.accounts:
            if account.counts(name):
                account.shards += change

    def check_room(self, shard: str) -> None:
        """Make sure that a shard may take more bytes.

        Raises:
            QuotaExceededError: It may not.
        """
        for account in self.accounts:
            if account.is_full and account.counts(shard):
                raise QuotaExceededError(
                    f"{account} have {format_size(account.stored_bytes)} in {', '.join(account.filters)}, and "
                    f"quotas.stored_bytes allows {format_size(account.quota.stored_bytes)}; trim or delete shards, "
                    "or have the quota raised"
                )

    def has_room(self, shard: str) -> bool:
        """Whether a shard may take more bytes."""
        return not any(account.is_full and account.counts(shard) for account in self.accounts)


class Quotas:
    """All accounts.

    Args:
        quotas: For each principal at most one.
        clock: Seconds, never going backwards.
    """

    def __init__(self, quotas: Iterable[Quota] = (), clock: Callable[[], float] = trio.current_time) -> None:
        self._by_name = {quota.principal: quota for quota in quotas}
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        everybody = self._by_name.pop(ALL_TOGETHER, None)
        self._all = None if everybody is None else Account(ALL_TOGETHER, everybody, clock())

    @property
    def accounts(self) -> Iterable[Account]:
        """Those of everybody who has connected so far, and that of all together."""
        return (*self._accounts.values(), *(() if self._all is None else (self._all,)))

    @property
    def measure(self) -> bool:
        """Whether any quota is about what is stored."""
        return any(
            quota.stored_bytes or quota.shards
            for quota in (*self._by_name.values(), *(() if self._all is None else (self._all.quota,)))
        )

    def meter_of(self, name: str) -> Meter | None:
        """What the connections of a principal count on; None if nothing bounds it."""
        accounts = [] if self._all is None else [self._all]
        quota = self._by_name.get(name) or self._by_name.get("")
        if quota is not None:
            account = self._accounts.get(name)
            if account is None:
                account = self._accounts[name] = Account(name, quota, self._clock())
            accounts.insert(0, account)
        return Meter(tuple(accounts), self._clock) if accounts else None

    def connect(self, name: str) -> Meter | None:
        """Count a connection of a principal; `disconnect` takes it back.

        Raises:
            QuotaExceededError: It has as many as it may have.
        """
        meter = self.meter_of(name)
        if meter is not None:
            for account in meter.accounts:
                limit = account.quota.connections
                if limit and account.connections >= limit:
                    raise QuotaExceededError(
                        f"{account} have {account.connections} connections, and quotas.connections allows {limit}; "
                        "close one, or have the quota raised"
                    )
            for account in meter.accounts:
                account.connections += 1
        return meter

    def disconnect(self, meter: Meter) -> None:
        """A counted connection is closed."""
        for account in meter.accounts:
            account.connections -= 1
