"""Subscriptions at the engine of a follower, over a log store in memory that another engine of this process writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from journal.engine import Engine, SubscriptionTarget
from journal.engine.segments.file_fetching import FileFetcher
from journal.engine.state import shard_discovery
from journal.engine.subscribe.subscription import Subscription
from journal.engine.wal.entry_payloads import ConvertedFile, FilesConverted
from shards.errors import NotOwnerError, OffsetOutOfRangeError, ShardNotFoundError
from shards.format.batch import encode, read_records
from shards.format.record import Gap, Record
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.subscriptions.events import Notice, Push
from shards.views.shared_files import SharedFileRecord
from tests.cluster.test_follower_engine import FILE_MODE, Pair, append, pair
from tests.patience import PATIENCE_S

MEMORY_MODE = ShardConfig(mode=Mode.MEMORY)
Item = tuple[str, bytes | tuple[int, int]]


@attrs.define
class Subscriber:
    """Takes what a subscription has.

    Attributes:
        progress_lsn: The newest progress.
    """

    engine: Engine
    progress_lsn: int = 0
    _told: trio.Event = attrs.Factory(trio.Event)
    _names: dict[int, str] = attrs.Factory(dict)
    _subscription: Subscription | None = None

    @property
    def subscription(self) -> Subscription:
        assert self._subscription is not None
        return self._subscription

    async def begin(
        self,
        shard: str | None = None,
        *,
        topic_filter: str | None = None,
        start: Start = Start.earliest(),
        until_lsn: int | None = None,
        group: str | None = None,
        may_deliver: Callable[[str], bool] | None = None,
    ) -> None:
        self._subscription = await self.engine.subscribe(
            SubscriptionTarget(shard, topic_filter, group),
            start=start,
            until_lsn=until_lsn,
            on_ready=self._tell,
            credit_bytes=lambda: 1 << 20,
            may_deliver=may_deliver,
        )

    def _tell(self) -> None:
        self._told.set()

    async def item(self) -> Push | Notice:
        """The next one, however long it takes."""
        with trio.fail_after(PATIENCE_S):
            while True:
                self._told = trio.Event()
                item = await self.subscription.take(1 << 20)
                if item is not None:
                    if isinstance(item, Notice) and item.event == "added":
                        self._names[item.reference] = item.name
                    if isinstance(item, Notice) and item.event in ("progress", "end"):
                        assert item.lsn >= self.progress_lsn, "progress went back"
                        self.progress_lsn = item.lsn
                    return item
                if not self.subscription.has_more:
                    await self._told.wait()

    async def event(self, name: str) -> Notice:
        """The next notice of this kind; no record may come before it."""
        while True:
            item = await self.item()
            assert isinstance(item, Notice), f"records before the event {name}"
            if item.event == name:
                return item

    async def take(self, count: int) -> list[Item]:
        """So many records and gaps."""
        found: list[Item] = []
        while len(found) < count:
            item = await self.item()
            if isinstance(item, Push):
                name = self._names[item.reference]
                for buffer in item.buffers:
                    for record in read_records(buffer, start_offset=item.first_offset):
                        if isinstance(record, Gap):
                            found.append((name, (record.first_offset, record.next_offset)))
                        else:
                            found.append((name, bytes(record.value or b"")))
        return found

    async def reach(self, lsn: int) -> None:
        """Until everything up to an lsn is reported as delivered; no record may come."""
        while self.progress_lsn < lsn:
            assert isinstance(await self.item(), Notice)


def newest(engine: Engine) -> int:
    """The newest lsn of the owner in the log."""
    return engine.parts.committer.journal_lsn


async def take_over(both: Pair) -> Engine:
    both.watch.takes_over = True
    with trio.fail_after(PATIENCE_S):
        while not both.owned:
            await trio.sleep(0.01)
    return both.owned[0]


async def caught_up(both: Pair) -> Engine:
    """The engine of the follower, as soon as it has all that is in the log."""
    engine = await both.readers.wait()
    with trio.fail_after(PATIENCE_S):
        await engine.wait_to_have(newest(both.owner))
    return engine


@asynccontextmanager
async def pair_with_a_record(tmp_path: Path) -> AsyncIterator[tuple[Pair, Engine]]:
    """An owner and a follower, which has read a shard with one record."""
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0")
        yield both, await both.caught_up("a", 1)


async def test_a_subscription_at_a_follower_gets_what_the_owner_appends(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0", b"1")
        engine = await both.caught_up("a", 2)
        subscriber = Subscriber(engine)
        await subscriber.begin("a")
        assert engine.subscription_count == 1
        assert await subscriber.take(2) == [("a", b"0"), ("a", b"1")]
        for number in range(2, 10):
            await append(both.owner, "a", b"%d" % number)
            assert await subscriber.take(1) == [("a", b"%d" % number)]
        subscriber.subscription.close()
        assert engine.subscription_count == 0


async def test_a_subscription_from_the_latest_record_begins_at_the_end_that_the_follower_has(tmp_path: Path) -> None:
    async with pair_with_a_record(tmp_path) as (both, engine):
        one, every = Subscriber(engine), Subscriber(engine)
        await one.begin("a", start=Start.latest())
        await every.begin(topic_filter="#", start=Start.latest())
        await append(both.owner, "a", b"1")
        assert await one.take(1) == [("a", b"1")]
        assert await every.take(1) == [("a", b"1")]


async def test_a_filter_finds_shards_that_are_created_later_and_reports_progress(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a/1", FILE_MODE)
        await both.owner.create_shard("b/1", FILE_MODE)
        engine = await both.caught_up("b/1", 0)
        subscriber = Subscriber(engine)
        await subscriber.begin(topic_filter="a/+", start=Start.latest())
        await both.owner.create_shard("a/2", FILE_MODE)
        await append(both.owner, "b/1", b"no")
        await append(both.owner, "a/2", b"2")
        await append(both.owner, "a/1", b"1")
        assert sorted(await subscriber.take(2)) == [("a/1", b"1"), ("a/2", b"2")]
        await subscriber.reach(newest(both.owner))
        await append(both.owner, "b/1", b"no")
        await subscriber.reach(newest(both.owner))


@pytest.mark.parametrize("few_names", [0, 1000], ids=["by lsn", "by name"])
async def test_a_filter_from_an_lsn_on_finds_the_shards_with_something_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_names: int
) -> None:
    monkeypatch.setattr(shard_discovery, "_FEW_NAMES", few_names)
    async with pair(tmp_path) as both:
        names = [f"s/{number}" for number in range(20)]
        for name in names:
            await both.owner.create_shard(name, FILE_MODE)
            await append(both.owner, name, b"old")
        start_lsn = newest(both.owner) + 1
        for name in names[::3]:
            await append(both.owner, name, b"new")
        engine = await caught_up(both)
        subscriber = Subscriber(engine)
        await subscriber.begin(topic_filter="s/#", start=Start.lsn(start_lsn))
        assert sorted(await subscriber.take(7)) == [(name, b"new") for name in sorted(names[::3])]
        await append(both.owner, names[1], b"newer")
        assert await subscriber.take(1) == [(names[1], b"newer")]


@pytest.mark.parametrize("few_names", [0, 1000], ids=["by lsn", "by name"])
async def test_stored_shards_are_found_after_a_follower_has_opened_its_directory_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_names: int
) -> None:
    """They are not open: the follower has made a checkpoint."""
    monkeypatch.setattr(shard_discovery, "_FEW_NAMES", few_names)
    async with pair(tmp_path) as both:
        await both.owner.create_shard("old", FILE_MODE)
        await append(both.owner, "old", b"0")
        await both.owner.create_shard("a", FILE_MODE)
        before = await both.caught_up("a", 0)
        for _ in range(16):
            await append(both.owner, "a", bytes(100_000))
        after = await both.caught_up("a", 16)
        assert after is not before
        subscriber = Subscriber(after)
        await subscriber.begin(topic_filter="+", start=Start.lsn(1), may_deliver=lambda name: name != "a")
        assert await subscriber.take(1) == [("old", b"0")]


async def test_a_subscription_with_a_last_lsn_ends_when_the_follower_has_it(tmp_path: Path) -> None:
    async with pair_with_a_record(tmp_path) as (both, engine):
        until_lsn = newest(both.owner) + 1
        subscriber = Subscriber(engine)
        await subscriber.begin(topic_filter="#", until_lsn=until_lsn)
        assert await subscriber.take(1) == [("a", b"0")]
        await append(both.owner, "a", b"1")
        assert await subscriber.take(1) == [("a", b"1")]
        assert (await subscriber.event("end")).lsn == until_lsn


async def test_all_of_a_transaction_is_delivered_or_nothing(tmp_path: Path) -> None:
    """When one of its records has been delivered, the other one is published."""
    async with pair(tmp_path) as both:
        for name in "ab":
            await both.owner.create_shard(name, FILE_MODE)
        engine = await both.caught_up("b", 0)
        subscriber = Subscriber(engine)
        await subscriber.begin("a")
        other = engine.shard("b")
        for number in range(20):
            batch = encode([Record(value=b"%d" % number)], now_us=1)
            await both.owner.commit([("b", batch), ("a", batch)], [], [])
            assert await subscriber.take(1) == [("a", b"%d" % number)]
            assert other.published_offset == number + 1


async def test_the_deletion_of_a_shard_wakes_its_subscription(tmp_path: Path) -> None:
    async with pair_with_a_record(tmp_path) as (both, engine):
        one, every = Subscriber(engine), Subscriber(engine)
        await one.begin("a")
        await every.begin(topic_filter="#")
        for subscriber in (one, every):
            assert await subscriber.take(1) == [("a", b"0")]
        await both.owner.delete_shard("a")
        deleted_lsn = newest(both.owner)
        for subscriber in (one, every):
            removed = await subscriber.event("removed")
            assert (removed.name, removed.lsn) == ("a", deleted_lsn)
            assert isinstance(removed.error, ShardNotFoundError)
        # The filter goes on with a new shard of that name.
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"1")
        assert await every.take(1) == [("a", b"1")]


async def test_what_was_trimmed_before_it_was_taken_is_shown_as_a_gap(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        for number in range(4):
            await append(both.owner, "a", b"%d" % number)
        engine = await both.caught_up("a", 4)
        one, every = Subscriber(engine), Subscriber(engine)
        await one.begin("a", start=Start.offset(1))
        await every.begin(topic_filter="#")
        assert (await one.item()) == Notice("added", 1, engine.shard("a").shard_id, "a", 1)
        await both.owner.trim("a", 3)
        await append(both.owner, "a", b"4")
        await both.caught_up("a", 5)
        assert await one.take(3) == [("a", (1, 3)), ("a", b"3"), ("a", b"4")]
        # It begins at the first record that is there.
        assert await every.take(2) == [("a", b"3"), ("a", b"4")]


async def test_records_in_the_memory_of_the_owner_are_shown_as_a_gap(tmp_path: Path) -> None:
    async with pair_with_a_record(tmp_path) as (both, engine):
        start_lsn = newest(both.owner) + 1
        one, every = Subscriber(engine), Subscriber(engine)
        await one.begin("a")
        await every.begin(topic_filter="#", start=Start.latest())
        assert await one.take(1) == [("a", b"0")]
        await both.owner.set_mode("a", Mode.MEMORY)
        await append(both.owner, "a", b"memory")
        await both.owner.set_mode("a", Mode.FILE)
        # Before there is a record behind it.
        assert await one.take(1) == [("a", (1, 2))]
        assert await every.take(1) == [("a", (1, 2))]
        later = Subscriber(engine)
        await later.begin(topic_filter="#", start=Start.lsn(start_lsn))
        assert await later.take(1) == [("a", (1, 2))]
        await append(both.owner, "a", b"2")
        for subscriber in (one, every, later):
            assert await subscriber.take(1) == [("a", b"2")]


async def test_an_offset_after_the_end_waits(tmp_path: Path) -> None:
    """The client may have it from a server that is further."""
    async with pair_with_a_record(tmp_path) as (both, engine):
        subscriber = Subscriber(engine)
        await subscriber.begin("a", start=Start.offset(3))
        assert (await subscriber.event("added")).offset == 3
        assert await subscriber.subscription.take(1 << 20) is None
        for number in range(1, 5):
            await append(both.owner, "a", b"%d" % number)
        assert await subscriber.take(2) == [("a", b"3"), ("a", b"4")]


async def test_an_lsn_after_the_end_waits_and_nothing_before_it_is_delivered(tmp_path: Path) -> None:
    async with pair_with_a_record(tmp_path) as (both, engine):
        start_lsn = newest(both.owner) + 3
        one, every, deleted = Subscriber(engine), Subscriber(engine), Subscriber(engine)
        await one.begin("a", start=Start.lsn(start_lsn))
        await deleted.begin("a", start=Start.lsn(start_lsn + 1000))
        await every.begin(topic_filter="#", start=Start.lsn(start_lsn))
        assert await one.subscription.take(1 << 20) is None
        for number in range(1, 5):
            await append(both.owner, "a", b"%d" % number)
        assert (await one.event("added")).offset == 3
        assert await one.take(2) == [("a", b"3"), ("a", b"4")]
        assert await every.take(2) == [("a", b"3"), ("a", b"4")]
        await both.owner.delete_shard("a")
        assert (await deleted.event("removed")).name == "a"


async def test_a_subscription_goes_on_when_the_follower_becomes_the_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await both.owner.create_shard("b", FILE_MODE)
        await append(both.owner, "a", b"0")
        engine = await both.caught_up("a", 1)
        one, every, late = Subscriber(engine), Subscriber(engine), Subscriber(engine)
        await one.begin("a")
        await every.begin(topic_filter="#")
        await late.begin(topic_filter="b", start=Start.latest())
        assert await one.take(1) == [("a", b"0")]
        assert await every.take(1) == [("a", b"0")]
        assert await take_over(both) is engine
        await append(engine, "a", b"1")
        await append(engine, "b", b"2")
        await engine.create_shard("c", FILE_MODE)
        await append(engine, "c", b"3")
        assert await one.take(1) == [("a", b"1")]
        assert sorted(await every.take(3)) == [("a", b"1"), ("b", b"2"), ("c", b"3")]
        assert await late.take(1) == [("b", b"2")]
        await every.reach(engine.committed_lsn)
        assert engine.statistics().subscription_count == 3
        # A group is possible now.
        member = Subscriber(engine)
        await member.begin("a", group="g")
        assert await member.take(2) == [("a", b"0"), ("a", b"1")]
        for subscriber in (one, every, late, member):
            subscriber.subscription.close()
        assert engine.subscription_count == 0


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
async def test_what_was_lost_with_the_memory_of_the_owner_is_shown_after_a_takeover(
    tmp_path: Path, is_open: bool
) -> None:
    """To subscriptions that began before it, also in a shard that was closed at the follower."""
    async with pair(tmp_path) as both:
        await both.owner.create_shard("m", MEMORY_MODE)
        await append(both.owner, "m", b"0", b"1")
        await both.owner.create_shard("a", FILE_MODE)
        engine = await both.caught_up("a", 0)
        if not is_open:
            for _ in range(16):
                await append(both.owner, "a", bytes(100_000))
            engine = await both.caught_up("a", 16)
        assert (engine.opened_shard(engine.shard_id("m") or 0) is not None) is is_open
        subscriber = Subscriber(engine)
        await subscriber.begin(topic_filter="m", start=Start.latest())
        assert await take_over(both) is engine
        end = engine.describe_shard("m").next_offset
        if is_open:
            assert await subscriber.take(1) == [("m", (0, end))]
            await subscriber.reach(engine.committed_lsn)
        await append(engine, "m", b"new")
        assert await subscriber.take(2 - is_open) == [("m", (0, end)), ("m", b"new")][is_open:]


async def test_a_shard_that_lost_its_memory_in_a_takeover_is_found_by_an_lsn_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of stored shards that the follower has made does not tell that."""
    monkeypatch.setattr(shard_discovery, "_FEW_NAMES", 0)
    async with pair(tmp_path) as both:
        await both.owner.create_shard("m", MEMORY_MODE)
        await append(both.owner, "m", b"0", b"1")
        await both.owner.create_shard("a", FILE_MODE)
        for _ in range(16):
            await append(both.owner, "a", bytes(100_000))
        engine = await both.caught_up("a", 16)
        assert engine.opened_shard(engine.shard_id("m") or 0) is None
        lsn = newest(both.owner)
        before = Subscriber(engine)
        await before.begin(topic_filter="#", start=Start.lsn(1), until_lsn=lsn, may_deliver=lambda name: name != "a")
        await before.event("end")
        assert await take_over(both) is engine
        after = Subscriber(engine)
        await after.begin(topic_filter="#", start=Start.lsn(lsn + 1))
        assert await after.take(1) == [("m", (0, engine.describe_shard("m").next_offset))]


async def test_a_start_after_the_end_of_the_log_is_refused_by_the_next_owner(tmp_path: Path) -> None:
    """No server can have shown it: what was shown is in the log."""
    async with pair_with_a_record(tmp_path) as (both, engine):
        subscriber = Subscriber(engine)
        await subscriber.begin("a", start=Start.offset(7))
        await take_over(both)
        await append(engine, "a", b"1")
        assert isinstance((await subscriber.event("error")).error, OffsetOutOfRangeError)


async def test_a_group_needs_the_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        engine = await both.caught_up("a", 0)
        for target in ("a", None):
            with pytest.raises(NotOwnerError, match="host-1:7420"):
                await Subscriber(engine).begin(target, topic_filter=None if target else "#", group="g")
        assert engine.subscription_count == 0


async def test_the_wait_for_an_lsn_ends_with_the_group_that_has_it_or_with_the_takeover(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        engine = await caught_up(both)
        lsn = newest(both.owner)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.wait_to_have, lsn + 2)
                await append(both.owner, "a", b"0")
                await caught_up(both)
                assert nursery.child_tasks
                await append(both.owner, "a", b"1")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.wait_to_have, lsn + 1000)
                nursery.start_soon(take_over, both)


async def test_nothing_holds_a_shard_when_subscriptions_have_ended_and_reads_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shards are read after a file that was missing has come, by other subscriptions."""
    monkeypatch.setattr("journal.engine.subscribe.filter_subscription._DROPPED_AT_ONCE", 1)
    async with pair(tmp_path) as both:
        names = [f"s/{number}" for number in range(10)]
        for name in names:
            await both.owner.create_shard(name, FILE_MODE)
            await append(both.owner, name, b"0")
        engine = await caught_up(both)
        subscriber = Subscriber(engine)
        await subscriber.begin(topic_filter="#")
        await subscriber.take(10)
        shards = [engine.shard(name) for name in names]
        assert all(shard.listeners for shard in shards)
        ended = both.readers.end

        async def end() -> None:
            subscriber.subscription.close()
            await ended()

        monkeypatch.setattr(both.readers, "end", end)
        both.following.cancel()
        with trio.fail_after(PATIENCE_S):
            while not both.readers.ended:
                await trio.sleep(0.01)
            while any(shard.listeners for shard in shards):
                await trio.sleep(0.01)


async def test_shards_are_found_when_reads_have_ended_and_begin_again_with_the_same_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was missing for a while. What is known of recent shards belongs to the reads that ended."""
    missing = True

    async def fetch_ahead(fetcher: FileFetcher, records: Iterable[SharedFileRecord]) -> bool:
        return not (list(records) and missing)

    async def fetch(fetcher: FileFetcher, *, is_last: bool) -> list[SharedFileRecord]:
        await trio.lowlevel.checkpoint()
        return []

    monkeypatch.setattr(FileFetcher, "fetch_ahead", fetch_ahead)
    monkeypatch.setattr(FileFetcher, "fetch", fetch)
    async with pair(tmp_path) as both:
        names = [f"s/{number}" for number in range(5)]
        for name in names:
            await both.owner.create_shard(name, FILE_MODE)
        before = await caught_up(both)
        for _ in range(20):
            # Each begins an epoch.
            subscriber = Subscriber(before)
            await subscriber.begin(topic_filter="other/#", start=Start.latest())
        shards = [before.shard(name) for name in names]
        file = ConvertedFile(day=20000, file_id=7, size_bytes=100, record_count=1, digest=bytes(32))
        await both.owner.parts.commands.record_files_converted(FilesConverted((file,), ()))
        with trio.fail_after(PATIENCE_S):
            while not both.readers.ended:
                await trio.sleep(0.01)
        after = await caught_up(both)
        assert after is not before
        assert [after.shard(name) for name in names] == shards
        subscriber = Subscriber(after)
        await subscriber.begin(topic_filter="s/+", start=Start.latest())
        for name in names:
            await append(both.owner, name, b"0")
        assert sorted(await subscriber.take(5)) == [(name, b"0") for name in names]


async def test_a_subscription_is_woken_by_records_alone(tmp_path: Path) -> None:
    """Cursors of a shard and its configuration are in the log, too."""
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        engine = await both.caught_up("a", 0)
        calls: list[str] = []
        shard = engine.shard("a")
        shard.add_listener(lambda changed: calls.append(changed.name))
        for number in range(3):
            await both.owner.commit_cursor("a", f"cursor-{number}", 0, None)
        await caught_up(both)
        assert calls == []
        await append(both.owner, "a", b"0")
        await caught_up(both)
        assert calls == ["a"]
        shard.remove_listener(next(iter(shard.listeners or ())))


async def test_many_followed_appends_are_delivered_once_and_in_order(tmp_path: Path) -> None:
    """Subscriptions begin at any time, and each gets a suffix of each shard without a hole."""
    async with pair(tmp_path) as both:
        names = [f"s/{number}" for number in range(5)]
        for name in names:
            await both.owner.create_shard(name, FILE_MODE)
        engine = await caught_up(both)
        count = 40
        subscribers: list[Subscriber] = []

        async def write(name: str) -> None:
            for number in range(count):
                await append(both.owner, name, b"%d" % number)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(partial(write, name))
            while len(subscribers) < 10:
                subscriber = Subscriber(engine)
                start = Start.latest() if len(subscribers) % 2 else Start.earliest()
                await subscriber.begin(topic_filter="s/+", start=start)
                subscribers.append(subscriber)
                await trio.sleep(0.005)
        for number, subscriber in enumerate(subscribers):
            found: dict[str, list[int]] = {name: [] for name in names}
            while subscriber.progress_lsn < newest(both.owner):
                item = await subscriber.item()
                if isinstance(item, Push):
                    for buffer in item.buffers:
                        records = read_records(buffer, start_offset=item.first_offset)
                        values = [int(bytes(record.value or b"")) for record in records if not isinstance(record, Gap)]
                        found[subscriber._names[item.reference]] += values
            for values in found.values():
                assert values == list(range(count - len(values), count))
                assert number % 2 or len(values) == count
