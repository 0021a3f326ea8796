"""Connections that do nothing, beside connections under load."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack

import pytest

from benchmarks.mqtt import idle
from benchmarks.runs import UnavailableError

CONNACK = b"\x20\x02\x00\x00"
COUNT = 30


def test_connections_under_load_keep_the_descriptors_that_select_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,024 idle connections, the measurement of latencies ended with an error of `select`."""
    monkeypatch.setattr(idle, "GROUP", 7)
    opened: list[socket.socket] = []

    def connect(*arguments: object, **options: object) -> socket.socket:
        ours, broker = socket.socketpair()
        stack.enter_context(broker)
        broker.sendall(CONNACK)
        opened.append(ours)
        return ours

    monkeypatch.setattr(idle.load, "connect", connect)
    done: list[tuple[int, int]] = []
    with ExitStack() as stack:
        idle.open_connections(stack, ("127.0.0.1", 1), range(COUNT), lambda part, whole: done.append((part, whole)))
        assert len(opened) == COUNT
        assert all(connection.fileno() == -1 for connection in opened)
        under_load = stack.enter_context(socket.socket())
        assert under_load.fileno() < 1024
        select.select([under_load], [], [], 0)
    assert done[-1] == (COUNT, COUNT)


def test_more_connections_than_open_files_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.resource, "getrlimit", lambda _: (2000, 2000))
    with (
        ExitStack() as stack,
        pytest.raises(UnavailableError, match="1000 connections need more open files than the 2000"),
    ):
        idle.open_connections(stack, ("127.0.0.1", 1), range(1000), lambda _part, _whole: None)
