"""The processes of an outage: a journal server, brokers with a bridge, a real sink behind a proxy, and publishers.

What must hold at the end is `ledger`; what happens in between is up to the tests.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import QueueState, look
from broker_adapter.cache_queue.dead_letters import list_dead_letters
from tests.bridge.outages.ledger import Found, Ledger
from tests.bridge.outages.publisher import Poison, Publisher, message_of
from tests.faults.processes import command
from tests.mqtt.cluster.processes import Process, free_port
from tests.patience import PATIENCE_S
from tests.sinks.proxy import Proxy
from tests.sinks.stage import Stage

BRIDGE: Final = "outage"
BATCH_RECORDS: Final = 25
WINDOW: Final = 4
MOST_REPEATED: Final = BATCH_RECORDS * WINDOW
TIMEOUT_S: Final = 1
KEEPS_POSITION: Final = frozenset({"postgresql", "redis"})


_LOOK_S: Final = 0.05
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
    """

    def __init__(
        self,
        stage: Stage,
        server: Process,
        brokers: Sequence[Process],
        publishers: Sequence[Publisher],
        ledger: Ledger,
        adapter: StorageAdapter,
    ) -> None:
        self.stage = stage
        self.server = server
        self.brokers = brokers
        self.publishers = publishers
        self.ledger = ledger
        self.adapter = adapter

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
        await self.wait_queue(lambda state: state.status is not None and state.status.state in ("open", "half open"))

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
            await self.wait_queue(lambda state: not state.depth.record_count)
        assert not patience.cancelled_caught, f"does not settle: {await self.look()}\n{self.logs}"

    async def check(self) -> list[Found]:
        """Settle, and compare the sink with the ledger.

        Returns:
            The rows of the sink.
        """
        await self.settle()
        rows = [_found_in_row(row) for row in await self.stage.rows()]
        letters = [
            Found(message_of(each.record.topic, each.record.value), each.queue_offset)
            async for each in list_dead_letters(self.adapter, BRIDGE)
        ]
        problems = self.ledger.problems(
            rows,
            letters,
            next_offset=(await self.look()).shard.next_offset,
            most_repeated=0 if self.stage.kind in KEEPS_POSITION else MOST_REPEATED,
        )
        assert problems == [], "\n".join([*problems, self.logs])
        return rows

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
) -> AsyncIterator[World]:
    """A world for the length of a block. Its processes are ended by SIGTERM at the end, and must obey.

    Args:
        directory: For everything but the server's data.
        sink: Name of the sink's stage.
        data: The server's data; in the directory if None.
        settings: Of the server, as for `--set`.
    """
    port = free_port()
    store = f"journal://127.0.0.1:{port}"
    server = Process(
        command(data or directory / "data", f"listen.tcp=127.0.0.1:{port}", *settings), directory / "journal.log"
    )
    (directory / "sink").mkdir()
    async with import_module(f"tests.sinks.stages.{sink}").open_stage(directory / "sink") as stage:
        processes = [_broker(directory, _name(number), store, stage) for number in range(brokers)]
        with ExitStack() as ending:
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
                world = World(stage, server, processes, publishers, ledger, adapter)
                try:
                    yield world
                except Exception as error:
                    error.add_note(world.logs)
                    raise
                running.cancel_scope.cancel()
            statuses = [await trio.to_thread.run_sync(each.end, signal.SIGTERM) for each in (*processes, server)]
            assert set(statuses) == {0}, f"{statuses}: {[each.log_text[-_LOG_BYTES:] for each in (*processes, server)]}"


def _broker(directory: Path, name: str, store: str, stage: Stage) -> Process:
    """A broker with the bridge, on a port that stays the same."""
    config = directory / f"{name}.toml"
    text = _BROKER.format(
        name=name, store=store, port=free_port(), bridge=BRIDGE, batch_records=BATCH_RECORDS, window=WINDOW
    )
    sink = {"type": stage.kind, **stage.settings, "timeout_s": TIMEOUT_S}
    config.write_text(text + "".join(f"{key} = {_toml(value)}\n" for key, value in sink.items()))
    argv = [sys.executable, "-m", "tests.bridge.outages.impatient_broker", str(config)]
    return Process(argv, directory / f"{name}.log")


def _toml(value: object) -> str:
    """A value as it stands in a TOML file; JSON is the same but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _name(number: int) -> str:
    return f"broker-{number}"


def _found_in_row(row: Mapping[str, object]) -> Found:
    topic, offset = row["topic"], row["value"]
    assert isinstance(topic, str)
    assert isinstance(offset, (int, str, bytes))
    payload = json.dumps({"n": row["n"]}).encode()
    return Found(message_of(topic, payload), int(offset))
