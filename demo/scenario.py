"""The steps of the demo: a mode switch; a session goes away; broker, warehouse and server are killed; a replay.

At the end everything is sealed, and Spark counts the records. The clients get no help: they find another broker by
themselves, as the brokers find the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import look
from demo.clients.base_crowd import TOPICS
from demo.clients.crowd import MEMORY_TOPICS, NOT_KEPT, WAREHOUSE, Crowd
from demo.display import Display
from demo.evidence.read_back import lies_in_file, mode_history, read_shard
from demo.observations import Observations
from demo.processes import Broker, Server, WarehouseService, free_port
from demo.processes.broker import BRIDGE, warehouse_rules
from demo.results.history import History, expected_figures, query_sealed
from demo.results.outcome import Outcome, outcome_of
from demo.steps import come_back, gather, publish_the_rest, receive_the_rest, send_away, show_counts
from demo.waiting import LOOK_INTERVAL_S, deadline, now_us, until
from demo.warehouse.contents import read_contents
from journal.check import check_directory
from shards.model import Mode, ShardInfo

BROKERS: Final = ("broker-1", "broker-2", "broker-3")

TO_FILE_AT, AWAY_AT, TO_MEMORY_AT, KILL_BROKER_AT, OUTAGE_AT, KILL_SERVER_AT, BACK_AT, OUTAGE_END_AT = (
    *(0.1, 0.15, 0.25, 0.35),
    *(0.4, 0.55, 0.75, 0.9),
)
"""Times of the steps, as shares of the run."""


async def run_scenario(directory: Path, seconds: float, rate: float, display: Display) -> Outcome:
    """Run the demo.

    Args:
        directory: A fresh directory for data, configurations and logs.
        seconds: How long the clients publish.
        rate: Messages per second of all publishers together.
        display: Shows every step.

    Raises:
        DemoError: A step failed.
    """
    observations, data = Observations(), directory / "data"
    warehouse = WarehouseService(directory / "warehouse.sqlite", free_port(), directory / "warehouse.log")
    async with Server(data, free_port(), directory / "server.log") as server, warehouse:
        await server.start()
        await warehouse.start()
        async with _brokers(server, warehouse, directory) as brokers, open_adapter(server.url) as adapter:
            display.step(f"a journal server ({server.url}) and {', '.join(BROKERS)} accept connections, data in {data}")
            crowd = Crowd([broker.port for broker in brokers], rate)
            try:
                await _publish(adapter, server, warehouse, brokers, crowd, observations, seconds, display)
                await _drain(adapter, observations, display)
                crowd.ledgers[WAREHOUSE] = read_contents(warehouse.database)
                display.step("the checker reads every shard and compares it with the clients' ledgers")
                infos = {info.name: info for info in await adapter.list_shards(TOPICS)}
                stored = {name: await read_shard(adapter, info) for name, info in infos.items()}
                observations.replayed = await receive_the_rest(crowd, stored, display)
            finally:
                await trio.to_thread.run_sync(crowd.leave)
            infos = {name: await adapter.describe_shard(name) for name in infos}
            conversion_s = await _seal_all(adapter, infos)
            for broker in brokers:
                await broker.stop()
        await server.stop()
    files = list((data / "sealed").glob("date=*/*.parquet"))
    display.step(
        f"the segments in files are sealed: {len(files)} Parquet files; brokers and server have stopped on SIGTERM"
    )
    report = await trio.to_thread.run_sync(check_directory, str(data))
    with display.working("every checksum of its directory was checked; Spark starts, then reads the sealed files"):
        found, session_s, query_s = await trio.to_thread.run_sync(query_sealed, data)
    modes = _modes(infos, observations)
    history = History(
        found=found,
        expected=expected_figures(
            {
                name: [metric for offset, metric in read.metrics if lies_in_file(offset, modes[name])]
                for name, read in stored.items()
            }
        ),
        sealed_files=len(files),
        sealed_bytes=sum(file.stat().st_size for file in files),
        conversion_s=conversion_s,
        session_s=session_s,
        query_s=query_s,
    )
    return outcome_of(crowd, observations, stored, modes, [str(damage) for damage in report.damages], history)


@asynccontextmanager
async def _brokers(server: Server, warehouse: WarehouseService, directory: Path) -> AsyncIterator[list[Broker]]:
    """Three brokers for the duration of the context."""
    async with AsyncExitStack() as stack:
        brokers = [
            Broker(
                name,
                server.url,
                free_port(),
                directory=directory,
                rules=warehouse_rules(TOPICS, MEMORY_TOPICS, warehouse.url),
            )
            for name in BROKERS
        ]
        for broker in brokers:
            await stack.enter_async_context(broker)
        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(broker.start)
        yield brokers


async def _publish(
    adapter: StorageAdapter,
    server: Server,
    warehouse: WarehouseService,
    brokers: Sequence[Broker],
    crowd: Crowd,
    observations: Observations,
    seconds: float,
    display: Display,
) -> None:
    """All steps while the clients publish; at the end all published messages are acknowledged."""
    await gather(crowd, display)
    begun_at = trio.current_time()

    def at(share: float) -> float:
        return begun_at + seconds * share

    with display.counting(seconds) as show:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show_counts, crowd, show)
            for publisher in crowd.publishers:
                nursery.start_soon(publisher.run)
            await trio.sleep_until(at(TO_FILE_AT))
            await _switch_mode(adapter, crowd, observations, Mode.FILE, display)
            await trio.sleep_until(at(AWAY_AT))
            left_at = trio.current_time()
            port = await send_away(crowd, display)
            await trio.sleep_until(at(TO_MEMORY_AT))
            await _switch_mode(adapter, crowd, observations, Mode.MEMORY, display)
            await trio.sleep_until(at(KILL_BROKER_AT))
            await _kill_broker(brokers[0], crowd, observations, display)
            await trio.sleep_until(at(OUTAGE_AT))
            out_at = trio.current_time()
            await warehouse.kill()
            display.step("SIGKILL to the warehouse: messages for it wait in the bridge's queue from now on")
            await trio.sleep_until(at(KILL_SERVER_AT))
            await _kill_server(adapter, server, crowd, observations, display)
            await trio.sleep_until(at(BACK_AT))
            observations.away_s = trio.current_time() - left_at
            observations.catching_up = await come_back(
                crowd, port, observations.away_s, {*NOT_KEPT, "network"}, display
            )
            await trio.sleep_until(at(OUTAGE_END_AT))
            await warehouse.start()
            observations.warehouse_s = trio.current_time() - out_at
            observations.queue_grew_to = (await look(adapter, BRIDGE)).depth.record_count
            observations.drained_s = -trio.current_time()
            display.step(
                f"the warehouse is back after {observations.warehouse_s:.1f} s; "
                f"{observations.queue_grew_to:,} messages wait"
            )
            await trio.sleep_until(at(1.0))
            nursery.cancel_scope.cancel()

    await publish_the_rest(crowd, display)
    observations.publishing_s = trio.current_time() - begun_at


async def _drain(adapter: StorageAdapter, observations: Observations, display: Display) -> None:
    """Wait until the bridge's queue is empty; the broker that drove the bridge may be the one that was killed."""
    with deadline("not everything reached the warehouse"):
        while (await look(adapter, BRIDGE)).depth.record_count:  # noqa: ASYNC110  other processes empty it
            await trio.sleep(LOOK_INTERVAL_S)
    observations.drained_s += trio.current_time()
    display.step(f"the queue is empty {observations.drained_s:.1f} s after that")


async def _switch_mode(
    adapter: StorageAdapter, crowd: Crowd, observations: Observations, mode: Mode, display: Display
) -> None:
    """Switch the busiest memory-mode shard to files, or that one back, while it is being written."""
    if not observations.switched:
        await until("nothing came that is kept in memory", crowd.has_received_from_memory)
        infos = await adapter.list_shards(TOPICS)
        observations.switched = max((info for info in infos if info.config.mode is Mode.MEMORY), key=_end).name
    info = await adapter.set_mode(observations.switched, mode)
    display.step(
        f"{observations.switched}, which is being written, continues in {mode.value} mode "
        f"at offset {info.next_offset:,}"
    )


async def _kill_broker(broker: Broker, crowd: Crowd, observations: Observations, display: Display) -> None:
    """SIGKILL the broker of half of the clients; wait until its publisher gets an acknowledgement from another one."""
    bereft = [client.client_id for client in crowd.clients if client.port == broker.port]
    pid, observations.broker_killed_at_us = broker.pid, now_us()
    await broker.kill()
    display.step(f"SIGKILL to {broker.name}, process {pid}; its clients {', '.join(bereft)} look for another broker")
    publisher = crowd.publishers[0]
    await until(
        f"{publisher.client.client_id} got no acknowledgement from another broker",
        lambda: publisher.ledger.acknowledged_of_later_than(observations.broker_killed_at_us) is not None,
    )
    await broker.start()
    display.step(
        f"{publisher.client.client_id} has acknowledgements from another broker; {broker.name} is started again"
    )


async def _kill_server(
    adapter: StorageAdapter, server: Server, crowd: Crowd, observations: Observations, display: Display
) -> None:
    """SIGKILL the server, restart it on the same data and port, and wait until both publishers are acknowledged."""
    observations.switched_modes = mode_history(await adapter.describe_shard(observations.switched))
    display.step(crowd.in_words())
    pid, observations.server_killed_at_us = server.pid, now_us()
    await server.kill()
    display.step(f"SIGKILL to the server, process {pid}; it is started again on the same data and port")
    await server.start()
    observations.server_back_at_us = now_us()
    await until(
        "a publisher got no acknowledgement", lambda: crowd.all_acknowledged_later_than(observations.server_back_at_us)
    )
    display.step("the brokers have found it again by themselves: both publishers have acknowledgements")


async def _seal_all(adapter: StorageAdapter, infos: dict[str, ShardInfo]) -> float:
    """Roll every shard's segment and wait until those in files are Parquet; returns how many seconds that took."""
    begun_at = trio.current_time()

    async def seal(name: str) -> None:
        with deadline(f"{name} was not sealed"):
            await adapter.convert(name)

    # Those that are asked for together are in one file.
    async with trio.open_nursery() as nursery:
        for name in infos:
            nursery.start_soon(seal, name)
    return trio.current_time() - begun_at


def _modes(infos: dict[str, ShardInfo], observations: Observations) -> dict[str, list[tuple[str, int]]]:
    """Mode history of each shard; memory segments that were lost with the server cannot be seen any more."""
    found = {name: [(info.config.mode.value, 0)] for name, info in infos.items()}
    return {**found, observations.switched: observations.switched_modes}


def _end(info: ShardInfo) -> int:
    return info.next_offset
