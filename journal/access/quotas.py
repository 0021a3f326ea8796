"""Quotas: how much of the server one principal, or all of them together, may use, and counting their present use.

Rates delay: a connection that has exceeded its rate is not read until the excess is compensated, so a client that sends
ahead is slowed down, and one that waits for answers gets them later. Connections are refused. Shards and stored bytes
are measured, and refused, by other modules, with the limits of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from journal.access.authorization import Action, Principal, Resource
from journal.access.rules import AccessRule, User
from journal.protocol.errors import QuotaExceededError
from journal.settings.values import format_size
from shards.segments.chunks import MemoryAccount
from shards.topics.topic_filters import matches

_BURST_S: Final = 1.0
DEEPEST_DEBT_S: Final = 60.0
"""A bucket that has to be filled for so many seconds does not get emptier."""
DEFAULT_PRODUCERS: Final = 10_000
"""Producers of a principal without a quota for them."""
DEFAULT_HTTP_REQUESTS_PER_S: Final = 200
"""Requests over HTTP of a principal without a quota for them."""
DEFAULT_CURSORS: Final = 10_000
"""Cursors that a principal without a quota for them may create."""
DEFAULT_MEMORY_DIVISOR: Final = 4
"""A principal without a quota for memory may hold this part of the budget."""


class Bucket:
    """A token bucket with the tokens of one second. Spending is never refused: the level may become negative.

    Args:
        per_s: Tokens added per second.
        now: The time in seconds.
    """

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._level = per_s * _BURST_S
        self._at = now

    def spend(self, amount: float, now: float) -> None:
        """Remove tokens, even more than there are."""
        self._fill(now)
        # Even a client that sends the largest frames at the lowest rate can send again after a bounded time.
        self._level = max(self._level - amount, -self._per_s * DEEPEST_DEBT_S)

    def wait_s(self, now: float) -> float:
        """Seconds until the level is not negative; 0 if it is not now."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def is_full(self, now: float) -> bool:
        """Whether it has all the tokens that it can have."""
        self._fill(now)
        return self._level >= self._per_s * _BURST_S

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._per_s * _BURST_S, self._level + (now - self._at) * self._per_s)
            self._at = now


ALL_TOGETHER: Final = "*"
_LONGEST_WAIT_S: Final = 5.0
"""A connection is read at least this often, so that a peer's PING is answered."""


@attrs.frozen(slots=True)
class Quota:
    """Limits of a principal; 0 means no limit.

    Attributes:
        principal: Name of the principal; empty for each without a quota of its own, ``*`` for all together.
        topics: The shards that `stored_bytes` and `shards` count; ``%u`` is replaced by the principal's name.
        connections: Open connections.
        requests_per_s: Requests and record batches per second.
        bytes_per_s: Received, fetched and pushed bytes per second.
        stored_bytes: Bytes in the shards.
        shards: Number of shards.
        producers: Number of producer names; producers that are not used for long are deleted automatically.
        memory_bytes: Memory of the memory-mode segments that it began.
        http_requests_per_s: Requests over HTTP per second.
        cursors: Cursors that it created since the start of the server, and that exist.

    `Allowance` has what `producers`, `memory_bytes` and `cursors` are where they are 0, and `Quotas.http_rate_of` for
    `http_requests_per_s`.
    """

    principal: str = ""
    topics: tuple[str, ...] = ()
    connections: int = 0
    requests_per_s: int = 0
    bytes_per_s: int = 0
    stored_bytes: int = 0
    shards: int = 0
    producers: int = 0
    memory_bytes: int = 0
    http_requests_per_s: int = 0
    cursors: int = 0

    def filters_for(self, name: str) -> tuple[str, ...]:
        """The shards that count for a principal."""
        return AccessRule(True, self.topics).filters_for(User(name))


class Account:
    """The present use of one principal, or of all together.

    Attributes:
        name: Name of the principal; ``*`` for all together.
        quota: Its limits.
        connections: Number of open connections.
        filters: The shards that count for it.
        shards: Number of its shards at the last measurement.
        stored_bytes: Bytes in its shards at the last measurement.
        was_measured: Whether it was ever measured.
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
        """Whether one of the first ``before`` filters matches a shard, which must not be counted twice."""
        return any(matches(each, shard) for each in self.filters[:before])

    @property
    def is_full(self) -> bool:
        """Whether its shards have reached the limit of stored bytes."""
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
        """Count traffic."""
        if self._requests is not None and requests:
            self._requests.spend(requests, now)
        if self._bytes is not None and size_bytes:
            self._bytes.spend(size_bytes, now)

    def wait_s(self, now: float) -> float:
        """How long its connections must wait, in seconds."""
        return max((bucket.wait_s(now) for bucket in (self._requests, self._bytes) if bucket is not None), default=0.0)


class Meter:
    """The accounts of one connection: that of its principal and that of all together.

    Args:
        accounts: At least one.
        clock: Seconds, never going backwards.
    """

    def __init__(self, accounts: tuple[Account, ...], clock: Callable[[], float]) -> None:
        self.accounts = accounts
        self._clock = clock

    def spend(self, requests: int, size_bytes: int) -> None:
        """Count traffic."""
        now = self._clock()
        for account in self.accounts:
            account.spend(requests, size_bytes, now)

    @property
    def has_overspent(self) -> bool:
        """Whether `wait` would wait."""
        now = self._clock()
        return any(account.wait_s(now) for account in self.accounts)

    async def wait(self) -> None:
        """Return when the rates are met again, or after the longest time for which a connection is not read."""
        now = self._clock()
        await trio.sleep(min(_LONGEST_WAIT_S, max(account.wait_s(now) for account in self.accounts)))

    def check_new_shard(self, name: str) -> None:
        """Check the quota of shards before one is created.

        Raises:
            QuotaExceededError: It is reached.
        """
        for account in self.accounts:
            limit = account.quota.shards
            if limit and account.shards >= limit and account.counts(name):
                raise QuotaExceededError(
                    f"{account} have {account.shards} shards in {', '.join(account.filters)}, and quotas.shards allows "
                    f"{limit}; delete some, or ask for a higher quota"
                )

    def check_new_producer(self, own: int, of_all: int) -> None:
        """Check the quota of producers before one is created.

        Args:
            own: Number of the principal's producers.
            of_all: Number of all producers.

        Raises:
            QuotaExceededError: It is reached.
        """
        for account in self.accounts:
            limit = account.quota.producers
            found = of_all if account.quota.principal == ALL_TOGETHER else own
            if limit and found >= limit:
                raise QuotaExceededError(
                    f"{account} have {found} producers, and quotas.producers allows {limit}; use existing names again, "
                    "wait until unused ones expire, or ask for a higher quota"
                )

    def count_shard(self, name: str, change: int) -> None:
        """Count a created (1) or deleted (-1) shard until the next measurement."""
        for account in self.accounts:
            if account.counts(name):
                account.shards += change

    def check_room(self, shard: str) -> None:
        """Check that the bytes of a shard may grow.

        Raises:
            QuotaExceededError: A quota of stored bytes is reached.
        """
        for account in self.accounts:
            if account.is_full and account.counts(shard):
                raise QuotaExceededError(
                    f"{account} have {format_size(account.stored_bytes)} in {', '.join(account.filters)}, and "
                    f"quotas.stored_bytes allows {format_size(account.quota.stored_bytes)}; trim or delete shards, "
                    "or ask for a higher quota"
                )

    def has_room(self, shard: str) -> bool:
        """Whether the bytes of a shard may grow."""
        return not any(account.is_full and account.counts(shard) for account in self.accounts)


@attrs.frozen(slots=True)
class Allowance:
    """What a principal may use of things that all share, also without a quota.

    Who may administer all shards has none but those of its quota: it could take everything anyhow.

    Attributes:
        producers: Largest number of its producers; 0 for no limit.
        memory: The account of its memory; None for no limit.
        cursors: Largest number of cursors that it creates; 0 for no limit.
    """

    producers: int = 0
    memory: MemoryAccount | None = None
    cursors: int = 0

    def check_new_producer(self, own: int) -> None:
        """Check that a principal with so many producers may have another.

        Raises:
            QuotaExceededError: It may not.
        """
        if self.producers and own >= self.producers:
            raise QuotaExceededError(
                f"this principal has {own} producers, and without quotas.producers it may have {self.producers}; use "
                "existing names again, wait until unused ones expire, or ask for a quota"
            )


class Quotas:
    """All accounts.

    Args:
        quotas: At most one for each principal.
        clock: Seconds, never going backwards.
        memory_budget_bytes: Memory of all memory-mode shards together.
    """

    def __init__(
        self,
        quotas: Iterable[Quota] = (),
        clock: Callable[[], float] = trio.current_time,
        memory_budget_bytes: int = 0,
    ) -> None:
        self._default_memory_bytes = memory_budget_bytes // DEFAULT_MEMORY_DIVISOR
        self._memory: dict[str, MemoryAccount] = {}
        self._by_name = {quota.principal: quota for quota in quotas}
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        everybody = self._by_name.pop(ALL_TOGETHER, None)
        self._all = None if everybody is None else Account(ALL_TOGETHER, everybody, clock())

    @property
    def accounts(self) -> Iterable[Account]:
        """Accounts of all principals that have connected so far, and that of all together."""
        return (*self._accounts.values(), *(() if self._all is None else (self._all,)))

    @property
    def measure(self) -> bool:
        """Whether any quota limits shards or stored bytes."""
        return any(
            quota.stored_bytes or quota.shards
            for quota in (*self._by_name.values(), *(() if self._all is None else (self._all.quota,)))
        )

    def meter_of(self, name: str) -> Meter | None:
        """The meter for connections of a principal; None if no quota applies."""
        accounts = [] if self._all is None else [self._all]
        quota = self._by_name.get(name) or self._by_name.get("")
        if quota is not None:
            account = self._accounts.get(name)
            if account is None:
                account = self._accounts[name] = Account(name, quota, self._clock())
            accounts.insert(0, account)
        return Meter(tuple(accounts), self._clock) if accounts else None

    def http_rate_of(self, name: str) -> int:
        """How many requests over HTTP a principal may send in a second."""
        quota = self._by_name.get(name) or self._by_name.get("") or Quota()
        return quota.http_requests_per_s or DEFAULT_HTTP_REQUESTS_PER_S

    def allowance_of(self, principal: Principal) -> Allowance:
        """What a principal may use of things that all share, with its present rights."""
        quota = self._by_name.get(principal.name) or self._by_name.get("") or Quota()
        is_bounded = not principal.may(Action.ADMINISTER, Resource.FILTER, "#")
        producers = DEFAULT_PRODUCERS if is_bounded and not quota.producers else 0
        cursors = quota.cursors or (DEFAULT_CURSORS if is_bounded else 0)
        limit_bytes = quota.memory_bytes or (self._default_memory_bytes if is_bounded else 0)
        memory = self._memory.get(principal.name)
        if memory is None:
            if not limit_bytes:
                return Allowance(producers, cursors=cursors)
            shown = f"principal {principal.name!a}" if principal.name else "principals without a name"
            memory = self._memory[principal.name] = MemoryAccount(shown)
        memory.limit_bytes = limit_bytes
        return Allowance(producers, memory, cursors)

    def connect(self, name: str) -> Meter | None:
        """Count a connection of a principal; `disconnect` removes it.

        Raises:
            QuotaExceededError: The principal has as many connections as it may have.
        """
        meter = self.meter_of(name)
        if meter is not None:
            for account in meter.accounts:
                limit = account.quota.connections
                if limit and account.connections >= limit:
                    raise QuotaExceededError(
                        f"{account} have {account.connections} connections, and quotas.connections allows {limit}; "
                        "close one, or ask for a higher quota"
                    )
            for account in meter.accounts:
                account.connections += 1
        return meter

    def disconnect(self, meter: Meter) -> None:
        """Remove a closed connection from the count."""
        for account in meter.accounts:
            account.connections -= 1
