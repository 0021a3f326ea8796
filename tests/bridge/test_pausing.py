"""After `journal queue pause` has ended well, no write to the sink begins until the queue is resumed."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.driver import BridgeDriver
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import LeaseSettings, QueueLease, QueueSettings, ensure_queue, look, names
from broker_adapter.cache_queue.cli import queue_changes
from broker_adapter.cache_queue.gauge import Depth
from broker_adapter.cache_queue.pausing import Pause, PauseOutcome, pause_queue
from broker_adapter.cache_queue.queue import (
    change_queue,
    definition_of,
    delete_queue,
    keep_within_bounds,
    read_definition,
)
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.sinks import Batch, Sink, SinkContext
from broker_adapter.state_forms import encode
from command_line.boundary import CommandError
from journal.settings.values import ConfigurationError
from shards.format.record import Record
from tests.bridge.fakes import Shelf, ShelfSink
from tests.cache_queue import queues
from tests.mqtt.cluster.processes import REPOSITORY, Cluster, running_cluster
from tests.patience import PATIENCE_S
from tests.ports import free_port

QUEUE = "warehouse"


async def put(store: StorageAdapter, count: int) -> None:
    await ensure_queue(store, QUEUE, QueueSettings())
    await store.append(names.shard_of(QUEUE), [Record(b"%d" % number, topic="plant/x") for number in range(count)])


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.005)


async def until_state(store: StorageAdapter, state: str) -> None:
    while (status := (await look(store, QUEUE)).status) is None or status.state != state:
        await trio.sleep(0.05)


# Processes

BRIDGE = f"""\
[[bridge]]
name = "{QUEUE}"
topics = ["plant/#"]
batch_records = 5
min_backoff_ms = 20
[bridge.sink]
type = "http"
url = "http://127.0.0.1:{{port}}/rows"
timeout_s = 120
"""


@attrs.define(eq=False)
class Service:
    """A web service that takes rows, and can be told to answer later.

    Attributes:
        begun_count: Requests with rows of which the head has arrived.
        under_way: Those without an answer.
        answers: While it is not set, requests wait for their answers.
        refuses: The status that each batch with rows gets in place of success; 0 for none.
    """

    port: int = attrs.Factory(free_port)
    begun_count: int = 0
    under_way: int = 0
    answers: trio.Event = attrs.Factory(trio.Event)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        has_rows = scope["method"] == "POST"
        self.begun_count += has_rows
        self.under_way += has_rows
        try:
            while (await receive()).get("more_body"):
                pass
            if has_rows:
                await self.answers.wait()
            # So that a backlog lasts longer than a test.
            await trio.sleep(0.02)
        finally:
            self.under_way -= has_rows
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run(self) -> None:
        config = Config()
        config.bind = [f"127.0.0.1:{self.port}"]
        config.errorlog = None
        await serve(self, config)


@attrs.frozen
class Plant:
    """A store, two brokers that share a bridge with a long backlog, and its sink."""

    cluster: Cluster
    service: Service
    store: StorageAdapter
    port: int

    async def command(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "journal.cli.main", "queue", *words, "--server", f"127.0.0.1:{self.port}"]
        return await trio.run_process(argv, cwd=REPOSITORY, capture_stdout=True, capture_stderr=True, check=False)

    async def said(self, *words: str, status: int = 0) -> str:
        """Run `journal queue ...` as a process; what it wrote."""
        with trio.fail_after(PATIENCE_S):
            done = await self.command(*words)
        assert done.returncode == status, done.stderr
        return (done.stderr if status else done.stdout).decode()


@asynccontextmanager
async def plant(directory: Path) -> AsyncIterator[Plant]:
    service, port = Service(), free_port()
    settings = BRIDGE.format(port=service.port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        with running_cluster(directory, brokers=2, store_port=port, settings=settings) as cluster:
            async with open_adapter(f"journal://127.0.0.1:{port}") as store:
                await put(store, 20_000)
                yield Plant(cluster, service, store, port)
        nursery.cancel_scope.cancel()


@pytest.mark.slow("starts a server and brokers")
async def test_no_request_begins_after_the_command_has_ended(tmp_path: Path) -> None:
    """Up to 26 requests began within 0.9 seconds after it."""
    async with plant(tmp_path) as running:
        service = running.service
        service.answers.set()
        await until(lambda: service.begun_count > 5)
        for _ in range(2):
            assert "journal queue resume" in await running.said("pause", QUEUE)
            begun_count = service.begun_count
            assert service.under_way == 0
            # The driver has read the definition again when it has answered this one.
            told = json.loads(await running.said("pause", QUEUE, "--json"))
            assert (told["queue"], told["is_paused"], told["outcome"]) == (QUEUE, True, "driver paused")
            assert told["driver"].startswith("broker-")
            assert service.begun_count == begun_count
            await running.said("resume", QUEUE)
            await until(lambda: service.begun_count > begun_count + 5)  # noqa: B023 - awaited within the loop


@pytest.mark.slow("starts a server and brokers, and waits for the end of a lease")
async def test_the_command_says_what_it_waited_for_and_a_driver_that_dies_ends_the_wait(tmp_path: Path) -> None:
    async with plant(tmp_path) as running, trio.open_nursery() as nursery:
        service, brokers = running.service, running.cluster.brokers
        await until(lambda: service.under_way == 1)
        told = await running.said("pause", QUEUE, "--timeout", "2s", status=1)
        lease = (await look(running.store, QUEUE)).lease
        assert lease is not None
        assert f"paused, but {lease.holder} has not reported within 2s" in told
        ended: list[str] = []

        async def wait_for_driver() -> None:
            ended.append(await running.said("pause", QUEUE))

        nursery.start_soon(wait_for_driver)
        assert service.under_way == 1
        driver = brokers[int(lease.holder.removeprefix("broker-"))]
        await trio.to_thread.run_sync(driver.end, signal.SIGKILL)
        await until(lambda: ended)
        # Either the command saw the lease expire, or the other broker took it and answered.
        assert "has not renewed its lease for 9s" in ended[0] or "sends nothing any more" in ended[0]
        begun_count = service.begun_count
        service.answers.set()
        # The broker that takes the bridge over finds it paused.
        with trio.fail_after(PATIENCE_S):
            while json.loads(await running.said("pause", QUEUE, "--json"))["outcome"] != "driver paused":
                pass
        assert service.begun_count == begun_count == 1
        await running.said("resume", QUEUE)
        await until(lambda: service.begun_count > 5)


# Inside of one process


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


@attrs.define(eq=False)
class Counted:
    """Counts the writes to a shelf that begin.

    Attributes:
        check_s: How long a check takes.
    """

    shelf: Shelf
    begun_count: int = 0
    check_s: float = 0.0

    @asynccontextmanager
    async def open(self, context: SinkContext) -> AsyncIterator[Sink]:
        async with self.shelf.open(context):
            yield CountedSink(self, context)


class CountedSink(ShelfSink):
    def __init__(self, counted: Counted, context: SinkContext) -> None:
        super().__init__(counted.shelf, context)
        self._counted = counted

    async def check(self) -> None:
        await trio.sleep(self._counted.check_s)
        await super().check()

    async def write(self, batch: Batch) -> None:
        self._counted.begun_count += 1
        await super().write(batch)


@asynccontextmanager
async def driven(store: StorageAdapter, counted: Counted, holder: str = "here", **changes: Any) -> AsyncIterator[None]:
    spec = attrs.evolve(BridgeSpec(name=QUEUE, topics=("#",), open_sink=counted.open, batch_records=10), **changes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(BridgeDriver(store, spec, holder).run)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_no_write_begins_however_short_it_was_resumed_before(
    store: StorageAdapter, autojump_clock: MockClock, max_in_flight: int
) -> None:
    """The answer to an earlier pause may not be taken for that to a later one."""
    counted = Counted(Shelf(write_s=0.07, max_in_flight=max_in_flight))
    await put(store, 5_000)
    async with driven(store, counted):
        await counted.shelf.wait_for(50)
        for tenths in range(25):
            assert await pause_queue(store, QUEUE) == Pause(PauseOutcome.ANSWERED, "here")
            begun_count = counted.begun_count
            assert counted.shelf.under_way == 0
            await trio.sleep(5)
            assert counted.begun_count == begun_count
            await change_queue(store, QUEUE, is_paused=False)
            await trio.sleep(tenths / 10)
        await counted.shelf.wait_for(5_000)
    # A batch under way is finished, so nothing comes twice.
    assert counted.shelf.values == [b"%d" % number for number in range(5_000)]


async def test_a_status_that_is_stored_after_a_resumption_is_no_answer_to_the_next_pause(
    store: StorageAdapter, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads that it is resumed; the next pause is stored; then the driver stores its status."""
    counted = Counted(Shelf(write_s=0.2), check_s=0.5)
    hook: Callable[[], Awaitable[object]] | None = None

    async def between(*arguments: Any) -> Depth:
        nonlocal hook
        if hook is not None and not (await definition_of(store, QUEUE)).is_paused:
            called, hook = hook, None
            await called()
        return await keep_within_bounds(*arguments)

    monkeypatch.setattr("broker_adapter.bridge.reporting.keep_within_bounds", between)
    await put(store, 100)
    async with driven(store, counted), trio.open_nursery() as nursery:
        await counted.shelf.wait_for(10)
        assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.ANSWERED
        begun_count = counted.begun_count
        ended: list[int] = []

        async def pause_again() -> None:
            await pause_queue(store, QUEUE)
            ended.append(counted.begun_count)

        async def store_pause_first() -> None:
            version = (await read_definition(store, QUEUE))[1]
            nursery.start_soon(pause_again)
            while (await read_definition(store, QUEUE))[1] == version:
                await trio.sleep(0.01)

        hook = store_pause_first
        await change_queue(store, QUEUE, is_paused=False)
        await until(lambda: ended)
        assert ended[0] > begun_count, "the driver had not resumed"
        await trio.sleep(5)
        assert counted.begun_count == ended[0]


async def test_batches_that_are_prepared_are_not_sent(store: StorageAdapter, autojump_clock: MockClock) -> None:
    """Three of them were, each after the ten seconds that its rate asks for; only then the bridge said `paused`."""
    counted = Counted(Shelf())
    await put(store, 100)
    async with driven(store, counted, max_rate=1):
        await counted.shelf.wait_for(10)
        await change_queue(store, QUEUE, is_paused=True)
        with trio.fail_after(3):
            await until_state(store, "paused")
        assert len(counted.shelf.values) == 10
        await trio.sleep(100)
        await change_queue(store, QUEUE, is_paused=False)
        # The wait that was broken off is not added to the rate of later records.
        with trio.fail_after(15):
            await counted.shelf.wait_for(20)


async def test_a_bridge_whose_sink_cannot_be_opened_can_be_paused(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    """It tried to open the sink without end and without a wait, and never said `paused`."""
    opened = 0

    def no_sink(_context: SinkContext) -> Any:
        nonlocal opened
        opened += 1
        raise ConfigurationError("no such file")

    await put(store, 1)
    async with driven(store, Counted(Shelf()), open_sink=no_sink):
        await until_state(store, "down")
        with trio.fail_after(5):
            assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.ANSWERED
        opened_before = opened
        await trio.sleep(60)
        assert opened == opened_before
        await change_queue(store, QUEUE, is_paused=False)
        await until_state(store, "down")


async def test_a_bridge_in_back_off_is_paused_at_once(store: StorageAdapter, autojump_clock: MockClock) -> None:
    counted = Counted(Shelf(is_out=True))
    await put(store, 10)
    async with driven(store, counted):
        await trio.sleep(300)
        with trio.fail_after(3):
            assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.ANSWERED
        check_count = counted.shelf.check_count
        await trio.sleep(300)
        assert counted.shelf.check_count == check_count
        await change_queue(store, QUEUE, is_paused=False)
        counted.shelf.is_out = False
        await counted.shelf.wait_for(10)


async def test_a_refused_record_that_is_tried_again_is_finished_first(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    counted = Counted(Shelf(refuses=lambda value: value == b"3"))
    await put(store, 30)
    async with driven(store, counted, max_refusals=6):
        await until(lambda: counted.shelf.refusal_count > 5)
        assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.ANSWERED
        begun_count = counted.begun_count
        assert (await look(store, QUEUE)).dead_letter_count == 1
        assert counted.shelf.values == [b"%d" % number for number in range(10) if number != 3]
        await trio.sleep(60)
        assert counted.begun_count == begun_count


async def test_a_broker_that_takes_over_after_the_pause_sends_nothing(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    counted = Counted(Shelf(write_s=math.inf))
    await put(store, 30)
    async with trio.open_nursery() as dying:
        async with driven(store, counted, "a"):
            await until(lambda: counted.begun_count == 1)
            ended: list[Pause] = []

            async def wait_for_driver() -> None:
                ended.append(await pause_queue(store, QUEUE))

            dying.start_soon(wait_for_driver)
            await trio.sleep(5)
            assert not ended
        async with driven(store, counted, "b"):
            await until(lambda: ended)
            # The stopped driver has released the lease. Now no driver has it, or `b` has taken it.
            assert ended[0] in (Pause(PauseOutcome.NOT_DRIVEN), Pause(PauseOutcome.ANSWERED, "b"))
            assert await pause_queue(store, QUEUE) == Pause(PauseOutcome.ANSWERED, "b")
            assert counted.begun_count == 1


async def test_without_a_driver_there_is_nothing_to_wait_for(store: StorageAdapter, autojump_clock: MockClock) -> None:
    await put(store, 1)
    assert await pause_queue(store, QUEUE) == Pause(PauseOutcome.NOT_DRIVEN)
    # One that is dead, and did not give its lease back.
    await store.put_state(names.lease_key(QUEUE), encode(Lease("gone", "c", 4, 9)))
    began_s = trio.current_time()
    assert await pause_queue(store, QUEUE) == Pause(PauseOutcome.LEASE_EXPIRED, "gone")
    assert 9 <= trio.current_time() - began_s < 12


async def test_an_old_answer_is_none(store: StorageAdapter, autojump_clock: MockClock) -> None:
    await put(store, 1)
    await queues.told(store, "paused", queue=QUEUE)
    assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.LEASE_EXPIRED


async def test_what_drains_a_queue_once_is_not_waited_for(store: StorageAdapter, autojump_clock: MockClock) -> None:
    await put(store, 1)
    await queues.told(store, "draining", queue=QUEUE)
    assert await pause_queue(store, QUEUE) == Pause(PauseOutcome.DRAINED_ONCE, "broker-1")


@pytest.mark.parametrize("change", ["resumed", "created again"])
async def test_a_queue_that_does_not_stay_paused_is_no_success(
    store: StorageAdapter, autojump_clock: MockClock, change: str
) -> None:
    await put(store, 1)
    async with QueueLease(store, QUEUE, "slow", LeaseSettings()).hold(), trio.open_nursery() as nursery:

        async def change_it() -> None:
            await trio.sleep(3)
            if change == "resumed":
                await change_queue(store, QUEUE, is_paused=False)
                return
            await store.delete_shard(names.shard_of(QUEUE))
            await put(store, 1)

        nursery.start_soon(change_it)
        assert (await pause_queue(store, QUEUE)).outcome is PauseOutcome.RESUMED


# The command


@attrs.frozen
class Opened:
    """A store that is open already, as `connect` would give it."""

    adapter: StorageAdapter

    async def __aenter__(self) -> StorageAdapter:
        return self.adapter

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture
def connected(store: StorageAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_changes, "connect", lambda _server: Opened(store))


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a command has printed, without the log of the driver that runs beside it in this process."""

    def of_command(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if line.startswith((QUEUE, "journal:")))

    printed, noted = capsys.readouterr()
    return of_command(printed), of_command(noted)


async def test_the_command_tells_why_nothing_is_sent_any_more(
    connected: None, store: StorageAdapter, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the messages is shown in docs/cache-queues.md."""
    await put(store, 1)
    words = f"{QUEUE}: paused until `journal queue resume {QUEUE}`; "
    await queue_changes._pause("", QUEUE, math.inf, False)
    assert said(capsys) == (f"{words}no process drives it\n", "")
    await queue_changes._pause("", QUEUE, math.inf, True)
    assert json.loads(capsys.readouterr().out) == {
        "queue": QUEUE,
        "is_paused": True,
        "outcome": "not driven",
        "driver": "",
        "waited_s": 0.0,
    }
    async with driven(store, Counted(Shelf())):
        await until_state(store, "paused")
        await queue_changes._pause("", QUEUE, math.inf, False)
        assert said(capsys) == (f"{words}here sends nothing any more\n", "")
    await queues.told(store, "draining", queue=QUEUE)
    await queue_changes._pause("", QUEUE, math.inf, False)
    assert said(capsys) == (f"{words}broker-1 drains it to another target, which goes on\n", "")
    await queues.told(store, "ok", queue=QUEUE)
    await queue_changes._pause("", QUEUE, math.inf, False)
    assert said(capsys) == (
        f"{words}broker-1, which drove it, has not renewed its lease for 9s\n",
        f"journal: {QUEUE}: waiting until broker-1 has finished the batches that it is sending\n",
    )


async def test_a_command_that_waits_too_long_says_for_whom(
    connected: None, store: StorageAdapter, autojump_clock: MockClock
) -> None:
    counted = Counted(Shelf(write_s=math.inf))
    await put(store, 1)
    async with driven(store, counted):
        await until(lambda: counted.begun_count)
        with pytest.raises(CommandError, match="paused, but here has not reported within 30s"):
            await queue_changes._pause("", QUEUE, 30, False)
        assert (await look(store, QUEUE)).definition.is_paused


async def test_a_command_whose_queue_is_resumed_or_deleted_meanwhile_fails(
    connected: None, store: StorageAdapter, autojump_clock: MockClock
) -> None:
    await put(store, 1)
    await queues.told(store, "ok", queue=QUEUE)

    async def resume() -> None:
        await trio.sleep(3)
        await change_queue(store, QUEUE, is_paused=False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(resume)
        with pytest.raises(CommandError, match="another command resumed it"):
            await queue_changes._pause("", QUEUE, math.inf, False)
    await delete_queue(store, QUEUE)
