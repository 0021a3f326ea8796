"""Rules hold at all brokers of a store, wherever they were given.

A bridge configured at one broker once missed what was published at the others, without a word. Each test starts four
processes, which take half a second of processor time each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import names
from broker_adapter.mqtt_codec import ReasonCode
from shards.format.record import StoredRecord
from tests.mqtt.edges.broker_process import PROGRAM, REPOSITORY, BrokerProcess, broker_process
from tests.patience import PATIENCE_S
from tests.server.serving import serving

BRIDGE = """
[[bridge]]
name = "warehouse"
topics = ["plant/#"]
drive = false
sink = { type = "http", url = "http://127.0.0.1:9/records" }
"""


@attrs.frozen
class Site:
    """A store, and brokers on it."""

    directory: Path
    url: str
    adapter: StorageAdapter

    def file(self, name: str, text: str) -> str:
        path = self.directory / f"{name}.toml"
        path.write_text(text)
        return str(path)

    @asynccontextmanager
    async def broker(self, name: str, text: str = "") -> AsyncIterator[BrokerProcess]:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        async with broker_process(directory, *self._arguments(name, text)) as process:
            yield process

    def _arguments(self, name: str, text: str) -> list[str]:
        config = ["--config", self.file(name, text), "--store", self.url, "--listen", "127.0.0.1:0", "--anonymous"]
        return [*config, "--set", f"broker.id={name}"]

    async def refused_broker(self, name: str, text: str) -> tuple[int, str]:
        """Exit status of a broker that does not start, and what it says."""
        return await self._run(*self._arguments(name, text))

    async def command(self, *arguments: str) -> tuple[int, str]:
        """Exit status of a command, and what it says."""
        return await self._run(*arguments, "--store", self.url)

    async def _run(self, *arguments: str) -> tuple[int, str]:
        with trio.fail_after(PATIENCE_S):
            done = await trio.run_process(
                [sys.executable, "-m", PROGRAM, *arguments],
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
                cwd=REPOSITORY,
            )
        return done.returncode, done.stdout.decode()

    async def queued(self) -> list[tuple[str, bytes]]:
        """What waits for the bridge."""
        found = await self.adapter.read(names.shard_of("warehouse"), 0)
        return [(record.topic, record.value) for record in found.records if isinstance(record, StoredRecord)]


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    async with serving(directory / "data") as served:
        url = f"journal://{served.address}"
        async with open_adapter(url) as adapter:
            yield Site(directory, url, adapter)


async def publish(broker: BrokerProcess, topic: str, *values: bytes) -> None:
    async with broker.client() as client:
        await client.connect("publisher")
        for value in values:
            assert await client.publish(topic, value, 1) < ReasonCode.UNSPECIFIED_ERROR


@pytest.mark.slow("starts a server and two brokers")
async def test_a_bridge_of_one_broker_takes_what_is_published_at_the_other(tmp_path: Path) -> None:
    async with site(tmp_path) as there, there.broker("b") as without, there.broker("a", BRIDGE) as with_it:
        await publish(without, "plant/b", b"1")
        await publish(with_it, "plant/a", b"2")
        assert await there.queued() == [("plant/b", b"1"), ("plant/a", b"2")]
        # A third one with other rules does not start, and says why.
        status, said = await there.refused_broker("c", BRIDGE.replace('["plant/#"]', '["office/#"]'))
        assert status == 78
        assert '[[bridge]] warehouse: topics is ["plant/#"] in the store, ["office/#"] in the settings' in said


@pytest.mark.slow("starts a server and two brokers")
async def test_brokers_that_run_follow_rules_that_are_applied_and_miss_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as there, there.broker("a") as one, there.broker("b") as other:
        counts = {"a": 0, "b": 0}
        asked: dict[str, int] = {}
        stopping = trio.Event()

        async def keep_publishing(name: str, broker: BrokerProcess) -> None:
            async with broker.client() as client:
                await client.connect(f"publisher-{name}")
                while not stopping.is_set():
                    assert await client.publish(f"plant/{name}", b"%d" % counts[name], 1) < ReasonCode.UNSPECIFIED_ERROR
                    counts[name] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_publishing, "a", one)
            nursery.start_soon(keep_publishing, "b", other)
            status, said = await there.command("apply", there.file("bridge", BRIDGE))
            assert (status, said.splitlines()[-1]) == (0, "applied as version 1 of the rules")
            assert "[[bridge]] warehouse is in" in said
            status, said = await there.command("rules", "plant/a", "--json")
            assert (status, json.loads(said)["bridges"]) == (0, ["warehouse"])
            applied = dict(counts)
            while any(counts[name] < applied[name] + 20 for name in counts):
                await trio.sleep(0.01)
            # The bridge goes, and what waits for it stays.
            asked.update(counts)
            status, said = await there.command("apply", there.file("none", ""))
            assert status == 0
            assert said.splitlines() == [
                f"[[bridge]] warehouse is in the store, not in {there.directory}/none.toml",
                "applied as version 2 of the rules",
            ]
            gone = dict(counts)
            while any(counts[name] < gone[name] + 5 for name in counts):
                await trio.sleep(0.01)
            stopping.set()
        queued = await there.queued()
        for name, count in counts.items():
            numbers = [int(value) for topic, value in queued if topic == f"plant/{name}"]
            # In order, without a hole, from before the command was through until it was given the other rules.
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[0] <= applied[name] + 1
            assert asked[name] <= numbers[-1] + 1 <= gone[name] + 2
            stored = await there.adapter.describe_shard(f"plant/{name}")
            assert stored.next_offset == count
