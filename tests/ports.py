"""Ports for servers that come back on the same one after they were ended."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from typing import Final

_FIRST: Final = 20_000
_OF_EACH_WORKER: Final = 1_500
_MOST_WORKERS: Final = 8


def _ports_of_this_worker() -> Iterator[int]:
    """All ports of its range in a random order, again and again: none comes twice while its first owner may need it."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MOST_WORKERS
    first = _FIRST + worker * _OF_EACH_WORKER
    return itertools.cycle(random.SystemRandom().sample(range(first, first + _OF_EACH_WORKER), _OF_EACH_WORKER))


_ports: Final = _ports_of_this_worker()


def free_port() -> int:
    """A free loopback port below the range from which connections take theirs, in a range of this worker's own.

    From within that range any connection, or any listener on port 0, may take the port while its server is down, and a
    client that tries to reach the dead server may, by chance, connect to itself.
    """
    for port in itertools.islice(_ports, _OF_EACH_WORKER):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port among {_OF_EACH_WORKER}")
