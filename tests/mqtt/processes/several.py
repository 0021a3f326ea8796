"""A broker of several processes on a journal server, and where its clients are."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from tests.mqtt.cluster.processes import journal_server
from tests.mqtt.edges.broker_process import BrokerProcess, broker_process
from tests.mqtt.serving import Client
from tests.patience import PATIENCE_S
from tests.ports import free_port

WITH_HTTP = ("--set", "listen.http=127.0.0.1:0")
_MOST_TRIES = 200


@asynccontextmanager
async def journal(directory: Path) -> AsyncIterator[str]:
    """The URL of a journal server, which runs for the length of the block."""
    server = journal_server(directory, port := free_port())
    await trio.to_thread.run_sync(server.start)
    try:
        yield f"journal://127.0.0.1:{port}"
    finally:
        server.end(signal.SIGKILL)


@asynccontextmanager
async def several_processes(directory: Path, *arguments: str, count: int = 2) -> AsyncIterator[BrokerProcess]:
    """A broker of several processes for the length of the block, with a journal server of its own."""
    async with journal(directory) as store:
        more = ("--processes", str(count), "--listen", "127.0.0.1:0", *arguments)
        async with broker_process(directory, "--store", store, *more) as broker:
            yield broker


def children(pid: int) -> list[int]:
    """The process ids of the children of a process."""
    # A child belongs to the thread that has started it.
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for thread in threads for each in (thread / "children").read_text().split()]


def workers(broker: BrokerProcess) -> list[int]:
    """The process ids of the processes of a broker, by their numbers."""
    pids = children(broker.process.pid)
    return sorted(pids, key=lambda pid: int(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that does nothing for the length of the block; afterwards it goes on, or nothing could end it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def until_gone(pids: list[int]) -> None:
    """Wait until none of these processes runs any more."""
    with trio.fail_after(PATIENCE_S):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await trio.sleep(0.02)


def worker_of(broker: BrokerProcess, local: tuple[str, int]) -> int:
    """The process id of the process that has accepted the connection from this address; 0 if none has it."""
    ends = f"{_hexadecimal(('127.0.0.1', broker.ports['mqtt']))} {_hexadecimal(local)} 01"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {fields[9] for fields in lines if " ".join(fields[1:4]) == ends}
    for pid in workers(broker):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(descriptor).removeprefix("socket:[").removesuffix("]") in inodes:
                return pid
    return 0


@asynccontextmanager
async def client_at(broker: BrokerProcess, pid: int, client_id: str, **connect: object) -> AsyncIterator[Client]:
    """A client that has connected to one process: the kernel decides, so it is tried until it is that one."""
    async with AsyncExitStack() as stack:
        for _ in range(_MOST_TRIES):
            client = await stack.enter_async_context(broker.client())
            assert isinstance(client.stream, trio.SocketStream)
            local = client.stream.socket.getsockname()
            with trio.fail_after(PATIENCE_S):
                while not (found := worker_of(broker, local)):
                    await trio.sleep(0.01)
            if found == pid:
                assert not (await client.connect(client_id, **connect)).reason_code  # type: ignore[arg-type]
                yield client
                return
        raise AssertionError(f"none of {_MOST_TRIES} connections was passed to process {pid}")


def _hexadecimal(address: tuple[str, int]) -> str:
    host, port = address
    return f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
