"""A shortage of open files made subscriptions skip records: a shard that could not be read for a moment was left out.

Still the feed reported that it had delivered everything, and a reader that resumed behind that never saw the records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from journal.engine import Engine, SubscriptionTarget, open_engine
from journal.engine.subscribe.subscription import Subscription
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import CorruptionError, OverloadedError, StorageError
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.position import Start
from shards.segments.read_slices import Place, ReadSlice
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push
from tests.patience import PATIENCE_S

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(journal_file_bytes=4 * MIB, journal_budget_bytes=16 * MIB, disk_reserve_bytes=0)
)
BATCH = encode_values([b"x"], timestamp_us=1)
SHORT = OverloadedError("log/a cannot be opened: Too many open files")
DAMAGED = CorruptionError("log/a", 0, "cannot be read: Input/output error")


@attrs.define
class Node:
    """An engine with the shards t/a and t/b, where reads of t/a fail as long as there is an ``error``.

    Attributes:
        refused_count: How many reads failed.
    """

    engine: Engine
    error: StorageError | None = None
    refused_count: int = 0
    refused: trio.Event = attrs.Factory(trio.Event)
    _told: trio.Event = attrs.Factory(trio.Event)

    @property
    def a(self) -> Shard:
        return self.engine.parts.table.by_name("t/a")

    def fail_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = self.engine.parts.reader.read

        async def reading(shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice:
            error = self.error
            if shard.name == "t/a" and error is not None:
                self.refused_count += 1
                self.refused.set()
                await trio.lowlevel.checkpoint()
                raise error
            return await read(shard, offset, max_bytes, place)

        monkeypatch.setattr(self.engine.parts.reader, "read", reading)

    async def subscribe(
        self, *, shard: str | None = None, start: Start | None = None, until_lsn: int | None = None, group: str = ""
    ) -> Subscription:
        return await self.engine.parts.subscriptions.subscribe(
            SubscriptionTarget(shard=shard, topic_filter=None if shard else "t/+", group=group or None),
            start=start or Start.earliest(),
            until_lsn=until_lsn,
            on_ready=self._tell,
            credit_bytes=lambda: MIB,
        )

    def _tell(self) -> None:
        self._told.set()

    async def taken(self, subscription: Subscription) -> Push | Notice:
        """What comes next, however long it takes."""
        with trio.fail_after(PATIENCE_S):
            while True:
                self._told = trio.Event()
                item = await subscription.take(MIB)
                if item is not None:
                    return item
                assert not subscription.has_more
                await self._told.wait()

    async def end_shortage(self) -> None:
        """After the read was tried again at least once."""
        with trio.fail_after(PATIENCE_S):
            while self.refused_count < 2:
                self.refused = trio.Event()
                await self.refused.wait()
        self.error = None


@asynccontextmanager
async def node(path: Path, monkeypatch: pytest.MonkeyPatch, error: StorageError) -> AsyncIterator[Node]:
    monkeypatch.setattr("journal.engine.read.read_failures.RETRY_AFTER_S", 0.02)
    async with open_engine(str(path / "data"), CONFIG) as engine:
        for name in ("t/a", "t/b"):
            await engine.create_shard(name, ShardConfig())
            await engine.append(engine.parts.table.by_name(name), BATCH)
        made = Node(engine, error)
        made.fail_reads(monkeypatch)
        yield made


@pytest.mark.parametrize("is_bounded", [False, True], ids=["live", "until an lsn"])
async def test_a_shortage_of_files_cost_a_filter_records_that_it_counted_as_given(
    is_bounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, monkeypatch, SHORT) as found, trio.open_nursery() as nursery:
        committed_lsn = found.engine.parts.committer.committed_lsn
        feed = await found.subscribe(until_lsn=committed_lsn if is_bounded else None)
        nursery.start_soon(found.end_shortage)
        given: dict[str, int] = {}
        names: dict[int, str] = {}
        while True:
            item = await found.taken(feed)
            if isinstance(item, Push):
                assert item.first_offset == given.get(names[item.reference], 0)
                given[names[item.reference]] = item.next_offset
            elif item.event == "added":
                names[item.reference] = item.name
            elif item.lsn >= committed_lsn:
                assert item.event == ("end" if is_bounded else "progress")
                break
            else:
                assert item.event == "progress"
        assert given == {"t/a": 1, "t/b": 1}
        assert found.refused_count >= 2
        feed.close()


async def test_a_shortage_of_files_ended_the_subscription_to_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, monkeypatch, SHORT) as found, trio.open_nursery() as nursery:
        subscription = await found.subscribe(shard="t/a")
        nursery.start_soon(found.end_shortage)
        added = await found.taken(subscription)
        assert isinstance(added, Notice)
        push = await found.taken(subscription)
        assert isinstance(push, Push)
        assert (push.first_offset, push.next_offset) == (0, 1)
        subscription.close()


async def test_a_shortage_of_files_took_a_shard_from_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(tmp_path, monkeypatch, SHORT) as found, trio.open_nursery() as nursery:
        member = await found.subscribe(group="g")
        nursery.start_soon(found.end_shortage)
        items = [await found.taken(member) for _ in range(4)]
        assert {item.name for item in items if isinstance(item, Notice)} == {"t/a", "t/b"}
        assert [(item.first_offset, item.next_offset) for item in items if isinstance(item, Push)] == [(0, 1), (0, 1)]
        member.close()


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("shard", [None, "t/a"])
async def test_a_subscription_may_end_while_its_read_waits(
    shard: str | None, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, monkeypatch, SHORT) as found:
        subscription = await found.subscribe(shard=shard, group=group)
        with trio.fail_after(PATIENCE_S):
            while not found.refused_count:
                await subscription.take(MIB)
                await trio.lowlevel.checkpoint()
        subscription.close()
        # Until the call that was asked for has come.
        others = await found.subscribe(shard="t/a")
        found.error = None
        assert [type(await found.taken(others)) for _ in range(2)] == [Notice, Push]
        others.close()


async def test_a_shard_that_could_not_be_read_came_back_behind_what_was_never_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter from the latest record on took it in again at the shard's end, when it published after the failure."""
    async with node(tmp_path, monkeypatch, DAMAGED) as found:
        feed = await found.subscribe(start=Start.latest())
        await found.engine.append(found.a, BATCH)
        failures: list[StorageError | None] = []
        while not failures:
            item = await found.taken(feed)
            failures += [item.error] if isinstance(item, Notice) and item.event == "error" else []
        assert isinstance(failures[0], CorruptionError)
        found.error = None
        # A later subscription has the next publish of every shard looked at by all filters.
        others = [await found.subscribe(start=Start.latest()) for _ in range(20)]
        await found.engine.append(found.a, BATCH)
        while (told := await feed.take(MIB)) is not None:
            assert isinstance(told, Notice)
            assert told.event == "progress"
        for subscription in (feed, *others):
            subscription.close()
