"""Subscriptions: everything once and in order across lost connections, bounded by credit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from journal.client import Delivery, Subscription, open_client
from journal.protocol import Op, encode
from journal.protocol.errors import ERROR_NUMBERS
from journal.protocol.frames import Push, build
from journal.protocol.messages import ShardEvent, SubscribeReply
from shards.back_off import BackOff
from shards.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OverloadedError,
    ShardDamagedError,
    ShardNotFoundError,
    StorageError,
)
from shards.format.batch import read_records
from shards.format.record import Gap, StoredRecord
from shards.model import ProducerIdentity
from shards.position import Start
from tests.client.fake_server import FakeServer, FakeShard

pytestmark = pytest.mark.trio
FAST: dict[str, Any] = {"backoff": BackOff(0.001, 0.01)}


def values_of(delivery: Delivery) -> list[bytes]:
    records = read_records(delivery.batches, start_offset=delivery.first_offset, max_raw_bytes=1 << 24)
    return [record.value for record in records if isinstance(record, StoredRecord)]


async def take(subscription: Subscription, count: int) -> list[tuple[str, bytes]]:
    taken: list[tuple[str, bytes]] = []
    while len(taken) < count:
        delivery = await subscription.__anext__()
        taken += [(delivery.shard, value) for value in values_of(delivery)]
    return taken


async def test_a_shard_is_delivered_from_the_start_and_then_live() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        await client.append("a", [b"0", b"1"])
        async with client.subscribe(shard="a", start=Start.offset(1)) as subscription:
            assert await take(subscription, 1) == [("a", b"1")]
            await client.append("a", [b"2"])
            assert await take(subscription, 1) == [("a", b"2")]


async def test_filter_includes_shards_made_later() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("x/a")
        async with client.subscribe(topic_filter="x/#") as subscription:
            await client.append("x/a", [b"0"])
            server.create("x/b")
            await client.append("x/b", [b"1"])
            assert sorted(await take(subscription, 2)) == [("x/a", b"0"), ("x/b", b"1")]


@pytest.mark.parametrize("start", [Start.latest(), Start.earliest()])
@pytest.mark.parametrize("by_filter", [True, False])
async def test_nothing_is_lost_or_repeated_over_lost_connections(start: Start, by_filter: bool) -> None:
    async with (
        FakeServer().running() as server,
        open_client(server.address, **FAST) as writer,
        open_client(server.address, **FAST) as reader,
    ):
        server.create("x/a")
        target = {"topic_filter": "x/#"} if by_filter else {"shard": "x/a"}
        async with reader.subscribe(start=start, **target) as subscription:  # type: ignore[arg-type]
            seen: list[bytes] = []
            for round_number in range(4):
                # Killed before anything was read: some was pushed, some was not.
                numbers = range(round_number * 10, round_number * 10 + 10)
                await writer.append("x/a", [b"%d" % number for number in numbers])
                await server.kill_connections()
                seen += [value for _, value in await take(subscription, 10)]
            assert seen == [b"%d" % number for number in range(40)]
            assert subscription.failed_shards == {}


async def test_latest_does_not_skip_what_came_while_disconnected() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"old"])
        async with client.subscribe(shard="a") as subscription:
            await server.kill_connections()
            await client.append("a", [b"new"])
            assert await take(subscription, 1) == [("a", b"new")]


async def test_latest_of_a_shard_began_again_when_the_connection_was_lost_before_its_offset_was_known() -> None:
    """The caller had got the acknowledgement of the subscription: records that came meanwhile were skipped."""
    subscription = Subscription(1, Start.latest(), shard="a", topic_filter=None, group=None, credit_bytes=1000)

    def asked() -> tuple[str, int]:
        request = subscription.request(lambda frame: None)
        return request.start, request.value

    assert asked() == ("latest", 0)
    subscription.disconnected()
    assert asked() == ("latest", 0)  # the server has not accepted it
    subscription.established(SubscribeReply(7))
    subscription.disconnected()
    assert asked() == ("lsn", 8)
    subscription.established(SubscribeReply(20))
    subscription.shard_event(ShardEvent(1, "added", 1, "a", offset=5))
    subscription.disconnected()
    assert asked() == ("offset", 5)


async def test_progress_moves_the_resume_position_of_a_filter() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("x/a")
        await client.append("x/a", [b"0"])
        async with client.subscribe(topic_filter="x/#", start=Start.earliest()) as subscription:
            await take(subscription, 1)
            event = ShardEvent(server.subscribed[0].subscription, "progress", lsn=server.lsn)
            await server.sessions[0].stream.send_all(build(Op.SHARD_EVENT, 0, encode(event)))
            await client.ping()
            await server.kill_connections()
            await client.append("x/a", [b"1"])
            assert await take(subscription, 1) == [("x/a", b"1")]
            assert [(request.start, request.value) for request in server.subscribed] == [("earliest", 0), ("lsn", 2)]


@pytest.mark.parametrize(("group", "frames_sent"), [(None, 1), ("g", 9)])
async def test_a_reader_that_keeps_up_returns_credit_once_it_is_half_of_it_and_a_member_of_a_group_at_once(
    group: str | None, frames_sent: int
) -> None:
    """For each delivery that would be a frame, a system call and a wake-up of the task that sends."""
    sent: list[bytes] = []
    subscription = Subscription(1, Start.earliest(), shard="a", topic_filter=None, group=group, credit_bytes=1000)
    subscription.request(sent.append)
    subscription.established(SubscribeReply(1))
    subscription.shard_event(ShardEvent(1, "added", 1, "a", offset=0))
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(subscription.__anext__)
            await wait_all_tasks_blocked()
            subscription.pushed(Push(1, 1, number, number + 1, memoryview(bytes(60))))
            await wait_all_tasks_blocked()
    assert len(sent) == frames_sent


async def test_slow_reader_bounds_what_is_pushed() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        shard = server.create("a")
        for _ in range(50):
            await client.append("a", [bytes(1000)])
        batch_bytes = len(shard.batches[0][2])
        async with client.subscribe(shard="a", start=Start.earliest(), credit_bytes=10_000) as subscription:
            await client.ping()
            assert server.pushed_bytes <= 10_000 + batch_bytes
            for number in range(50):
                delivery = await subscription.__anext__()
                assert delivery.first_offset == number
                assert server.pushed_bytes <= (number + 1) * batch_bytes + 10_000 + batch_bytes


async def test_credit_is_whole_again_after_a_lost_connection() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        shard = server.create("a")
        for _ in range(30):
            await client.append("a", [bytes(1000)])
        batch_bytes = len(shard.batches[0][2])
        async with client.subscribe(shard="a", start=Start.earliest(), credit_bytes=3000) as subscription:
            await client.ping()
            await server.kill_connections()
            await client.ping()
            while len(server.subscribed) < 2:
                await trio.lowlevel.checkpoint()
            assert server.subscribed[1].credit_bytes == 0
            assert server.pushed_bytes == 3 * batch_bytes
            assert len(await take(subscription, 30)) == 30


async def test_deleted_shard_ends_its_subscription() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        async with client.subscribe(shard="a") as subscription:
            event = ShardEvent(server.subscribed[0].subscription, "removed", 1, "a")
            await server.sessions[0].stream.send_all(build(Op.SHARD_EVENT, 0, encode(event)))
            with pytest.raises(ShardNotFoundError):
                await subscription.__anext__()


async def test_damaged_shard_does_not_end_a_filter(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, once for all subscriptions: brokers followed filters and never said what they lacked."""
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("x/a")
        server.create("x/b")
        async with client.subscribe(topic_filter="x/#") as subscription:
            number = server.subscribed[0].subscription
            status = ERROR_NUMBERS[ShardDamagedError]
            event = ShardEvent(number, "error", 1, "x/a", status=status, code="shard_damaged", message="log/1 at 4096")
            await server.sessions[0].stream.send_all(build(Op.SHARD_EVENT, 0, encode(event)))
            await client.append("x/b", [b"1"])
            assert await take(subscription, 1) == [("x/b", b"1")]
            assert isinstance(subscription.failed_shards["x/a"], ShardDamagedError)
            await server.sessions[0].stream.send_all(build(Op.SHARD_EVENT, 0, encode(event)))
            await client.ping()
            errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
            assert errors == ["shard 'x/a' is not delivered any more, other shards are: log/1 at 4096"]
            assert client.failed_shards.count == 1
            assert client.failed_shards.ranges.count == 1
        assert client.failed_shards.count == 0


async def test_a_shard_that_failed_came_back_behind_records_that_were_never_delivered() -> None:
    """The next connection began behind the newest progress, which does not count what a failed shard holds."""
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("x/a")
        server.create("x/b")

        async def tell(event: str, lsn: int = 0) -> None:
            number = server.subscribed[-1].subscription
            status = ERROR_NUMBERS[ShardDamagedError] if event == "error" else 0
            told = ShardEvent(number, event, 1, "x/a", status=status, code="shard_damaged", lsn=lsn)
            await server.sessions[-1].stream.send_all(build(Op.SHARD_EVENT, 0, encode(told)))
            await client.ping()

        async def reconnect() -> tuple[str, int]:
            known = len(server.subscribed)
            await server.kill_connections()
            await client.ping()
            while len(server.subscribed) == known:
                await trio.lowlevel.checkpoint()
            return server.subscribed[-1].start, server.subscribed[-1].value

        async with client.subscribe(topic_filter="x/#", start=Start.earliest()) as subscription:
            await tell("progress", 1)
            await tell("error")
            assert list(subscription.failed_shards) == ["x/a"]
            await tell("progress", 5)
            assert await reconnect() == ("lsn", 2)
            # Nothing fails over the new connection.
            await tell("progress", 6)
            assert await reconnect() == ("lsn", 7)


async def test_shard_made_anew_while_away_is_read_from_its_beginning() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("x/a")
        async with client.subscribe(topic_filter="x/#", start=Start.earliest()) as subscription:
            await client.append("x/a", [b"0", b"1", b"2"])
            await take(subscription, 3)
            del server.shards["x/a"]
            server.create("other")
            server.create("x/a")
            await server.kill_connections()
            await client.append("x/a", [b"new"])
            assert await take(subscription, 1) == [("x/a", b"new")]


@pytest.mark.parametrize("start", [Start.earliest(), Start.offset(1)], ids=["earliest", "offset"])
async def test_what_was_trimmed_while_away_is_a_gap(start: Start) -> None:
    """A subscription to one shard ended with `OffsetOutOfRangeError`, also while servers changed."""
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        shard = server.create("a")
        async with client.subscribe(shard="a", start=start, credit_bytes=1000) as subscription:
            await client.append("a", [b"0", b"1", b"2"])
            await take(subscription, 3 - start.value)
            server.fault = refuse_outside(shard, 5, 9)
            await server.kill_connections()
            await client.append("a", [b"%d" % number for number in range(3, 9)])
            delivery = await subscription.__anext__()
            assert (delivery.first_offset, delivery.next_offset) == (3, 5)
            assert list(read_records(delivery.batches)) == [Gap(3, 5)]
            assert await take(subscription, 4) == [("a", b"%d" % number) for number in range(5, 9)]
            server.fault = lambda op, request: None
            await server.kill_connections()
            await client.append("a", [b"9"])
            assert await take(subscription, 1) == [("a", b"9")]
            # The gap was no push: it gives no credit back.
            assert server.subscribed[-1].value == 9
            assert server.subscribed[-1].credit_bytes <= 1000


@pytest.mark.parametrize("length", [1, 5], ids=["shorter", "longer"])
async def test_a_shard_made_anew_while_away_is_not_the_one_that_was_subscribed_to(length: int) -> None:
    """The subscription went on in the other shard, without its first records, or ended with `OffsetOutOfRangeError`."""
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        async with client.subscribe(shard="a", start=Start.earliest()) as subscription:
            await client.append("a", [b"0", b"1", b"2"])
            await take(subscription, 3)
            del server.shards["a"]
            server.create("other")
            shard = server.create("a")
            server.fault = refuse_outside(shard, 0, length)
            await server.kill_connections()
            await client.append("a", [b"%d" % number for number in range(length)])
            with pytest.raises(ShardNotFoundError, match="'a' was deleted"):
                await subscription.__anext__()


def refuse_outside(shard: FakeShard, start_offset: int, next_offset: int) -> Callable[[int, Any], StorageError | None]:
    """A subscription to a shard may start between these offsets, and not before the shard has that end."""

    def fault(op: int, request: Any) -> StorageError | None:
        if op != Op.SUBSCRIBE:
            return None
        if shard.next_offset < next_offset:
            return OverloadedError("later")
        if not start_offset <= request.value <= next_offset:
            return OffsetOutOfRangeError(shard.name, request.value, start_offset, next_offset)
        return None

    return fault


async def test_group_member_acknowledges_and_gets_unacknowledged_again() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"0"])
        async with client.subscribe(shard="a", start=Start.earliest(), group="g") as subscription:
            first = await subscription.__anext__()
            await server.kill_connections()
            again = await subscription.__anext__()
            assert values_of(again) == values_of(first) == [b"0"]
            assert not subscription.acknowledge(first)
            assert subscription.acknowledge(again)
            await client.ping()
            assert [(done.first_offset, done.next_offset) for done in server.acknowledged] == [(0, 1)]


async def test_several_tasks_may_read_one_subscription() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        seen: list[int] = []

        async def read(subscription: Subscription) -> None:
            seen.append((await subscription.__anext__()).first_offset)

        async with client.subscribe(shard="a") as subscription, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read, subscription)
            await client.ping()
            for _ in range(3):
                await client.append("a", [b"x"])
        assert sorted(seen) == [0, 1, 2]


async def test_refused_subscription_is_an_error() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        with pytest.raises(ShardNotFoundError):
            async with client.subscribe(shard="nowhere"):
                pytest.fail("the block must not be entered")
        with pytest.raises(InvalidRequestError):
            async with client.subscribe():
                pytest.fail("the block must not be entered")
        assert await client.open_producer("p") == ProducerIdentity(1, 1)
