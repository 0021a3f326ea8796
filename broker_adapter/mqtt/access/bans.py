"""Bans: users, client identifiers and networks that may not connect, each for a while or for good.

`broker_adapter.mqtt.bans` stores them. This module decides: one look into a dictionary for a user and for a client
identifier, and one for each length of prefix that banned networks have, however many bans there are.
"""

from __future__ import annotations

import bisect
import enum
import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs

from broker_adapter.errors import InvalidRequestError
from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt_codec.text import shown

MAX_NAME_BYTES: Final = 1024
MAX_REASON_CHARACTERS: Final = 1000

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BanKind(enum.StrEnum):
    """What is banned."""

    USER = "user"
    CLIENT = "client"
    NETWORK = "network"


@attrs.frozen(slots=True)
class Ban:
    """One ban.

    Attributes:
        kind: What is banned.
        name: The user, the client identifier, or the network as ``ADDRESS/PREFIX``.
        until_us: When it ends, in microseconds since 1970; 0 for never.
        reason: Why, for people.
        since_us: When it was made, in microseconds since 1970.
        by: Who made it, for people.
    """

    kind: BanKind
    name: str
    until_us: int = 0
    reason: str = ""
    since_us: int = 0
    by: str = ""

    @property
    def key(self) -> tuple[BanKind, str]:
        """What it is about; there is one ban for each."""
        return self.kind, self.name

    def __str__(self) -> str:
        """What is banned, for messages."""
        return f"{self.kind} {shown(self.name)}"

    def is_over(self, now_us: int) -> bool:
        """Whether it has ended."""
        return 0 < self.until_us <= now_us


def checked_name(kind: BanKind, name: str) -> str:
    """The name of a ban in its one form: an address is a network of its own, without a scope.

    Raises:
        InvalidRequestError: It names nothing that could be banned.
    """
    if kind is BanKind.NETWORK:
        try:
            return str(_plain_network(ipaddress.ip_network(name)))
        except ValueError as error:
            raise InvalidRequestError(
                f"network {name[:100]!a} cannot be banned: {str(error)[:200]}; give an address such as 192.0.2.7, or a "
                "network such as 192.0.2.0/24 or 2001:db8::/64"
            ) from error
    size_bytes = len(name.encode(errors="surrogatepass"))
    if not name or size_bytes > MAX_NAME_BYTES or any(ord(each) < 32 or 0xD800 <= ord(each) < 0xE000 for each in name):
        raise InvalidRequestError(
            f"{kind} {name[:100]!a} of {size_bytes} bytes cannot be banned; allowed: 1 to {MAX_NAME_BYTES} bytes "
            "without control characters"
        )
    return name


def checked_reason(reason: str) -> str:
    """The reason of a ban.

    Raises:
        InvalidRequestError: It is too long.
    """
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidRequestError(f"the reason has {len(reason)} characters; allowed: up to {MAX_REASON_CHARACTERS}")
    return reason


class Bans:
    """The bans that hold at a broker.

    Args:
        now_us: Returns the time, in microseconds since 1970.
    """

    def __init__(self, now_us: Callable[[], int], bans: Iterable[Ban] = ()) -> None:
        self._now_us = now_us
        self._by_name: dict[tuple[BanKind, str], Ban] = {}
        self._networks: dict[int, _Networks] = {}
        self.replace(bans)

    def __len__(self) -> int:
        """The number of bans, with those that have ended and are still stored."""
        return len(self._by_name)

    def replace(self, bans: Iterable[Ban]) -> None:
        """Use other bans from now on."""
        by_name: dict[tuple[BanKind, str], Ban] = {}
        networks = {4: _Networks(32), 6: _Networks(128)}
        for ban in bans:
            by_name[ban.key] = ban
            if ban.kind is BanKind.NETWORK:
                network = ipaddress.ip_network(ban.name)
                networks[network.version].add(network, ban)
        self._by_name, self._networks = by_name, networks

    def has_ended(self, ban: Ban) -> bool:
        """Whether a ban is over."""
        return ban.is_over(self._now_us())

    def of_client(self, principal: Principal) -> Ban | None:
        """The ban of a client by its user or its identifier; None if it is not banned."""
        found = self._by_name.get((BanKind.CLIENT, principal.client_id))
        if found is None or found.is_over(self._now_us()):
            # An anonymous client has no user who could be banned.
            found = self._by_name.get((BanKind.USER, principal.username)) if principal.username else None
        return None if found is None or found.is_over(self._now_us()) else found

    def of_host(self, host: str) -> Ban | None:
        """The ban of an address by one of its networks; None if it is not banned, or no address."""
        if not any(self._networks.values()):
            return None
        try:
            address = _plain_address(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            return None
        now_us = self._now_us()
        found = self._networks[address.version].around(address)
        return next((ban for ban in found if not ban.is_over(now_us)), None)

    def find(self, principal: Principal, host: str | None) -> Ban | None:
        """The ban of a client or of its address; None if neither is banned."""
        return self.of_client(principal) or (None if host is None else self.of_host(host))


class _Networks:
    """Networks of one version of IP, by the length of their prefix.

    Args:
        width: Bits of an address.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._lengths: list[int] = []
        self._by_length: dict[int, dict[int, Ban]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, network: _Network, ban: Ban) -> None:
        length = network.prefixlen
        if length not in self._by_length:
            self._by_length[length] = {}
            bisect.insort(self._lengths, length)
        self._by_length[length][self._prefix(int(network.network_address), length)] = ban

    def around(self, address: _Address) -> Iterator[Ban]:
        """The bans of networks with this address, the smallest network first."""
        number = int(address)
        for length in reversed(self._lengths):
            found = self._by_length[length].get(self._prefix(number, length))
            if found is not None:
                yield found

    def _prefix(self, number: int, length: int) -> int:
        return number >> (self._width - length)


def _plain_address(address: _Address) -> _Address:
    """The IPv4 address in an IPv6 one, as a socket for both shows it; any other as it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _plain_network(network: _Network) -> _Network:
    mapped = _plain_address(network.network_address)
    if mapped.version == network.version or network.prefixlen < 96:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - 96))
