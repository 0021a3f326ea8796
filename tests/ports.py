"""Ports for servers that come back on the same one after they were ended."""

from __future__ import annotations

import functools
import itertools
import random
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 20_000
OF_A_PROCESS: Final = 200
_PROCESSES: Final = 60
_claims: Final[list[socket.socket]] = []
"""Held until the process ends, in any way."""


def claim_range() -> range:
    """A range of ports that no other process of tests on this machine has, in this run or in another one.

    The claim is a name in the kernel's abstract namespace of sockets. It belongs to a network namespace, as ports do,
    and the kernel releases it when the process ends.
    """
    for number in range(_PROCESSES):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0journal-engine-tests-ports-{number}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        first = FIRST + number * OF_A_PROCESS
        return range(first, first + OF_A_PROCESS)
    raise AssertionError(f"{_PROCESSES} processes of tests have all ranges of ports")


@functools.cache
def _ports_of_this_process() -> Iterator[int]:
    """All ports of its range in a random order, again and again: none comes twice while its first owner may need it."""
    ports = claim_range()
    return itertools.cycle(random.SystemRandom().sample(ports, len(ports)))


def free_port() -> int:
    """A free loopback port below the range from which connections take theirs, in a range of this process's own.

    From within that range any connection, or any listener on port 0, may take the port while its server is down, and a
    client that tries to reach the dead server may, by chance, connect to itself.
    """
    for port in itertools.islice(_ports_of_this_process(), OF_A_PROCESS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port among {OF_A_PROCESS}")
