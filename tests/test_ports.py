"""What tests are promised of the ports that they get."""

from __future__ import annotations

import socket

from tests.ports import free_port


def test_ports_that_are_not_listened_on_yet_are_not_given_out_again() -> None:
    """A cluster takes all its ports before it starts: two of its servers had the same one."""
    ports = [free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)


def test_no_connection_takes_a_port_that_was_given_out() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, _ = map(int, file.read().split())
    assert free_port() < first


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert taken.getsockname()[1] not in [free_port() for _ in range(1_600)]
