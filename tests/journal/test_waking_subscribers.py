"""When subscribers are notified of new records: not too often, and never too late."""

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
SHARD_AND_FILTER = pytest.mark.parametrize("by_filter", [False, True], ids=["one shard", "a filter"])


@attrs.define
class Subscriber:
    """Takes what there is at each notification, and waits in between.

    Attributes:
        told_count: How often it was notified.
    """

    engine: Engine
    shard: Shard
    told_count: int = 0
    _told: trio.Event = attrs.Factory(trio.Event)
    _subscription: Subscription | None = None

    @property
    def subscription(self) -> Subscription:
        assert self._subscription is not None
        return self._subscription

    async def begin(self, *, by_filter: bool) -> None:
        """Subscribe from the beginning on."""
        self._subscription = await self.engine.parts.subscriptions.subscribe(
            SubscriptionTarget(shard=None if by_filter else self.shard.name, topic_filter="#" if by_filter else None),
            start=Start.earliest(),
            on_ready=self.tell,
            credit_bytes=lambda: MIB,
        )

    async def taken(self) -> Push | Notice:
        """What comes next, however long it takes."""
        with trio.fail_after(PATIENCE_S):
            while True:
                self._told = trio.Event()
                item = await self.subscription.take(MIB)
                if item is not None and not (isinstance(item, Notice) and item.event in ("added", "progress")):
                    return item
                if item is None:
                    await self._told.wait()

    def tell(self) -> None:
        self.told_count += 1
        self._told.set()


@asynccontextmanager
async def subscribed(path: Path, *, by_filter: bool) -> AsyncIterator[Subscriber]:
    """A subscriber that has taken the one record that there was."""
    async with open_engine(str(path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        await engine.append(shard, BATCH)
        found = Subscriber(engine, shard)
        await found.begin(by_filter=by_filter)
        assert isinstance(await found.taken(), Push)
        yield found
        found.subscription.close()
        assert shard.listeners is None


def during_reads(found: Subscriber, monkeypatch: pytest.MonkeyPatch, happens: list[str]) -> None:
    """Have things happen while the subscription's reads wait for the disk, one in each read."""
    reader = found.engine.parts.reader
    read = reader.read

    async def slow(shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice:
        extent = await read(shard, offset, max_bytes, place)
        what = happens.pop(0) if happens else ""
        if what == "append":
            await found.engine.append(shard, BATCH)
        elif what == "delete":
            await found.engine.delete_shard(shard.name)
        return extent

    monkeypatch.setattr(reader, "read", slow)


@SHARD_AND_FILTER
async def test_a_subscriber_without_credit_is_woken_once(by_filter: bool, tmp_path: Path) -> None:
    """Else thousands of subscriptions without credit would make every append slow."""
    async with subscribed(tmp_path, by_filter=by_filter) as found:
        while await found.subscription.take(MIB) is not None:
            pass
        found.told_count = 0
        for _ in range(5):
            await found.engine.append(found.shard, BATCH)
            await trio.testing.wait_all_tasks_blocked()
        assert found.told_count == 1
        assert found.shard.listeners is None
        push = await found.taken()
        assert isinstance(push, Push)
        assert (push.first_offset, push.next_offset) == (1, 6)


@SHARD_AND_FILTER
async def test_nothing_that_comes_while_a_read_is_under_way_is_missed(
    by_filter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subscribed(tmp_path, by_filter=by_filter) as found:
        during_reads(found, monkeypatch, ["append", "append"])
        await found.engine.append(found.shard, BATCH)
        offset = 1
        while offset < 4:
            push = await found.taken()
            assert isinstance(push, Push)
            assert push.first_offset == offset
            offset = push.next_offset


@SHARD_AND_FILTER
async def test_a_record_that_comes_right_behind_an_empty_read_is_not_missed(
    by_filter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subscribed(tmp_path, by_filter=by_filter) as found:
        while await found.subscription.take(MIB) is not None:
            pass
        during_reads(found, monkeypatch, ["append"])
        # As if a publish had been told of whose records an earlier read brought already.
        found.shard.notify()
        push = await found.taken()
        assert isinstance(push, Push)
        assert push.first_offset == 1


@SHARD_AND_FILTER
@pytest.mark.parametrize("when", ["between two reads", "during a read", "while it waits to be taken"])
async def test_the_end_of_a_shard_is_reported(
    by_filter: bool, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subscribed(tmp_path, by_filter=by_filter) as found:
        while await found.subscription.take(MIB) is not None:
            pass
        if when == "during a read":
            during_reads(found, monkeypatch, ["delete"])
            await found.engine.append(found.shard, BATCH)
            assert isinstance(await found.taken(), Push)
        else:
            if when == "while it waits to be taken":
                await found.engine.append(found.shard, BATCH)
            await found.engine.delete_shard("s")
        notice = await found.taken()
        assert isinstance(notice, Notice)
        assert notice.event == "removed"


@SHARD_AND_FILTER
async def test_a_deletion_that_is_not_durable_yet_is_reported_with_its_lsn(by_filter: bool, tmp_path: Path) -> None:
    """It was that of the last batch: a follower that had not read the deletion showed the shard once more."""
    async with subscribed(tmp_path, by_filter=by_filter) as found, trio.open_nursery() as nursery:
        while await found.subscription.take(MIB) is not None:
            pass
        await found.engine.append(found.shard, BATCH)
        committer = found.engine.parts.committer
        committer.hold()
        nursery.start_soon(found.engine.delete_shard, "s")
        await trio.testing.wait_all_tasks_blocked()
        notice = await found.taken()
        assert isinstance(notice, Notice)
        assert (notice.event, notice.lsn) == ("removed", committer.next_lsn - 1)
        committer.release()
