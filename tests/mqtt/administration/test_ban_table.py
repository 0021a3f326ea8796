"""The bans that hold at a broker: who is found, for how long, and what can be banned."""

from __future__ import annotations

import ipaddress
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import InvalidRequestError
from broker_adapter.mqtt.access.bans import Ban, BanKind, Bans, checked_name, checked_reason
from broker_adapter.mqtt.access.permissions import Principal

NOW_US = 1_000_000
NETWORK, USER, CLIENT = BanKind.NETWORK, BanKind.USER, BanKind.CLIENT


def bans(*found: Ban) -> Bans:
    return Bans(lambda: NOW_US, found)


@st.composite
def networks(draw: st.DrawFn) -> str:
    """Networks of which many overlap."""
    bits, width = draw(st.sampled_from([(4, 32), (6, 128)]))
    length = draw(st.integers(0, width))
    number = draw(st.integers(0, 2**width - 1) | st.integers(0, 3).map(lambda high: high << (width - 2)))
    kind = ipaddress.IPv4Network if bits == 4 else ipaddress.IPv6Network
    return str(kind((number >> (width - length) << (width - length), length)))


ADDRESSES = st.ip_addresses() | st.integers(0, 255).map(lambda low: ipaddress.IPv4Address(low << 24))


@given(st.lists(networks(), max_size=20), ADDRESSES)
def test_an_address_is_banned_if_and_only_if_a_network_has_it(
    found: list[str], address: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    around = [each for each in map(ipaddress.ip_network, found) if address in each]
    ban = bans(*(Ban(NETWORK, name) for name in found)).of_host(str(address))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is None:
        assert (ban is not None) == bool(around)
        assert ban is None or ipaddress.ip_network(ban.name).prefixlen == max(each.prefixlen for each in around)


@pytest.mark.parametrize(
    ("principal", "is_banned"),
    [
        (Principal("c", "mallory"), True),
        (Principal("sensor-7", "anna"), True),
        (Principal("sensor-7"), True),
        (Principal("c", "anna"), False),
        (Principal("mallory", "anna"), False),
        (Principal("c", "sensor-7"), False),
        (Principal("c"), False),
    ],
)
def test_users_and_client_identifiers_are_apart(principal: Principal, is_banned: bool) -> None:
    table = bans(Ban(USER, "mallory"), Ban(CLIENT, "sensor-7"))
    assert (table.of_client(principal) is not None) is is_banned


def test_a_ban_that_has_ended_hides_no_other_one() -> None:
    over = {"until_us": NOW_US}
    table = bans(
        Ban(CLIENT, "c", **over), Ban(USER, "u"), Ban(NETWORK, "10.0.0.0/24", **over), Ban(NETWORK, "10.0.0.0/8")
    )
    assert table.of_client(Principal("c", "u")) == Ban(USER, "u")
    assert table.of_client(Principal("c", "v")) is None
    assert table.of_host("10.0.0.1") == Ban(NETWORK, "10.0.0.0/8")
    assert bans(Ban(USER, "u", NOW_US + 1)).of_client(Principal("c", "u"))


@pytest.mark.parametrize("host", ["::ffff:10.0.0.7", "10.0.0.7"])
@pytest.mark.parametrize("name", ["10.0.0.0/24", "::ffff:10.0.0.0/120"])
def test_an_address_of_ipv4_is_the_same_in_both_forms(host: str, name: str) -> None:
    assert bans(Ban(NETWORK, checked_name(NETWORK, name))).of_host(host)


@pytest.mark.parametrize("host", ["", "test", "a.example", "fe80::1%eth0", "10.0.0.300"])
def test_what_is_no_address_is_in_no_network(host: str) -> None:
    assert bans(Ban(NETWORK, "10.0.0.0/8")).of_host(host) is None
    assert (bans(Ban(NETWORK, "fe80::/10")).of_host(host) is not None) == host.startswith("fe80")


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (NETWORK, "192.0.2.7", "192.0.2.7/32"),
        (NETWORK, "2001:DB8::/32", "2001:db8::/32"),
        (NETWORK, "0.0.0.0/0", "0.0.0.0/0"),
        (USER, "Jürgen", "Jürgen"),
        (CLIENT, "a/b", "a/b"),
    ],
)
def test_names_have_one_form(kind: BanKind, name: str, expected: str) -> None:
    assert checked_name(kind, name) == expected


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        (NETWORK, "192.0.2.7/24", "has host bits set; give an address such as"),
        (NETWORK, "a.example", "does not appear to be"),
        (NETWORK, "", "cannot be banned"),
        (USER, "", "of 0 bytes cannot be banned"),
        (USER, "x" * 1025, "of 1025 bytes"),
        (CLIENT, "a\nb", "without control characters"),
        (CLIENT, "\ud800", "cannot be banned"),
    ],
)
def test_what_cannot_be_banned_is_refused_with_the_way_out(kind: BanKind, name: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        checked_name(kind, name)


def test_a_reason_is_bounded() -> None:
    assert checked_reason("x" * 1000)
    with pytest.raises(InvalidRequestError, match="1001 characters"):
        checked_reason("x" * 1001)


def test_a_look_costs_the_same_however_many_bans_there_are() -> None:
    """Not by the clock: a table of every kind is asked for nothing but its keys."""

    def looks(count: int) -> int:
        seen = 0

        class Counted(str):
            __slots__ = ()

            def __hash__(self) -> int:
                nonlocal seen
                seen += 1
                return str.__hash__(self)

        table = bans(
            *(Ban(CLIENT, f"c{number}") for number in range(count)),
            *(Ban(USER, f"u{number}") for number in range(count)),
            *(Ban(NETWORK, f"10.{number >> 8 & 255}.{number & 255}.0/24") for number in range(count)),
        )
        table.find(Principal(Counted("c"), Counted("u")), "192.0.2.1")
        return seen

    assert looks(10) == looks(5_000)
    began = time.process_time()
    table = bans(*(Ban(NETWORK, f"10.{number >> 8 & 255}.{number & 255}.0/24") for number in range(5_000)))
    assert len(table) == 5_000
    assert time.process_time() - began < 5
