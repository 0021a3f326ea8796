"""Feeds deliver everything above an lsn, of all shards that match, and never claim to be further than they are."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from broker_adapter import Delivery, Feed, Progress, StorageAdapter
from shards.errors import InvalidNameError, InvalidRequestError
from shards.format.record import Gap, Record, StoredRecord
from shards.model import AckLevel, Mode, ShardConfig
from shards.topics.topic_filters import matches
from tests.adapter_contract.conftest import Engine, Opening
from tests.adapter_contract.reading import read_all
from tests.patience import PATIENCE_S

MEMORY = ShardConfig(mode=Mode.MEMORY)


@attrs.define
class Seen:
    """What a feed gave: (shard, record) of each, and how many it had given when it reported its position."""

    records: list[tuple[str, StoredRecord | Gap]] = attrs.Factory(list)
    told: list[tuple[int, int]] = attrs.Factory(list)

    @property
    def values(self) -> list[tuple[str, bytes]]:
        return [(shard, record.value) for shard, record in self.records if isinstance(record, StoredRecord)]

    @property
    def lsn(self) -> int:
        return self.told[-1][1] if self.told else -1

    def add(self, item: Delivery | Progress) -> None:
        if isinstance(item, Progress):
            self.told.append((len(self.records), item.lsn))
        else:
            assert item.records, "an empty delivery"
            self.records += [(item.shard, record) for record in item.records]


async def take_until(feed: Feed, done: Callable[[Seen], bool], seen: Seen | None = None) -> Seen:
    seen = seen or Seen()
    with trio.fail_after(PATIENCE_S):
        while not done(seen):
            seen.add(await feed.__anext__())
    return seen


async def take_all(feed: Feed) -> Seen:
    """Everything that a feed with an end gives."""
    seen = Seen()
    with trio.fail_after(PATIENCE_S):
        async for item in feed:
            seen.add(item)
    return seen


async def newest_lsn(adapter: StorageAdapter, *names: str) -> int:
    return max([(await adapter.describe_shard(name)).last_lsn for name in names])


async def fill(adapter: StorageAdapter, count: int, *names: str) -> list[int]:
    """Append one record at a time to the shards in turn, which are made first; the lsn after each."""
    for name in names:
        await adapter.create_shard(name, exist_ok=True)
    lsns = []
    for number in range(count):
        name = names[number % len(names)]
        await adapter.append(name, [b"%d" % number])
        lsns.append(await newest_lsn(adapter, name))
    return lsns


async def test_a_feed_from_now_gives_what_comes_and_then_how_far_it_is(adapter: StorageAdapter) -> None:
    (old,) = await fill(adapter, 1, "a/1")
    async with adapter.follow("a/+") as feed:
        assert feed.start_lsn >= old
        await adapter.append("a/1", [b"x", b"y"])
        lsn = await newest_lsn(adapter, "a/1")
        seen = await take_until(feed, lambda seen: seen.lsn >= lsn)
        assert seen.values == [("a/1", b"x"), ("a/1", b"y")]
        assert [record.lsn for _, record in seen.records if isinstance(record, StoredRecord)] == [lsn, lsn]


@pytest.mark.parametrize("after", [0, 3, 8])
async def test_a_feed_from_an_lsn_gives_just_what_is_newer(adapter: StorageAdapter, after: int) -> None:
    lsns = await fill(adapter, 9, "a", "b", "c")
    async with adapter.follow("#", lsns[after]) as feed:
        await adapter.append("b", [b"next"])
        newest = await newest_lsn(adapter, "b")
        seen = await take_until(feed, lambda seen: seen.lsn >= newest)
    wanted = [("abc"[number % 3], b"%d" % number) for number in range(after + 1, 9)]
    assert sorted(seen.values) == sorted([*wanted, ("b", b"next")])


async def test_a_feed_with_an_end_gives_nothing_above_it_and_ends(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 9, "a", "b", "c")
    async with adapter.follow("#", lsns[1], until_lsn=lsns[6]) as feed:
        await adapter.append("a", [b"later"])
        seen = await take_all(feed)
        assert sorted(seen.values) == sorted(("abc"[number % 3], b"%d" % number) for number in range(2, 7))
        assert seen.told[-1] == (5, lsns[6])
        with pytest.raises(StopAsyncIteration):
            await feed.__anext__()


async def test_an_end_in_the_middle_of_a_shard_cuts_a_read_of_many_batches(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 20, "a")
    async with adapter.follow("a", 0, until_lsn=lsns[11]) as feed:
        seen = await take_all(feed)
    assert [value for _, value in seen.values] == [b"%d" % number for number in range(12)]


async def test_an_empty_range_ends_at_once(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 3, "a")
    for after, until in ((lsns[2], lsns[2]), (lsns[2], lsns[0]), (0, 0)):
        async with adapter.follow("#", after, until_lsn=until) as feed:
            seen = await take_all(feed)
        assert (seen.records, len(seen.told)) == ([], 1)
        assert seen.lsn >= until


async def test_an_end_that_is_not_committed_is_waited_for(adapter: StorageAdapter) -> None:
    (lsn,) = await fill(adapter, 1, "a")
    async with adapter.follow("#", 0, until_lsn=lsn + 2) as feed:
        await take_until(feed, lambda seen: len(seen.records) == 1)
        ended = trio.Event()
        rest = Seen()

        async def consume() -> None:
            async for item in feed:
                rest.add(item)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not ended.is_set()
            with trio.fail_after(PATIENCE_S):
                while not ended.is_set():
                    await adapter.append("a", [b"more"])
        assert rest.lsn >= lsn + 2
        stored = await read_all(adapter, "a")
        wanted = [one.offset for one in stored if isinstance(one, StoredRecord) and lsn < one.lsn <= lsn + 2]
        assert [one.offset for _, one in rest.records if isinstance(one, StoredRecord)] == wanted


async def test_an_end_that_state_alone_reaches_is_reached(adapter: StorageAdapter) -> None:
    (lsn,) = await fill(adapter, 1, "a")
    async with adapter.follow("#", 0, until_lsn=lsn + 3) as feed, trio.open_nursery() as nursery:
        seen: list[Seen] = []

        async def consume() -> None:
            seen.append(await take_all(feed))

        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked(0.02)
        with trio.fail_after(PATIENCE_S):
            while not seen:
                await adapter.put_state(b"k", b"v")
        assert seen[0].values == [("a", b"0")]


async def test_progress_moves_while_only_others_write(adapter: StorageAdapter) -> None:
    await fill(adapter, 1, "mine")
    async with adapter.follow("mine") as feed:
        (lsn,) = await fill(adapter, 1, "others")
        seen = await take_until(feed, lambda seen: seen.lsn >= lsn)
        assert seen.records == []


async def test_progress_is_no_flood(adapter: StorageAdapter) -> None:
    await fill(adapter, 1, "mine", "others")
    async with adapter.follow("mine") as feed:
        begun_at = trio.current_time()
        (lsn, *_) = [await newest_lsn(adapter, "mine")]
        seen = Seen()
        with trio.fail_after(PATIENCE_S):
            for _ in range(30):
                await adapter.append("others", [b"x"])
                with trio.move_on_after(0.01):
                    while True:
                        seen.add(await feed.__anext__())
        elapsed_s = trio.current_time() - begun_at
        assert [told for _, told in seen.told] == sorted({told for _, told in seen.told})
        assert len(seen.told) <= elapsed_s / 0.05 + 2
        assert seen.told == [] or seen.told[0][1] > lsn - 1


async def test_shards_created_later_are_in_a_feed_from_their_first_record(adapter: StorageAdapter) -> None:
    async with adapter.follow("a/#") as feed, adapter.follow("a/2") as one:
        for name, config in (("a/1", MEMORY), ("b/1", MEMORY), ("a/2", ShardConfig())):
            await adapter.create_shard(name, config)
            await adapter.append(name, [name.encode()])
        seen = await take_until(feed, lambda seen: len(seen.records) == 2)
        assert sorted(seen.values) == [("a/1", b"a/1"), ("a/2", b"a/2")]
        assert (await take_until(one, lambda seen: bool(seen.records))).values == [("a/2", b"a/2")]


async def test_a_wildcard_in_first_place_leaves_out_dollar_names(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 2, "$mqtt/live/1", "plain")
    async with adapter.follow("#", 0, until_lsn=lsns[-1]) as everything:
        assert (await take_all(everything)).values == [("plain", b"1")]
    async with adapter.follow("$mqtt/live/+", 0, until_lsn=lsns[-1]) as internal:
        assert (await take_all(internal)).values == [("$mqtt/live/1", b"0")]


async def test_a_deleted_shard_just_ends_and_its_successor_is_another(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 2, "a", "b")
    async with adapter.follow("+", lsns[0] - 1) as feed:
        await adapter.delete_shard("a")
        await adapter.create_shard("a")
        await adapter.append("a", [b"anew"])
        newest = await newest_lsn(adapter, "a")
        seen = await take_until(feed, lambda seen: seen.lsn >= newest)
        assert {value for value in seen.values if value != ("a", b"0")} == {("b", b"1"), ("a", b"anew")}
        await adapter.delete_shard("b")
        await adapter.append("a", [b"more"])
        await take_until(feed, lambda seen: seen.values[-1] == ("a", b"more"), seen)


async def test_expired_records_are_left_out_and_progress_moves(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    async with adapter.follow("s") as feed:
        await adapter.append("s", [Record(b"expired", expires_at_us=1)])
        lsn = await newest_lsn(adapter, "s")
        seen = await take_until(feed, lambda seen: seen.lsn >= lsn)
        assert seen.records == []
        await adapter.append("s", [Record(b"there")])
        await take_until(feed, lambda seen: seen.values == [("s", b"there")], seen)


async def test_what_was_trimmed_below_the_start_does_not_show(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 6, "s")
    await adapter.trim("s", 4)
    async with adapter.follow("s", lsns[0], until_lsn=lsns[-1]) as feed:
        seen = await take_all(feed)
    assert [record for _, record in seen.records if isinstance(record, Gap)] == []
    assert [value for _, value in seen.values] == [b"4", b"5"]


async def test_a_trim_that_overtakes_a_feed_shows_as_a_gap(adapter: StorageAdapter) -> None:
    lsns = await fill(adapter, 3, "s")
    async with adapter.follow("s", lsns[0], credit_bytes=1) as feed:
        seen = await take_until(feed, lambda seen: len(seen.records) == 1)
        for number in range(3, 8):
            await adapter.append("s", [b"%d" % number])
        await adapter.trim("s", 7)
        await adapter.append("s", [b"8"])
        await take_until(feed, lambda seen: getattr(seen.records[-1][1], "value", None) == b"8", seen)
    next_offset = 1
    for _, record in seen.records:
        first, end = (
            (record.first_offset, record.next_offset) if isinstance(record, Gap) else (record.offset, record.offset + 1)
        )
        assert first == next_offset
        next_offset = end
    assert next_offset == 9
    assert any(isinstance(record, Gap) for _, record in seen.records)


async def test_a_slow_consumer_delays_no_other_and_loses_nothing(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    count = 150
    async with (
        adapter.follow("s", credit_bytes=8_000) as slow,
        adapter.follow("#", credit_bytes=8_000) as quick,
    ):
        wanted = [b"%06d" % number * 500 for number in range(count)]
        with trio.fail_after(2 * PATIENCE_S):
            for value in wanted:
                await adapter.append("s", [value], ack=AckLevel.MEMORY)
        newest = await newest_lsn(adapter, "s")
        for feed in (quick, slow):
            seen = await take_until(feed, lambda seen: seen.lsn >= newest)
            assert [value for _, value in seen.values] == wanted


async def test_a_cancelled_wait_loses_nothing(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    async with adapter.follow("s") as feed:
        seen = Seen()
        for number in range(20):
            await adapter.append("s", [b"%d" % number])
            with trio.move_on_after(0.001 * (number % 4)):
                while True:
                    seen.add(await feed.__anext__())
        newest = await newest_lsn(adapter, "s")
        await take_until(feed, lambda seen: seen.lsn >= newest, seen)
        assert [value for _, value in seen.values] == [b"%d" % number for number in range(20)]


async def test_what_cannot_be_followed_is_refused(adapter: StorageAdapter) -> None:
    async def enter(*args: object, **options: object) -> None:
        async with adapter.follow(*args, **options):  # type: ignore[arg-type]
            pass

    with pytest.raises(InvalidNameError):
        await enter("a/#/b")
    for options in ({"after_lsn": -1}, {"until_lsn": -1}):
        with pytest.raises(InvalidRequestError):
            await enter("#", **options)


async def test_closing_the_adapter_ends_feeds(adapter: StorageAdapter) -> None:
    await fill(adapter, 1, "s")
    ended: list[int] = []

    async def consume(until_lsn: int | None) -> None:
        async with adapter.follow("#", until_lsn=until_lsn) as feed:
            async for item in feed:
                assert isinstance(item, Progress)
        ended.append(1)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, None)
            nursery.start_soon(consume, 1 << 40)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await adapter.aclose()
    assert len(ended) == 2
    with pytest.raises(trio.ClosedResourceError):
        async with adapter.follow("#"):
            pass


async def test_a_feed_continues_at_its_lsn_when_the_store_is_opened_again(opening: Opening) -> None:
    async with opening() as adapter:
        await fill(adapter, 1, *(f"old/{number}" for number in range(30)))
        lsns = await fill(adapter, 30, *(f"s/{number}" for number in range(30)))
    async with opening() as adapter:
        async with adapter.follow("s/+", lsns[19]) as feed:
            await adapter.append("s/3", [b"new"])
            newest = await newest_lsn(adapter, "s/3")
            seen = await take_until(feed, lambda seen: seen.lsn >= newest)
        assert sorted(seen.values) == sorted([*((f"s/{n}", b"%d" % n) for n in range(20, 30)), ("s/3", b"new")])
        async with adapter.follow("#", lsns[9], until_lsn=lsns[12]) as feed:
            seen = await take_all(feed)
        assert sorted(seen.values) == sorted((f"s/{n}", b"%d" % n) for n in range(10, 13))


# Everything at once, against a model


@attrs.define
class Follower:
    """A feed of a random workload and what it gave.

    Attributes:
        ended: The feed came to its end.
        has_left: The feed has no records, and its position is high enough.
    """

    topic_filter: str
    after_lsn: int | None
    until_lsn: int | None
    start_lsn: int = -1
    seen: Seen = attrs.Factory(Seen)
    ended: bool = False
    has_left: bool = False

    @property
    def wanted_lsn(self) -> int:
        """It waits at least until this lsn is reported."""
        return self.start_lsn + 1 if self.until_lsn is None else self.until_lsn


NAMES = ("a/1", "a/2", "a/3", "b/1", "b/2/x", "b", "c")
FILTERS = ("#", "a/+", "b/#", "+", "a/1", "c", "+/1")


class Workload:
    """Writers and followers of one store, at random."""

    def __init__(self, adapter: StorageAdapter, seed: int) -> None:
        self.adapter = adapter
        self.random = random.Random(seed)
        self.followers: list[Follower] = []
        self.newest_lsn = 0
        self.are_writers_done = False

    async def run(self) -> None:
        # Well within the time of a test, whose end would not tell who waits for what.
        with trio.move_on_after(2 * PATIENCE_S) as scope:
            async with trio.open_nursery() as followers:
                async with trio.open_nursery() as writers:
                    for _ in range(3):
                        writers.start_soon(self.write)
                    for _ in range(8):
                        await self.begin_follower(followers)
                        await trio.sleep(self.random.random() * 0.02)
                await self.look_at_lsns()
                # Every end that was asked for is reached, and a reader without one is notified of this.
                self.are_writers_done = True
                await self.append_some()
                while self.newest_lsn < max(one.wanted_lsn for one in self.followers):
                    await self.append_some()
                    await self.look_at_lsns()
        assert not scope.cancelled_caught, await self.standing()
        await self.check()

    async def standing(self) -> str:
        """How far all are, for the message about a run that did not end."""
        shards = [
            f"{info.name}: {info.next_offset}, lsn {info.last_lsn}" for info in await self.adapter.list_shards("#")
        ]
        followers = [
            f"{one.topic_filter} from {one.start_lsn} until {one.until_lsn}: "
            f"{'ended' if one.ended else 'left' if one.has_left else 'waits'} "
            f"at {one.seen.lsn} with {len(one.seen.records)} records"
            for one in self.followers
        ]
        done = "done" if self.are_writers_done else "not done"
        return "\n".join([f"writers {done}, newest lsn {self.newest_lsn}", *shards, *followers])

    async def write(self) -> None:
        for _ in range(25):
            await self.append_some()
            action = self.random.random()
            if action < 0.1:
                await self.adapter.set_mode(await self.some_shard(), self.random.choice(list(Mode)))
            elif action < 0.2:
                await self.look_at_lsns()
            elif action < 0.3:
                await self.adapter.put_state(b"k", b"v")

    async def some_shard(self) -> str:
        name = self.random.choice(NAMES)
        await self.adapter.create_shard(name, self.random.choice([MEMORY, ShardConfig()]), exist_ok=True)
        return name

    async def append_some(self) -> None:
        pending = []
        for _ in range(self.random.randint(1, 5)):
            name = await self.some_shard()
            values = [bytes(self.random.randint(1, 300)) for _ in range(self.random.randint(1, 4))]
            pending.append(self.adapter.append_nowait(name, values))
        for one in pending:
            await one.wait()

    async def look_at_lsns(self) -> None:
        infos = await self.adapter.list_shards("#")
        self.newest_lsn = max([self.newest_lsn, *(info.last_lsn for info in infos)])

    async def begin_follower(self, nursery: trio.Nursery) -> None:
        around = range(max(0, self.newest_lsn - 20), self.newest_lsn + 10)
        after_lsn = self.random.choice([None, 0, self.random.choice(around)])
        until_lsn = self.random.choice([None, self.random.choice(around), self.newest_lsn + 15])
        follower = Follower(self.random.choice(FILTERS), after_lsn, until_lsn)
        self.followers.append(follower)
        await nursery.start(self.follow, follower)

    async def follow(self, follower: Follower, task_status: trio.TaskStatus[None]) -> None:
        opened = self.adapter.follow(
            follower.topic_filter,
            follower.after_lsn,
            until_lsn=follower.until_lsn,
            credit_bytes=self.random.choice([1, 500, 1 << 20]),
        )
        async with opened as feed:
            follower.start_lsn = feed.start_lsn
            task_status.started()
            async for item in feed:
                follower.seen.add(item)
                if self.random.random() < 0.1:
                    await trio.sleep(0.003)
                if follower.until_lsn is None and self.are_writers_done and follower.seen.lsn >= self.newest_lsn:
                    follower.has_left = True
                    break
            else:
                follower.ended = True

    async def check(self) -> None:
        stored: list[tuple[str, StoredRecord]] = []
        for info in await self.adapter.list_shards("#"):
            stored += [(info.name, one) for one in await read_all(self.adapter, info.name) if not isinstance(one, Gap)]
        for follower in self.followers:
            wanted = [
                (name, record.offset, record.lsn)
                for name, record in stored
                if matches(follower.topic_filter, name)
                and follower.start_lsn < record.lsn
                and (follower.until_lsn is None or record.lsn <= follower.until_lsn)
            ]
            records = [(name, one) for name, one in follower.seen.records if isinstance(one, StoredRecord)]
            given = [(name, one.offset, one.lsn) for name, one in records]
            assert len(given) == len(follower.seen.records), f"{follower}: there was nothing to lose"
            assert len(given) == len(set(given)), f"{follower}: a record came twice"
            assert set(given) <= set(wanted), f"{follower}: what it had not asked for"
            for name in NAMES:
                offsets = [offset for shard, offset, _ in given if shard == name]
                assert offsets == sorted(offsets), f"{follower}: out of order in {name}"
            for count, lsn in follower.seen.told:
                missing = {one for one in wanted if one[2] <= lsn} - set(given[:count])
                assert not missing, f"{follower}: told {lsn} before {missing}"
            assert [lsn for _, lsn in follower.seen.told] == sorted({lsn for _, lsn in follower.seen.told})
            if follower.until_lsn is not None:
                assert follower.ended, f"{follower} did not end"
                assert follower.seen.lsn >= follower.until_lsn
                assert set(given) == set(wanted), f"{follower}: not all of it"


@pytest.mark.parametrize("seed", range(6))
async def test_feeds_give_what_the_model_says(adapter: StorageAdapter, seed: int) -> None:
    await Workload(adapter, seed).run()


# A feed may overlap with batches that are visible before earlier ones are durable.


async def test_progress_waits_for_earlier_file_batches(engine: Engine, adapter: StorageAdapter) -> None:
    """A memory-mode batch is visible at once: with it alone delivered, the feed must not claim its lsn."""
    await adapter.create_shard("file")
    await adapter.create_shard("memory", MEMORY)
    # The first batch in memory mode waits for a reservation; it is not what this is about.
    await adapter.append("memory", [b"first"])
    async with adapter.follow("#") as feed:
        seen = Seen()
        for number in range(40):
            slow = adapter.append_nowait("file", [b"f%d" % number])
            await adapter.append("memory", [b"m%d" % number])
            with trio.move_on_after(0.002):
                while True:
                    seen.add(await feed.__anext__())
            await slow.wait()
        newest = await newest_lsn(adapter, "file", "memory")
        await take_until(feed, lambda seen: seen.lsn >= newest, seen)
    lsns = [record.lsn for _, record in seen.records if isinstance(record, StoredRecord)]
    assert len(lsns) == 80
    for count, lsn in seen.told:
        assert sorted(one for one in lsns if one <= lsn) == sorted(one for one in lsns[:count] if one <= lsn)


async def test_a_delivery_tells_its_last_lsn_and_whether_records_name_topics_without_decoding_them(
    adapter: StorageAdapter,
) -> None:
    await adapter.create_shard("a")
    await adapter.append("a", [b"1", b"2"])
    await adapter.append("a", [Record(b"3", topic="named")])
    last_lsn = await newest_lsn(adapter, "a")
    found: list[Delivery] = []
    with trio.fail_after(PATIENCE_S):
        async with adapter.follow("a", 0, until_lsn=last_lsn) as feed:
            async for item in feed:
                if isinstance(item, Delivery):
                    found.append(item)
    assert not any(item.is_decoded for item in found)
    assert found[-1].last_lsn == last_lsn
    assert found[-1].names_topics
    assert not any(item.is_decoded for item in found)
    records = [record for item in found for record in item.records]
    assert [record.value for record in records if isinstance(record, StoredRecord)] == [b"1", b"2", b"3"]
    assert all(item.is_decoded for item in found)


async def test_a_delivery_of_records_that_expire_is_decoded_since_it_is_not_given_if_all_have_expired(
    adapter: StorageAdapter,
) -> None:
    await adapter.create_shard("a")
    await adapter.append("a", [Record(b"1", expires_at_us=1), Record(b"2", expires_at_us=1)])
    await adapter.append("a", [Record(b"3", expires_at_us=1), Record(b"4", expires_at_us=2**60)])
    async with adapter.follow("a", 0, until_lsn=await newest_lsn(adapter, "a")) as feed:
        seen = await take_all(feed)
    assert seen.values == [("a", b"4")]


async def test_a_large_batch_comes_in_deliveries_of_few_records_that_lack_none_of_it(adapter: StorageAdapter) -> None:
    """A consumer with room for a limited number can pass them on in between."""
    await adapter.create_shard("a")
    values = [b"%d" % number for number in range(1000)]
    await adapter.append("a", values)
    await adapter.append("a", [b"1000"])
    last_lsn = await newest_lsn(adapter, "a")
    seen, next_offsets = Seen(), []
    with trio.fail_after(PATIENCE_S):
        async with adapter.follow("a", 0, until_lsn=last_lsn) as feed:
            async for item in feed:
                seen.add(item)
                if isinstance(item, Delivery):
                    assert len(item.records) <= 256
                    assert item.records[-1].offset + 1 == item.next_offset  # type: ignore[union-attr]
                    next_offsets.append(item.next_offset)
    assert [value for _, value in seen.values] == [*values, b"1000"]
    assert next_offsets == sorted(next_offsets)
    assert next_offsets[-1] == 1001


async def test_a_cancelled_wait_for_a_part_of_a_large_batch_loses_none_of_it(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    await adapter.append("a", [b"%d" % number for number in range(600)])
    last_lsn = await newest_lsn(adapter, "a")
    async with adapter.follow("a", 0) as feed:
        seen = await take_until(feed, lambda seen: len(seen.records) > 0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await feed.__anext__()
        assert scope.cancelled_caught
        await take_until(feed, lambda seen: seen.lsn >= last_lsn, seen)
    assert [value for _, value in seen.values] == [b"%d" % number for number in range(600)]
