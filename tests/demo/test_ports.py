"""Servers of the demo get ports before they listen on them: each has another one."""

from __future__ import annotations

import socket

from demo.processes import free_port


def test_no_port_is_given_out_twice_in_a_run() -> None:
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert taken.getsockname()[1] not in [free_port() for _ in range(6_000)]
