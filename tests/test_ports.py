"""What tests are promised of the ports that they get."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import FIRST, OF_A_PROCESS, claim_range, free_port


def test_ports_that_are_not_listened_on_yet_are_not_given_out_again() -> None:
    """A cluster takes all its ports before it starts: two of its servers had the same one."""
    ports = [free_port() for _ in range(OF_A_PROCESS // 2)]
    assert len(set(ports)) == len(ports)


def test_no_connection_takes_a_port_that_was_given_out() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, _ = map(int, file.read().split())
    assert FIRST <= free_port() < first


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert taken.getsockname()[1] not in [free_port() for _ in range(OF_A_PROCESS + 1)]


def test_two_runs_on_one_machine_have_no_port_in_common() -> None:
    """Two runs of pytest without workers had the same range, and a server of one found its port taken by the other."""
    own = {free_port() for _ in range(OF_A_PROCESS)}
    program = f"from tests.ports import free_port\nfor _ in range({OF_A_PROCESS}): print(free_port())"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    given = [own, *({int(line) for line in other.communicate()[0].split()} for other in others)]
    assert all(given)
    first, second, third = given
    assert not first & (second | third)


def test_a_range_is_claimed_once() -> None:
    first, second = claim_range(), claim_range()
    assert not set(first) & set(second)
