"""The processes of an outage: a journal server, brokers with a bridge, a real sink behind a proxy, and publishers.

What must hold at the end says `tests.torture.deliveries`; what happens in between is up to the tests.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import QueueState, look
from broker_adapter.cache_queue.dead_letters import list_dead_letters
from broker_adapter.cache_queue.names import progress_key
from broker_adapter.cache_queue.queue import delete_queue
from broker_adapter.cache_queue.stored import Progress as StoredProgress
from broker_adapter.state_forms import decode
from journal.protocol.errors import is_retriable
from shards.errors import StorageError
from tests.bridge.outages.impatient_broker import LEASE
from tests.bridge.outages.ledger import Ledger
from tests.bridge.outages.publisher import Poison, Publisher, message_of
from tests.faults.processes import command
from tests.mqtt.cluster.processes import Process
from tests.mqtt.cluster.relay import Relay
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.sinks.proxy import Proxy
from tests.sinks.stage import Stage
from tests.torture.deliveries.checker import check
from tests.torture.deliveries.history import Arrival, Command, Ending, History, Outcome, Progress, Promises, Tally

BRIDGE: Final = "outage"
BATCH_RECORDS: Final = 25
WINDOW: Final = 4
MOST_REPEATED: Final = BATCH_RECORDS * WINDOW
TIMEOUT_S: Final = 1
KEEPS_POSITION: Final = frozenset({"postgresql", "redis", "files"})
DELETED_WITHIN_S: Final = LEASE.lease_s + 5.0
"""Until a queue whose driver was killed is gone: the lease, and as much for a busy machine."""

_LOOK_S: Final = 0.05
WRITERS_LOOK_S: Final = 2.25
"""Within which time every writer knows a queue's settings; docs/cache-queues.md."""
_INTERVAL_S: Final = 0.004
_LOG_BYTES: Final = 3000

_BROKER: Final = """\
[broker]
id = "{name}"
store = "{store}"
[listen]
mqtt = "127.0.0.1:{port}"
websocket = ""
[access]
anonymous = true
[rules]
on_difference = "follow"
[[bridge]]
name = "{bridge}"
topics = ["plant/#", "forbidden"]
fields = {{ topic = "topic", n = "$.n", body = "$.body", value = "offset" }}
batch_records = {batch_records}
batch_wait_ms = 20
window = {window}
max_refusals = 2
min_backoff_ms = 20
max_backoff_s = 1
mode = "file"
[bridge.sink]
"""


class World:
    """Everything that runs.

    Attributes:
        stage: The sink.
        server: The journal server.
        brokers: All of them share the bridge.
        publishers: They publish all the time, each message to a topic of its publisher.
        ledger: What they know.
        adapter: A way into the store of its own, to look at the queue.
        configurations: Of the brokers, in their order.
        relays: Between each broker and the store, if there are any.
    """

    def __init__(
        self,
        stage: Stage,
        server: Process,
        brokers: Sequence[Process],
        publishers: Sequence[Publisher],
        ledger: Ledger,
        adapter: StorageAdapter,
        configurations: Sequence[Path],
        relays: Sequence[Relay],
    ) -> None:
        self.stage = stage
        self.server = server
        self.brokers = brokers
        self.publishers = publishers
        self.ledger = ledger
        self.adapter = adapter
        self.configurations = configurations
        self.relays = relays

    @property
    def proxy(self) -> Proxy:
        """The way to the sink."""
        assert self.stage.proxy is not None
        return self.stage.proxy

    async def look(self) -> QueueState:
        return await look(self.adapter, BRIDGE)

    async def wait_queue(self, is_so: Callable[[QueueState], bool]) -> QueueState:
        """Wait until the queue is so."""
        while not is_so(state := await self.look()):
            await trio.sleep(_LOOK_S)
        return state

    async def wait_driven(self) -> None:
        """Wait until something has come through."""
        await self.wait_queue(lambda state: state.depth.first_offset > 0)

    async def wait_out(self) -> None:
        """Wait until the bridge has found out that the sink is out."""
        await self.wait_queue(lambda state: state.status is not None and state.status.state in ("down", "retrying"))

    async def publish(self, count: int) -> None:
        """Wait until each publisher has had so many more messages acknowledged."""
        async with trio.open_nursery() as nursery:
            for publisher in self.publishers:
                nursery.start_soon(publisher.wait_acknowledged, count)

    def publish_poison(self, share: float) -> None:
        """Publish messages among the others, from now on, that the sink refuses."""
        row = self.stage.refused()
        assert row is not None
        body = row["body"]
        assert isinstance(body, str)
        topic = "" if str(row["topic"]).startswith("plant/") else str(row["topic"])
        for publisher in self.publishers:
            publisher.poison = Poison(topic, body, share)

    async def settle(self) -> None:
        """Publish no more, and wait until all that waits has left the queue."""
        for publisher in self.publishers:
            publisher.stop()
        with trio.move_on_after(PATIENCE_S) as patience:
            for publisher in self.publishers:
                await publisher.wait_answered()
            state = await self.wait_queue(lambda state: not state.depth.record_count)
            # The watcher of the progress may not have looked since the last of it.
            self.ledger.history.progress.append(Progress(self.ledger.now_s(), state.progress.offset))
        assert not patience.cancelled_caught, f"does not settle: {await self.look()}\n{self.logs}"

    async def check(self) -> Sequence[Arrival]:
        """Settle, and compare the sink with the ledger.

        Returns:
            The rows of the sink.
        """
        problems = await self.problems()
        assert problems == [], "\n".join([*problems, self.logs])
        return self.ledger.history.arrivals

    async def problems(self, *, held_up_s: float = math.inf) -> list[str]:
        """Settle; the promises that were not kept, a line each.

        Args:
            held_up_s: How long a message may be under way while nothing is out.
        """
        history = self.ledger.history
        names = {f"broker-{number}": process for number, process in enumerate(self.brokers)} | {"server": self.server}
        history.endings = [
            Ending(name, status) for name, each in names.items() if (status := each.exit_status) is not None
        ]
        if history.endings:
            return [str(anomaly) for anomaly in check(history) if anomaly.kind == "ended by itself"]
        await self.settle()
        history.arrivals = [_row_arrival(row) for row in await self.stage.rows()]
        history.letters = [
            Arrival(message_of(each.record.topic, each.record.value), each.queue_offset)
            async for each in list_dead_letters(self.adapter, BRIDGE)
        ]
        state = await self.look()
        counts = Counter(msgspec.structs.asdict(state.progress.counts))
        history.tally = Tally(state.shard.next_offset, state.progress.offset, counts, state.dead_letter_count)
        history.promises = Promises(
            most_repeated=0 if self.stage.kind in KEEPS_POSITION else MOST_REPEATED,
            held_up_s=held_up_s,
            writers_look_s=WRITERS_LOOK_S,
        )
        return [str(anomaly) for anomaly in check(history)]

    async def watch_progress(self) -> None:
        """Note how far the queue is done with, until cancelled."""
        while True:
            await trio.sleep(2 * _LOOK_S)
            try:
                found = await self.adapter.get_state(progress_key(BRIDGE))
            except StorageError as error:
                if not is_retriable(error):
                    raise
                continue  # the store was killed meanwhile
            if found is not None:
                offset = decode(StoredProgress, found.key, found.value).offset
                self.ledger.history.progress.append(Progress(self.ledger.now_s(), offset))

    async def delete_queue_of_killed_drivers(self) -> list[str]:
        """Kill all brokers and delete the queue, which is to be gone in time; the last thing that is done here.

        Returns:
            What was not kept of that.
        """
        for broker in self.brokers:
            await trio.to_thread.run_sync(broker.end, signal.SIGKILL)
        with self.ledger.during(Command, what="delete", outcome=Outcome.OK, within_s=DELETED_WITHIN_S) as noted:
            try:
                await delete_queue(self.adapter, BRIDGE, lease=LEASE)
            except StorageError as error:
                noted.update(outcome=Outcome.REFUSED, detail=repr(error))
        events = [event for event in self.ledger.history.events if isinstance(event, Command)]
        return [str(anomaly) for anomaly in check(History(events=events))]

    def driver_in(self, state: QueueState) -> Process | None:
        """The broker that drives the bridge."""
        holder = state.lease.holder if state.lease else ""
        return next((broker for number, broker in enumerate(self.brokers) if _name(number) == holder), None)

    @property
    def logs(self) -> str:
        """How the publishers stand, and the processes, with the ends of what they said."""
        said = (
            f"{'running' if process.is_running else 'ended'}: {process.log_text[-_LOG_BYTES:]}"
            for process in (*self.brokers, self.server)
        )
        return "\n".join([*map(str, self.publishers), *said])


@asynccontextmanager
async def open_world(
    directory: Path,
    sink: str,
    *,
    brokers: int = 1,
    data: Path | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    with_relays: bool = False,
) -> AsyncIterator[World]:
    """A world for the length of a block. Its processes are ended by SIGTERM at the end, and must obey.

    Args:
        directory: For everything but the server's data.
        sink: Name of the sink's stage.
        data: The server's data; in the directory if None.
        settings: Of the server, as for `--set`.
        with_relays: Each broker reaches the store by way of a relay of its own.
    """
    port = free_port()
    store = f"journal://127.0.0.1:{port}"
    server = Process(
        command(data or directory / "data", f"listen.tcp=127.0.0.1:{port}", *settings), directory / "journal.log"
    )
    (directory / "sink").mkdir()
    async with import_module(f"tests.sinks.stages.{sink}").open_stage(directory / "sink") as stage:
        with ExitStack() as ending:
            relays = [ending.enter_context(Relay(port).running()) for _ in range(brokers if with_relays else 0)]
            ways = [f"journal://127.0.0.1:{relay.port}" for relay in relays] or [store] * brokers
            configurations = [_configuration(directory, _name(number), way, stage) for number, way in enumerate(ways)]
            processes = [_broker(each) for each in configurations]
            for process in (server, *processes):
                ending.callback(process.end, signal.SIGKILL)
            await trio.to_thread.run_sync(server.start)
            async with trio.open_nursery() as starting:
                for process in processes:
                    starting.start_soon(trio.to_thread.run_sync, process.start)
            ledger = Ledger()
            rng = random.Random(seed)
            publishers = [
                Publisher(
                    f"p{number}",
                    [process.ports["mqtt"] for process in processes],
                    ledger,
                    random.Random(rng.random()),
                    interval_s=_INTERVAL_S,
                )
                for number in range(2)
            ]
            async with open_adapter(store) as adapter, trio.open_nursery() as running:
                for publisher in publishers:
                    running.start_soon(publisher.run)
                world = World(stage, server, processes, publishers, ledger, adapter, configurations, relays)
                try:
                    yield world
                except Exception as error:
                    error.add_note(world.logs)
                    raise
                running.cancel_scope.cancel()
            statuses = [await trio.to_thread.run_sync(each.end, signal.SIGTERM) for each in (*processes, server)]
            assert set(statuses) == {0}, f"{statuses}: {[each.log_text[-_LOG_BYTES:] for each in (*processes, server)]}"


def _configuration(directory: Path, name: str, store: str, stage: Stage) -> Path:
    """The file of a broker with the bridge, on a port that stays the same."""
    config = directory / f"{name}.toml"
    text = _BROKER.format(
        name=name, store=store, port=free_port(), bridge=BRIDGE, batch_records=BATCH_RECORDS, window=WINDOW
    )
    sink = {"type": stage.kind, **stage.settings, "timeout_s": TIMEOUT_S}
    config.write_text(text + "".join(f"{key} = {_toml(value)}\n" for key, value in sink.items()))
    return config


def _broker(config: Path) -> Process:
    argv = [sys.executable, "-m", "tests.bridge.outages.impatient_broker", str(config)]
    return Process(argv, config.with_suffix(".log"))


def _toml(value: object) -> str:
    """A value as it is written in a TOML file; JSON is the same but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _name(number: int) -> str:
    return f"broker-{number}"


def _row_arrival(row: Mapping[str, object]) -> Arrival:
    topic, offset = row["topic"], row["value"]
    assert isinstance(topic, str)
    assert isinstance(offset, (int, str, bytes))
    payload = json.dumps({"n": row["n"]}).encode()
    return Arrival(message_of(topic, payload), int(offset))
