"""Three servers on hosts of their own whose links are cut one way and both; run in a network namespace by
`test_network_cuts`.

    python -m tests.cluster.cut_network DIRECTORY

One client appends all the time. Under each cut it has to get on, with the same owner or another one. At the end each
record that was acknowledged is there once, at the offset that was acknowledged, and each server has the same.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from broker_adapter import open_adapter
from demo.cluster.network.namespaces import SERVICES, namespace_hosts
from demo.cluster.servers import StoreServer, StoreServers
from demo.processes import free_port
from demo.processes.seaweedfs import Seaweedfs
from demo.waiting import ask_until, deadline, look_until
from journal.client.client import Client
from journal.client.opening import open_client
from tests.patience import PATIENCE_S

SHARD: Final = "cuts"
TOGETHER: Final = 20
"""Appends that the client has to get acknowledged between two steps."""

_NOTICED_S: Final = 5.0
"""Followers miss the answers of the owner for longer than they need for a takeover."""

_NO_HOST: Final = "02:00:00:00:00:99"
"""Hardware address that nothing on the bridge has: what is sent there is lost, and nothing reports it."""


@contextmanager
def lost(prefix: Sequence[str], device: str, to: Sequence[str]) -> Iterator[None]:
    """What one host sends to others is lost; what they send to it arrives.

    Args:
        prefix: What a command on the host begins with.
        device: Its network device.
        to: Addresses of the others.
    """
    for address in to:
        _ip(prefix, "neigh", "replace", address, "lladdr", _NO_HOST, "dev", device, "nud", "permanent")
    try:
        yield
    finally:
        for address in to:
            _ip(prefix, "neigh", "del", address, "dev", device)


def _ip(prefix: Sequence[str], *words: str) -> None:
    subprocess.run([*prefix, "ip", *words], check=True)


def _address(server: StoreServer) -> str:
    return server.host.tcp.rpartition(":")[0]


class Cuts:
    """The cuts, by name. Each is a context in which the owner is cut off in one way.

    Args:
        servers: All servers.
    """

    def __init__(self, servers: StoreServers) -> None:
        self._servers = servers
        self.all = {
            "what the owner sends is lost": self.sent,
            "what is sent to the owner is lost": self.received,
            "what the owner sends to other servers is lost": self.sent_to_servers,
            "what other servers send to the owner is lost": self.received_of_servers,
            "all is lost": self.both,
        }

    @asynccontextmanager
    async def sent(self, owner: StoreServer) -> AsyncIterator[None]:
        with lost(owner.host.command_prefix, "eth0", [SERVICES, *self._others(owner)]):
            yield

    @asynccontextmanager
    async def received(self, owner: StoreServer) -> AsyncIterator[None]:
        async with self.received_of_servers(owner):
            with lost((), "switch", [_address(owner)]):
                yield

    @asynccontextmanager
    async def sent_to_servers(self, owner: StoreServer) -> AsyncIterator[None]:
        with lost(owner.host.command_prefix, "eth0", self._others(owner)):
            yield

    @asynccontextmanager
    async def received_of_servers(self, owner: StoreServer) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for other in self._servers.others(owner):
                stack.enter_context(lost(other.host.command_prefix, "eth0", [_address(owner)]))
            yield

    @asynccontextmanager
    async def both(self, owner: StoreServer) -> AsyncIterator[None]:
        await owner.host.cut()
        try:
            yield
        finally:
            await owner.host.mend()

    def _others(self, owner: StoreServer) -> list[str]:
        return [_address(other) for other in self._servers.others(owner)]


def between_servers(name: str) -> bool:
    """Whether a cut leaves the owner its log store and its clients."""
    return "servers" in name


class Appends:
    """Appends numbers, one after the other, and notes where each one is."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.offsets: list[int] = []

    async def run(self) -> None:
        for number in itertools.count():
            appended = await self._client.append(SHARD, [str(number).encode()])
            self.offsets.append(appended.base_offset)

    async def get_on(self) -> None:
        """Return when further ones are acknowledged."""
        wanted = len(self.offsets) + TOGETHER
        with deadline("appends are not acknowledged any more", within_s=PATIENCE_S):
            await look_until(lambda: len(self.offsets) >= wanted)


async def main(directory: Path) -> None:
    """Cut the owner off in every way."""
    store_port = free_port()
    names = ("server-1", "server-2", "server-3")
    seaweedfs = Seaweedfs(directory / "seaweedfs", SERVICES, store_port)
    async with seaweedfs, namespace_hosts(names, store_port) as hosts, AsyncExitStack() as stack:
        await seaweedfs.start()
        nodes = [await stack.enter_async_context(StoreServer(host, directory)) for host in hosts]
        for node in nodes:
            await node.begin()
        servers = StoreServers(nodes)
        await servers.all_follow(await servers.owner(nodes))
        async with open_client(servers.url) as client, trio.open_nursery() as nursery:
            await client.create_shard(SHARD)
            appends = Appends(client)
            nursery.start_soon(appends.run)
            for name, cut in Cuts(servers).all.items():
                await appends.get_on()
                owner = await servers.owner(nodes)
                begun_at = trio.current_time()
                async with cut(owner):
                    await _takes_effect(name, owner)
                    await appends.get_on()
                    longest_s = trio.current_time() - begun_at
                    while between_servers(name) and trio.current_time() - begun_at < _NOTICED_S:
                        await appends.get_on()
                await appends.get_on()
                now = await servers.owner(nodes)
                assert now is owner or not between_servers(name), f"{name}: an owner was deposed that writes"
                await servers.all_follow(now)
                print(f"{name}: {owner.name} -> {now.name}, acknowledged again after {longest_s:.1f} s", flush=True)
            nursery.cancel_scope.cancel()
        await _check(servers, appends.offsets)


async def _takes_effect(name: str, owner: StoreServer) -> None:
    """Wait until the owner is not reached from here any more, if the cut is one of these."""
    if between_servers(name):
        return

    async def is_lost() -> bool:
        return (await owner.get("/livez")).status == 0

    await ask_until(f"{owner.name} still answers", is_lost)


async def _check(servers: StoreServers, offsets: Sequence[int]) -> None:
    """Each server has each acknowledged number once, where it was acknowledged."""
    assert offsets == list(range(len(offsets))), "numbers were stored twice, or out of order"
    for _ in servers.all:
        owner = await servers.owner([server for server in servers.all if server.is_running])
        async with open_adapter(f"journal://{owner.address}") as adapter:
            found: list[bytes] = []
            while len(found) < len(offsets):
                page = await adapter.read(SHARD, len(found))
                assert page.records, f"{owner.name} has {len(found)} records of {len(offsets)}"
                found += [record.value for record in page.records]
        # The last append may have been under way.
        assert found[: len(offsets)] == [str(number).encode() for number in range(len(offsets))]
        await owner.stop()
    print(f"HELD: {len(offsets)} acknowledged records are on each of {len(servers.all)} servers", flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
