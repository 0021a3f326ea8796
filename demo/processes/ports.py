"""Free ports on the loopback interface."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Iterator
from random import SystemRandom
from typing import Final

from demo.errors import DemoError

_PORTS: Final = range(26_000, 32_000)
_ATTEMPTS: Final = 200


@functools.cache
def _in_random_order() -> Iterator[int]:
    """All ports, again and again: a server may need one later than it was given out, so none comes twice in a run."""
    return itertools.cycle(SystemRandom().sample(_PORTS, len(_PORTS)))


def free_port() -> int:
    """A free loopback port below the range of ports for outgoing connections.

    With a port of that range, a client that tries to reach a dead server may, by chance, connect to itself.

    Raises:
        DemoError: No port was free in many attempts.
    """
    for port in itertools.islice(_in_random_order(), _ATTEMPTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DemoError(f"no free port among {_ATTEMPTS} between {_PORTS.start} and {_PORTS.stop}")
