"""A broker and a process of bridges that live through a restore of their server.

Their sessions and queues are in the store, and were set back with it; what they hold in memory was not: positions and
messages under way whose offsets belong to other messages since. The clients of the broker missed new messages.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode
from broker_adapter.mqtt_codec.packets import Disconnect, Publish, Subscribe, SubscriptionRequest
from command_line.boundary import STORAGE_FAILED
from tests.mqtt.cluster.processes import REPOSITORY
from tests.mqtt.edges.broker_process import PROGRAM, BrokerProcess, broker_process
from tests.mqtt.serving import Client
from tests.patience import PATIENCE_S
from tests.restores.restorable_server import restorable_server

pytestmark = pytest.mark.trio

CONFIG = """\
[broker]
id = "alone"
store = "{store}"
sys_interval_s = 0
[listen]
mqtt = "127.0.0.1:0"
[access]
anonymous = true
[[bridge]]
name = "plant"
topics = ["plant/#"]
drive = false
[bridge.sink]
type = "files"
directory = "{directory}"
format = "ndjson"
"""
KEPT: dict[str, Any] = {
    "clean_start": False,
    "properties": Properties(session_expiry_interval=3600),
}


async def publish(client: Client, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert await client.publish("plant/x", b"%d" % number, qos=1) == 0


async def take(client: Client, count: int) -> list[int]:
    return [int((await client.message()).payload) for _ in range(count)]


def exported(directory: Path) -> set[str]:
    return {line for path in directory.rglob("*.ndjson") for line in path.read_text().splitlines()}


async def wait_for_exported(directory: Path, count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while len(exported(directory)) < count:
            await trio.sleep(0.05)


async def ends_with_status(process: trio.Process) -> int:
    with trio.fail_after(PATIENCE_S):
        return await process.wait()


async def programs(stack: AsyncExitStack, config: Path) -> tuple[BrokerProcess, trio.Process]:
    broker = await stack.enter_async_context(broker_process(config.parent, "--config", str(config)))
    nursery = await stack.enter_async_context(trio.open_nursery())
    argv = [sys.executable, "-m", PROGRAM, "bridge", "--config", str(config)]
    bridges = await nursery.start(
        lambda task_status: trio.run_process(argv, task_status=task_status, cwd=REPOSITORY, check=False)
    )
    stack.callback(nursery.cancel_scope.cancel)
    return broker, bridges


@pytest.mark.slow("restores the store of running brokers")
async def test_a_broker_and_its_bridges_went_on_with_what_they_knew_before_a_restore(tmp_path: Path) -> None:
    directory = tmp_path / "exported"
    directory.mkdir()
    config = tmp_path / "broker.toml"

    async with restorable_server(tmp_path / "server") as server:
        config.write_text(CONFIG.format(store=server.url, directory=directory))
        async with AsyncExitStack() as stack:
            broker, bridges = await programs(stack, config)
            client = await stack.enter_async_context(broker.client())
            await client.connect("reader", **KEPT)
            await client.subscribe("plant/#", qos=1)
            await publish(client, 0, 5)
            assert await take(client, 5) == [*range(5)]
            await wait_for_exported(directory, 5)
            await server.back_up()
            await publish(client, 5, 5)
            assert await take(client, 5) == [*range(5, 10)]
            await wait_for_exported(directory, 10)
            await server.restore()
            assert await ends_with_status(broker.process) == STORAGE_FAILED
            assert await ends_with_status(bridges) == STORAGE_FAILED
            assert "was restored from a backup" in broker.log
        async with AsyncExitStack() as stack:
            broker, bridges = await programs(stack, config)
            client = await stack.enter_async_context(broker.client())
            assert (await client.connect("reader", **KEPT)).session_present
            await publish(client, 100, 10)
            taken: list[int] = []
            # What it had not acknowledged at the time of the backup comes again.
            while not taken or taken[-1] != 109:
                taken += await take(client, 1)
            assert [number for number in taken if number >= 100] == [*range(100, 110)]
            await wait_for_exported(directory, 20)


@pytest.mark.slow("restores the store of running brokers")
async def test_publishes_that_wait_while_the_store_is_restored_are_not_refused(tmp_path: Path) -> None:
    """Clients of MQTT 5 gave up what a broker refused before it ended; the next broker takes it."""
    config = tmp_path / "broker.toml"
    waiting = [Publish("plant/x", b"%d" % number, 1 + number % 2, packet_id=10 + number) for number in range(6)]
    async with restorable_server(tmp_path / "server") as server:
        config.write_text(CONFIG.format(store=server.url, directory=tmp_path))
        async with broker_process(tmp_path, "--config", str(config)) as broker, broker.client() as client:
            await client.connect("writer", **KEPT)
            await publish(client, 0, 5)
            await server.back_up()
            await publish(client, 5, 5)
            await server.stop()
            await client.send(*waiting, Subscribe(99, (SubscriptionRequest("plant/#", 1),)))
            await server.restore()
            answers: list[Packet] = []
            with suppress(EOFError):
                while True:
                    answers.append(await client.receive())
            assert [type(answer) for answer in answers] == [Disconnect]
            assert await ends_with_status(broker.process) == STORAGE_FAILED
        async with broker_process(tmp_path, "--config", str(config)) as broker, broker.client() as client:
            await client.connect("writer", **KEPT)
            for message in waiting:
                message.dup = True
            await client.send(*waiting)
            answers = [await client.receive() for _ in waiting]
            assert [getattr(answer, "reason_code", None) for answer in answers] == [ReasonCode.SUCCESS] * len(waiting)


@pytest.mark.slow("restores the store of running brokers")
async def test_a_broker_and_its_bridges_end_when_another_server_answers_in_place_of_theirs(tmp_path: Path) -> None:
    """They wrote sessions and positions of the old server into the new one."""
    directory = tmp_path / "exported"
    directory.mkdir()
    config = tmp_path / "broker.toml"
    async with restorable_server(tmp_path / "server") as server, AsyncExitStack() as stack:
        config.write_text(CONFIG.format(store=server.url, directory=directory))
        broker, bridges = await programs(stack, config)
        client = await stack.enter_async_context(broker.client())
        await client.connect("writer")
        await publish(client, 0, 5)
        await wait_for_exported(directory, 5)
        await server.be_replaced()
        assert await ends_with_status(broker.process) == STORAGE_FAILED
        assert await ends_with_status(bridges) == STORAGE_FAILED
        assert "another server answers at the address" in broker.log
