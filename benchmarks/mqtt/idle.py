"""Cost of idle connections: the broker's memory with many of them open."""

from __future__ import annotations

import fcntl
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import attrs

from benchmarks import load
from benchmarks.load import LoadError
from benchmarks.mqtt import packets
from benchmarks.processes import Server, settled
from benchmarks.runs import NoRoomError

GROUP = 200
SPARE_FILES = 1500
ABOVE_SELECT = 1024
KEEP_ALIVE_S = 600
SILENT_S = 5.0
"""For so long nothing is sent on any connection before they count as idle."""

Progress = Callable[[int, int], None]


@attrs.frozen(slots=True)
class IdleMemory:
    """Resident bytes of a broker.

    Attributes:
        before_bytes: Without connections.
        after_bytes: With all of them, once it is stable.
    """

    before_bytes: int
    after_bytes: int


def raise_file_limit() -> None:
    """Raise the limit of open files of this process and the servers it starts as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def idle_memory(broker: Server, connections: int, progress: Progress) -> IdleMemory:
    """Open connections of clean sessions, each with a keep alive of ten minutes, and measure the broker's memory.

    Raises:
        NoRoomError: The system does not allow this many open files.
    """
    before = settled(broker.resident_bytes)
    with ExitStack() as stack:
        open_connections(stack, broker.address, range(connections), progress)
        time.sleep(SILENT_S)
        return IdleMemory(before, settled(broker.resident_bytes))


def open_connections(stack: ExitStack, address: tuple[str, int], numbers: range, progress: Progress) -> None:
    """Open connections with these numbers, which the stack closes.

    Raises:
        NoRoomError: The system does not allow this many open files.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < numbers.stop + SPARE_FILES:
        message = f"{numbers.stop} connections need more open files than the {allowed} that are allowed"
        raise NoRoomError(message, allowed - SPARE_FILES)
    for start in range(numbers.start, numbers.stop, GROUP):
        part = range(start, min(start + GROUP, numbers.stop))
        group = [stack.enter_context(_moved_up(load.connect(address, timeout_s=30.0))) for _ in part]
        for number, connection in zip(part, group, strict=True):
            connection.sendall(packets.connect(f"idle-{number}", keep_alive_s=KEEP_ALIVE_S, user=packets.USER))
        for connection in group:
            packets.expect_connack(_exactly_four(connection.recv))
        progress(part.stop, numbers.stop)


def _moved_up(connection: socket.socket) -> socket.socket:
    """The same connection with a high descriptor: `select`, which connections under load use, takes low ones only."""
    with connection:
        descriptor = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, ABOVE_SELECT)
        moved = socket.socket(fileno=descriptor)
        moved.settimeout(connection.gettimeout())
        return moved


def _exactly_four(receive: Callable[[int], bytes]) -> bytes:
    data = b""
    while len(data) < 4:
        received = receive(4 - len(data))
        if not received:
            raise LoadError(f"the broker closed an idle connection after {data!r}")
        data += received
    return data
