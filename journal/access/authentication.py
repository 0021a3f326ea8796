"""Checking user names and passwords: off the event loop, a few at a time, and with delays after failures.

The stored passwords are in `users`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

import attrs
import trio

from journal.access.users import Users
from shards.back_off import BackOff

_AT_ONCE: Final = 2
"""Number of concurrent checks: each uses a processor core, and 16 MiB."""

_REMEMBERED: Final = 20_000

_T = TypeVar("_T")


@attrs.frozen(slots=True)
class _UserAndHost:
    """A user name, or a digest of it, and the host from which it was sent."""

    name: bytes
    network: str


class AttemptDelays:
    """Delays logins after failures, by user and host and by host.

    Args:
        clock: Seconds, never going backwards.

    Attributes:
        refused_early: Attempts that came too early after failures.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        # For one user from one host, and for a host with any user names: a user cannot be locked out from elsewhere.
        self._by_user = FailedAttempts(free_failures=3, first_s=1, longest_s=60)
        self._by_host = FailedAttempts(free_failures=30, first_s=1, longest_s=60)
        # The latest successful logins by user and host. They are exempt from the host's delay: otherwise one device
        # with an old password would lock out all users behind the same gateway.
        self._successful_logins: OrderedDict[_UserAndHost, None] = OrderedDict()
        self.refused_early = 0

    def must_wait(self, name: str, host: str) -> bool:
        """Whether it is too early for another attempt."""
        who, now = self._who(name, host), self._clock()
        host_must_wait = who not in self._successful_logins and self._by_host.must_wait(who.network, now)
        if host_must_wait or self._by_user.must_wait(who, now):
            self.refused_early += 1
            return True
        return False

    def succeeded(self, name: str, host: str) -> None:
        """An attempt was successful."""
        who = self._who(name, host)
        self._by_user.succeeded(who)
        _remember(self._successful_logins, who)

    def failed(self, name: str, host: str) -> None:
        """An attempt was not successful."""
        who, now = self._who(name, host), self._clock()
        self._by_user.failed(who, now)
        self._by_host.failed(who.network, now)

    def _who(self, name: str, host: str) -> _UserAndHost:
        # User names from unauthenticated clients may be long and are kept: their digests have a fixed size.
        digest = hmac.digest(self._key, name.encode(errors="surrogatepass"), hashlib.sha256)
        return _UserAndHost(digest, network_of(host))


class Authentication:
    """Checks user names and passwords.

    Args:
        users: The stored passwords; None if no password file is configured.
        clock: Seconds, never going backwards.
    """

    def __init__(self, users: Users | None, clock: Callable[[], float] = trio.current_time) -> None:
        self._users = users
        self._turns = trio.CapacityLimiter(_AT_ONCE)
        self._threads = trio.CapacityLimiter(_AT_ONCE)
        self._delays = AttemptDelays(clock)
        self._proofs: OrderedDict[bytes, None] = OrderedDict()
        self._key = secrets.token_bytes(32)

    @property
    def refused_early(self) -> int:
        """Attempts that were refused without a check because they came too early after failures."""
        return self._delays.refused_early

    @property
    def users(self) -> Users | None:
        """The stored passwords."""
        return self._users

    @users.setter
    def users(self, users: Users | None) -> None:
        self._users = users

    async def check(self, name: str, password: bytes, host: str) -> bool:
        """Whether it is the user's password.

        Args:
            name: As the client sent it.
            password: As the client sent it.
            host: Address of the client; empty if it is not known.
        """
        users = self._users
        if users is None:
            await trio.lowlevel.checkpoint()
            return False
        delays = self._delays
        if delays.must_wait(name, host):
            await trio.lowlevel.checkpoint()
            return False
        proof = self._proof(users, name, password)
        if proof is not None and proof in self._proofs:
            _remember(self._proofs, proof)
            delays.succeeded(name, host)
            await trio.lowlevel.checkpoint()
            return True
        async with self._turns:
            if delays.must_wait(name, host):
                # Other attempts of this user failed while it waited.
                return False
            is_right = await trio.to_thread.run_sync(users.check, name, password, limiter=self._threads)
        if is_right:
            delays.succeeded(name, host)
            if proof is not None:
                _remember(self._proofs, proof)
        else:
            delays.failed(name, host)
        return is_right

    def _proof(self, users: Users, name: str, password: bytes) -> bytes | None:
        """The remembered proof of a right password.

        Without it, ten thousand clients that reconnect after a network failure would take minutes. It is a fast hash,
        but with a key of this process, and bound to the line of the file, so that it is not valid after the password
        was changed.
        """
        kept = users.hash_of(name)
        if kept is None:
            return None
        message = b"\0".join((name.encode(), kept.salt.hex().encode(), kept.digest.hex().encode(), password))
        return hmac.digest(self._key, message, hashlib.sha256)


def _remember(kept: OrderedDict[_T, None], one: _T) -> None:
    """Keep the latest entries, in the order in which they came last."""
    kept[one] = None
    kept.move_to_end(one)
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def network_of(host: str) -> str:
    """The network whose failures count together with those of a host: an IPv6 client usually has a whole network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


@attrs.define(slots=True)
class _Failures:
    count: int = 0
    until: float = 0.0


class FailedAttempts:
    """Remembers the most recent failures.

    Args:
        free_failures: Number of failures without a delay.
        first_s: The delay after the next one, in seconds; it doubles with each later one.
        longest_s: The longest delay. Without a failure for this time after a delay, the count begins again.
        max_entries: Number of remembered subjects; beyond it the one with the oldest failure is forgotten.
    """

    def __init__(self, *, free_failures: int, first_s: float, longest_s: float, max_entries: int = 10_000) -> None:
        self._free_failures = free_failures
        self._delays = BackOff(first_s, longest_s, jitter=0.0)
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def must_wait(self, who: Hashable, now: float) -> bool:
        """Whether it is too early for another attempt."""
        failures = self._entries.get(who)
        return failures is not None and now < failures.until

    def failed(self, who: Hashable, now: float) -> None:
        """Record a failure."""
        failures = self._entries.pop(who, None)
        if failures is None or now > failures.until + self._delays.longest_s:
            failures = _Failures()
        failures.count += 1
        waits = failures.count - self._free_failures
        failures.until = now + (self._delays.delay_s(waits - 1) if waits > 0 else 0.0)
        self._entries[who] = failures
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def succeeded(self, who: Hashable) -> None:
        """Forget the failures."""
        self._entries.pop(who, None)
