"""Hosts as network namespaces of Linux, at a bridge. A host that is taken from the bridge is cut from the network.

The demo itself runs in a namespace, too, with its brokers, its clients and the object store. So nothing of the
machine's own network is changed, and all of it is gone with the last process. Where users may have namespaces of their
own, it needs no root.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

from demo.errors import DemoError
from demo.waiting import deadline

SERVICES: Final = "10.77.0.1"
"""Address of the brokers, the clients and the object store."""

_BRIDGE: Final = "switch"
_TCP_PORT, _HTTP_PORT = 7420, 7422
_WAYS: Final = (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net"))
_TRIAL: Final = (
    "ip link set lo up && ip link add switch type bridge && ip link add here type veth peer name there "
    "&& ip link set here master switch && unshare --net true"
)
_TRIAL_S: Final = 10.0


def isolated(command: Sequence[str]) -> list[str] | None:
    """A command that runs in a network namespace of its own; None if this machine does not let us make one."""
    if any(shutil.which(program) is None for program in ("unshare", "nsenter", "ip")):
        return None
    for way in _WAYS:
        trial = subprocess.run([*way, "sh", "-c", _TRIAL], capture_output=True, timeout=_TRIAL_S, check=False)
        if trial.returncode == 0:
            return [*way, *command]
    return None


@asynccontextmanager
async def namespace_hosts(names: Sequence[str], store_port: int) -> AsyncIterator[list[NamespaceHost]]:
    """Hosts at a bridge; this process must be in a namespace of its own.

    Args:
        names: Names of the servers.
        store_port: Port of the object store.

    Raises:
        DemoError: This machine does not allow it.
    """
    await _ip("link", "set", "lo", "up")
    await _ip("link", "add", _BRIDGE, "type", "bridge")
    await _ip("address", "add", f"{SERVICES}/24", "dev", _BRIDGE)
    await _ip("link", "set", _BRIDGE, "up")
    async with AsyncExitStack() as stack:
        hosts = []
        for number, name in enumerate(names, 2):
            pid = await stack.enter_async_context(_namespace(name))
            host = NamespaceHost(name, pid, f"10.77.0.{number}", f"http://{SERVICES}:{store_port}")
            await host.connect()
            hosts.append(host)
        yield hosts


class NamespaceHost:
    """See `demo.cluster.network.host.Host`.

    Args:
        pid: A process that is in its namespace.
        address: Its address.
    """

    def __init__(self, name: str, pid: int, address: str, store_endpoint: str) -> None:
        self.name = name
        self.tcp = self.reached_at = f"{address}:{_TCP_PORT}"
        self.http = self.http_reached_at = f"{address}:{_HTTP_PORT}"
        self.store_endpoint = store_endpoint
        self.command_prefix: Sequence[str] = ("nsenter", f"--net=/proc/{pid}/ns/net", "--")
        self._pid = pid
        self._address = address
        self._cable = f"to-{name}"

    async def connect(self) -> None:
        """Connect it to the bridge for the first time.

        Raises:
            DemoError: This machine does not allow it.
        """
        await _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", str(self._pid))
        await _ip("link", "set", self._cable, "master", _BRIDGE, "up")
        for words in (("link", "set", "lo", "up"), ("link", "set", "eth0", "up")):
            await _ip(*words, prefix=self.command_prefix)
        await _ip("address", "add", f"{self._address}/24", "dev", "eth0", prefix=self.command_prefix)

    async def cut(self) -> None:
        """Take its cable from the bridge. Both ends of the cable stay up, so no process sees its network go down."""
        await _ip("link", "set", self._cable, "nomaster")

    async def mend(self) -> None:
        await _ip("link", "set", self._cable, "master", _BRIDGE)

    async def open_ports(self) -> None:
        """Nothing has to be done: the server has a network of its own."""

    async def close_ports(self) -> None:
        """Nothing has to be done: the host refuses connections by itself."""


@asynccontextmanager
async def _namespace(name: str) -> AsyncIterator[int]:
    """The id of a process in a network namespace of its own. It ends with this process, since its input ends."""
    process = await trio.lowlevel.open_process(
        ["unshare", "--net", "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        with deadline(f"there was no namespace for {name}"):
            if not await process.stdout.receive_some():
                raise DemoError(f"unshare made no namespace for {name}")
        yield process.pid
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def _ip(*words: str, prefix: Sequence[str] = ()) -> None:
    """Run ``ip``.

    Raises:
        DemoError: It failed.
    """
    done = await trio.run_process([*prefix, "ip", *words], capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        raise DemoError(f"ip {' '.join(words)} failed: {done.stderr.decode('utf-8', 'replace').strip()}")
