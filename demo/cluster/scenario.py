"""The steps of the demo of a cluster: its owner is killed, a disk is emptied, its owner is cut from the network.

At the end each server in turn is the owner, and what it has is read. Brokers and clients get no help: the brokers find
the owner by themselves, and the clients stay at their brokers.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from broker_adapter import open_adapter
from demo.clients.base_crowd import TOPICS
from demo.cluster.clients import ClusterCrowd
from demo.cluster.network.ways import Way, open_hosts
from demo.cluster.outcome import CUT, KILLED, ClusterOutcome, Observations, Takeover, cluster_outcome
from demo.cluster.servers import StoreServer, StoreServers
from demo.display import Display
from demo.evidence.read_back import ReadBack, read_shard
from demo.processes import Broker, free_port
from demo.processes.process import ManagedProcess
from demo.processes.seaweedfs import Seaweedfs
from demo.steps import come_back, gather, publish_the_rest, receive_the_rest, send_away, show_counts
from demo.waiting import WAIT_S, deadline, look_until, now_us, until
from journal.check import check_directory

SERVERS: Final = ("server-1", "server-2", "server-3")
BROKERS: Final = ("broker-1", "broker-2", "broker-3")

_RUN_S: Final = 300.0
_KILL_S: Final = 120.0
"""Bounds of a run without kills, and of each kill; each step has a bound of its own."""

_BETWEEN_S: Final = 1.0
"""Messages of so many seconds are acknowledged between two steps."""

ProcessT = TypeVar("ProcessT", bound=ManagedProcess)


@attrs.frozen(slots=True)
class _Run:
    """What the steps need."""

    servers: StoreServers
    crowd: ClusterCrowd
    observed: Observations
    rate: float
    display: Display

    async def flow(self) -> None:
        """Wait until further messages are acknowledged."""
        goal = self.crowd.acknowledged + int(self.rate * _BETWEEN_S)

        def is_reached() -> bool:
            return self.crowd.acknowledged >= goal

        await until("messages are not acknowledged any more", is_reached)


async def run_scenario(
    directory: Path, kills: int, rate: float, way: Way, display: Display, *, is_timed: bool = True
) -> ClusterOutcome:
    """Run the demo.

    Args:
        directory: A fresh directory for data, configurations and logs.
        kills: How often the owner is killed.
        rate: Messages per second of all publishers together.
        way: How hosts are cut from the network.
        display: Shows every step.
        is_timed: Whether takeovers must meet their goals.

    Raises:
        DemoError: A step failed, or SeaweedFS is not installed.
    """
    observed, begun_at = Observations(), trio.current_time()
    with deadline("the run did not end", within_s=_RUN_S + kills * _KILL_S):
        store_port = free_port()
        seaweedfs = Seaweedfs(directory / "seaweedfs", way.services, store_port)
        async with seaweedfs, open_hosts(way, SERVERS, store_port) as hosts:
            with display.working("SeaweedFS starts"):
                await seaweedfs.start()
            async with _started([StoreServer(host, directory) for host in hosts]) as nodes:
                servers = StoreServers(nodes)
                for node in nodes:
                    await node.begin()
                with display.working("three servers start over it: one of them becomes the owner, two follow"):
                    await servers.all_follow(await servers.owner(nodes))
                crowd = await _serve_clients(servers, directory, kills, rate, observed, display)
                by_server, damages = await _read_each(servers, display)
    observed.run_s = trio.current_time() - begun_at
    return cluster_outcome(crowd, observed, by_server, damages, cut_by=way.told, is_timed=is_timed)


async def _serve_clients(
    servers: StoreServers, directory: Path, kills: int, rate: float, observed: Observations, display: Display
) -> ClusterCrowd:
    """Brokers and clients come, see all steps, and leave when everything that was promised should be there."""
    async with _started([Broker(name, servers.url, free_port(), directory=directory) for name in BROKERS]) as brokers:
        with display.working(f"the owner accepts; {', '.join(BROKERS)} start, each with the addresses of all servers"):
            async with trio.open_nursery() as nursery:
                for broker in brokers:
                    nursery.start_soon(broker.start)
        crowd = ClusterCrowd({broker.name: broker.port for broker in brokers}, rate)
        try:
            await _publish(_Run(servers, crowd, observed, rate, display), kills)
            await _look_at_retained(crowd, display)
            async with open_adapter(servers.url) as adapter:
                stored = {info.name: await read_shard(adapter, info) for info in await adapter.list_shards(TOPICS)}
            observed.replayed = await receive_the_rest(crowd, stored, display)
        finally:
            await trio.to_thread.run_sync(crowd.leave)
        for broker in brokers:
            await broker.stop()
    return crowd


async def _publish(run: _Run, kills: int) -> None:
    """All steps while the clients publish; at the end all published messages are acknowledged."""
    crowd, observed, display = run.crowd, run.observed, run.display
    await gather(crowd, display)
    begun_at = trio.current_time()
    with display.counting(None) as show:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show_counts, crowd, show)
            for publisher in crowd.publishers:
                nursery.start_soon(publisher.run)
            await run.flow()
            left_at = trio.current_time()
            port = await send_away(crowd, display)
            await run.flow()
            killed = await _kill_owner(run)
            await _empty_disk(run, killed)
            await run.flow()
            await _cut_owner(run)
            observed.away_s = trio.current_time() - left_at
            observed.catching_up = await come_back(crowd, port, observed.away_s, (), display)
            for _ in range(kills - 1):
                await run.flow()
                killed = await _kill_owner(run)
                await _rejoin(run, killed)
            await run.flow()
            nursery.cancel_scope.cancel()
    await publish_the_rest(crowd, display)
    observed.publishing_s = trio.current_time() - begun_at


async def _kill_owner(run: _Run) -> StoreServer:
    """SIGKILL the owner; wait until another server has acknowledged messages of both publishers."""
    owner = await run.servers.owner(run.servers.all)

    async def kill() -> None:
        pid = owner.pid
        await owner.kill()
        run.display.step(f"SIGKILL to {owner.name}, the owner, process {pid}")

    await _take_over(run, owner, KILLED, kill)
    return owner


async def _cut_owner(run: _Run) -> None:
    """Cut the owner from the network until another server has taken over; then it comes back, and follows."""
    owner = await run.servers.owner(run.servers.all)

    async def cut() -> None:
        await owner.host.cut()
        run.display.step(f"{owner.name}, the owner, is cut from the network; its process {owner.pid} goes on")

    cut_at = trio.current_time()
    new = await _take_over(run, owner, CUT, cut)
    await owner.host.mend()
    mended_at = trio.current_time()
    run.observed.cut_s = mended_at - cut_at
    run.display.step(f"{owner.name} is connected again after {run.observed.cut_s:.1f} s")
    await run.servers.follows(owner, await run.servers.newest_lsn(new))
    run.observed.mended_s = trio.current_time() - mended_at
    run.display.step(f"{owner.name} follows {new.name} now")


async def _take_over(run: _Run, owner: StoreServer, cause: str, strike: Callable[[], Awaitable[None]]) -> StoreServer:
    """Do what makes another server take over, and wait for it as the clients do."""
    struck_at_us = now_us()
    await strike()
    # What is published from now on cannot be acknowledged by the former owner.
    is_off_us = now_us()
    await until("no other server acknowledged anything", lambda: run.crowd.all_acknowledged_later_than(is_off_us))
    new = await run.servers.owner(run.servers.others(owner))
    pause_s = run.crowd.longest_pause_s(struck_at_us, is_off_us)
    run.observed.takeovers.append(Takeover(cause=cause, former_owner=owner.name, owner=new.name, pause_s=pause_s))
    run.display.step(f"{new.name} has taken over: clients had no acknowledgement for {pause_s:.2f} s")
    return new


async def _empty_disk(run: _Run, server: StoreServer) -> None:
    """Delete the data directory of a server that is down, and start it again."""
    await trio.to_thread.run_sync(shutil.rmtree, server.data)
    run.display.step(f"the data directory of {server.name} is deleted; it is started again without it")
    run.observed.emptied = server.name
    run.observed.rejoin_entries, run.observed.rejoin_s = await _rejoin(run, server)


async def _rejoin(run: _Run, server: StoreServer) -> tuple[int, float]:
    """Start a server that is down, and wait until it has all that was in the log then; returns that and the time."""
    newest_lsn = await run.servers.newest_lsn(await run.servers.owner(run.servers.others(server)))
    begun_at = trio.current_time()
    await server.begin()
    await run.servers.has_log(server, newest_lsn)
    seconds = trio.current_time() - begun_at
    run.display.step(f"{server.name} is back, with all {newest_lsn:,} entries of the log after {seconds:.2f} s")
    return newest_lsn, seconds


async def _look_at_retained(crowd: ClusterCrowd, display: Display) -> None:
    """A new client at each broker subscribes: it gets what is retained."""
    for newcomer in crowd.newcomers.values():
        newcomer.client.subscribe(TOPICS, 2)
        newcomer.client.connect()
    # What does not come in time is reported by the checks.
    with trio.move_on_after(WAIT_S):
        await look_until(crowd.have_retained)
    display.step("a new client at each broker has got the retained messages")


async def _read_each(servers: StoreServers, display: Display) -> tuple[dict[str, dict[str, ReadBack]], list[str]]:
    """Read all shards at the owner, stop it, and the same with the server that takes over, until none is left.

    Returns:
        What each server had, and the damages that the offline check found in their directories.
    """
    found: dict[str, dict[str, ReadBack]] = {}
    damages: list[str] = []
    await servers.all_follow(await servers.owner(servers.all))
    left = list(servers.all)
    while left:
        owner = await servers.owner(left)
        async with open_adapter(f"journal://{owner.address}") as adapter:
            found[owner.name] = {
                info.name: await read_shard(adapter, info) for info in await adapter.list_shards(TOPICS)
            }
        await owner.stop()
        left.remove(owner)
        report = await trio.to_thread.run_sync(check_directory, str(owner.data))
        damages += [f"{owner.name}: {damage}" for damage in report.damages]
        records = sum(len(read.found) for read in found[owner.name].values())
        display.step(f"{owner.name} has {records:,} records; it is stopped, and its directory is checked")
    return found, damages


@asynccontextmanager
async def _started(processes: Sequence[ProcessT]) -> AsyncIterator[Sequence[ProcessT]]:
    """Processes that are killed at the end of the context if they still run."""
    async with AsyncExitStack() as stack:
        for process in processes:
            await stack.enter_async_context(process)
        yield processes
