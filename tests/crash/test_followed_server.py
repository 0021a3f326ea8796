"""The server is killed again and again under feeds: each goes on at the next life; nothing is lost, doubled or moved.

The writers' client sends again what was not acknowledged, exactly once; the feeds' client takes its feeds over from one
connection to the next. What a feed gave is compared with what is stored in the end.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import attrs
import pytest
import trio

from journal.client import Client, Delivery, Feed, open_client
from shards.back_off import BackOff
from shards.format.batch import read_records
from shards.format.record import StoredRecord
from shards.topics.topic_filters import matches
from tests.mqtt.cluster.processes import Process, journal_server
from tests.patience import PATIENCE_S
from tests.ports import free_port

KILLS = 3
NAMES = ("a/1", "a/2", "b/1", "b/2")
FILTERS = ("#", "a/+", "+/2")
LIFE_RECORDS = 300


@attrs.define
class Given:
    """What one feed gave: (shard, offset, value), and how much of it when it told how far it was."""

    topic_filter: str
    after_lsn: int | None
    records: list[tuple[str, int, bytes]] = attrs.Factory(list)
    told: list[tuple[int, int]] = attrs.Factory(list)

    @property
    def lsn(self) -> int:
        return self.told[-1][1] if self.told else -1

    def check(self, stored: dict[tuple[str, int], tuple[int, bytes]], start_lsn: int) -> None:
        wanted = {
            (name, offset, value): lsn
            for (name, offset), (lsn, value) in stored.items()
            if matches(self.topic_filter, name) and lsn > start_lsn
        }
        assert len(self.records) == len(set(self.records)), "a record came twice"
        assert set(self.records) == set(wanted)
        for name in NAMES:
            offsets = [offset for shard, offset, _ in self.records if shard == name]
            assert offsets == sorted(offsets)
        for count, lsn in self.told:
            given = set(self.records[:count])
            assert all(record in given for record, at_lsn in wanted.items() if at_lsn <= lsn), f"told {lsn} too early"
        assert [lsn for _, lsn in self.told] == sorted({lsn for _, lsn in self.told})


class Run:
    """Writers, feeds, and a task that kills the server."""

    def __init__(self, process: Process, seed: int) -> None:
        self._process = process
        self._rng = random.Random(seed)
        self._written = 0
        self._has_written = trio.Event()
        self.last_lsn: int | None = None

    async def write(self, client: Client, name: str, count: int) -> None:
        """Append one record after the other, each acknowledged before the next."""
        for number in range(count):
            await client.append(name, [b"%s %d" % (name.encode(), number)])
            self._written += 1
            self._has_written.set()

    async def kill(self, kills: int) -> None:
        """Kill the server after some more records each time, and have it start again."""
        for _ in range(kills):
            goal = self._written + self._rng.randint(1, LIFE_RECORDS)
            while self._written < goal:
                self._has_written = trio.Event()
                await self._has_written.wait()
            await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)
            await trio.to_thread.run_sync(self._process.start)

    async def follow(self, client: Client, given: Given, task_status: trio.TaskStatus[int]) -> None:
        credit_bytes = self._rng.choice([500, 1 << 20])
        async with client.follow(given.topic_filter, given.after_lsn, credit_bytes=credit_bytes) as feed:
            task_status.started(feed.start_lsn)
            await self._take(feed, given)

    async def _take(self, feed: Feed, given: Given) -> None:
        async for item in feed:
            if not isinstance(item, Delivery):
                given.told.append((len(given.records), item.lsn))
                if self.last_lsn is not None and item.lsn >= self.last_lsn:
                    return
                continue
            for record in read_records(item.batches, start_offset=item.first_offset):
                assert isinstance(record, StoredRecord), "there was nothing to lose"
                given.records.append((item.shard, record.offset, record.value))


async def stored_records(client: Client) -> dict[tuple[str, int], tuple[int, bytes]]:
    found: dict[tuple[str, int], tuple[int, bytes]] = {}
    for name in NAMES:
        offset = 0
        while True:
            fetched = await client.fetch(name, offset)
            records = read_records(fetched.batches, start_offset=offset)
            if not records:
                break
            for record in records:
                assert isinstance(record, StoredRecord)
                found[name, record.offset] = (record.lsn, record.value)
            offset = fetched.next_offset
    return found


async def play(directory: Path, *, seed: int, kills: int) -> None:
    port = free_port()
    process = journal_server(directory, port)
    process.start()
    run = Run(process, seed)
    count = kills * LIFE_RECORDS // len(NAMES) + 50
    try:
        async with (
            open_client(f"127.0.0.1:{port}", backoff=BackOff(0.05, 0.1)) as writer,
            open_client(f"127.0.0.1:{port}", backoff=BackOff(0.05, 0.1)) as reader,
        ):
            for name in NAMES:
                await writer.create_shard(name)
            await writer.append(NAMES[0], [b"before"])
            feeds = [Given(topic_filter, after) for topic_filter in FILTERS for after in (None, 0)]
            starts: list[int] = []
            with trio.fail_after(PATIENCE_S + 10 * kills):
                async with trio.open_nursery() as nursery:
                    for given in feeds:
                        starts.append(await nursery.start(run.follow, reader, given))
                    async with trio.open_nursery() as busy:
                        busy.start_soon(run.kill, kills)
                        for name in NAMES:
                            busy.start_soon(run.write, writer, name, count)
                    run.last_lsn = max([(await writer.describe_shard(name)).last_lsn for name in NAMES])
                    # What has told already that it is there waits for news.
                    await writer.append(NAMES[0], [b"after"])
            stored = await stored_records(reader)
            for name in NAMES:
                values = [value for (shard, _), (_, value) in stored.items() if shard == name]
                written = [b"%s %d" % (name.encode(), number) for number in range(count)]
                assert values == ([b"before", *written, b"after"] if name == NAMES[0] else written)
            last = stored.pop((NAMES[0], count + 1))
            for given, start_lsn in zip(feeds, starts, strict=True):
                given.records = [record for record in given.records if record[2] != b"after"]
                given.told = [(min(told, len(given.records)), lsn) for told, lsn in given.told if lsn < last[0]]
                given.check(stored, start_lsn)
    finally:
        process.end(signal.SIGKILL)


@pytest.mark.slow("kills servers")
async def test_feeds_go_on_over_kills_of_the_server(tmp_path: Path) -> None:
    await play(tmp_path, seed=1, kills=KILLS)


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_feeds_go_on_over_many_kills_of_the_server(tmp_path: Path) -> None:
    await play(tmp_path, seed=2, kills=40)
