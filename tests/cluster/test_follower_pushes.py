"""Subscriptions of clients at servers that follow the owner of their store, while servers are killed and stopped."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter.opening import open_adapter
from journal.client import Client
from journal.client.opening import open_client
from journal.client.subscription import Feed, Subscription
from journal.protocol import Op, messages
from shards.errors import InvalidRequestError, NotOwnerError, ShardNotFoundError
from shards.format.batch import read_records
from shards.format.record import Gap, Record
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.subscriptions.events import Progress
from tests.cluster.servers import Server, running
from tests.cluster.test_follower_reads import reading_from, two
from tests.cluster.writing import SHARD, check, value_of, writing
from tests.patience import PATIENCE_S

FILE_MODE = ShardConfig(mode=Mode.FILE)


@attrs.define
class Received:
    """What subscriptions have delivered, by shard.

    Attributes:
        values: The numbers.
        next_offset: By shard, the offset after the last delivery.
    """

    values: dict[str, list[int]] = attrs.Factory(dict)
    next_offset: dict[str, int] = attrs.Factory(dict)
    _moved: trio.Condition = attrs.Factory(trio.Condition)

    async def take_all(self, subscription: Subscription | Feed) -> None:
        """Take what comes, and check that it is in order, once, and without a hole."""
        async for delivery in subscription:
            if isinstance(delivery, Progress):
                continue
            shard = delivery.shard
            assert delivery.first_offset == self.next_offset.get(shard, delivery.first_offset), "a hole, or twice"
            self.next_offset[shard] = delivery.next_offset
            records = read_records(delivery.batches, start_offset=delivery.first_offset)
            self.values.setdefault(shard, []).extend(map(value_of, records))
            async with self._moved:
                self._moved.notify_all()

    async def until(self, is_there: Callable[[dict[str, list[int]]], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            async with self._moved:
                while not is_there(self.values):
                    await self._moved.wait()

    async def have(self, count: int, shard: str = SHARD) -> None:
        """Until the first numbers of a shard are there. They were appended in order, without a number left out."""
        await self.until(lambda values: len(values.get(shard, ())) >= count)
        assert self.values[shard] == list(range(len(self.values[shard])))


@asynccontextmanager
async def receiving(client: Client, *, by_filter: bool) -> AsyncIterator[Received]:
    """A subscription from the beginning on, whose deliveries are taken in the background."""
    received = Received()
    async with trio.open_nursery() as nursery:
        if by_filter:
            async with client.follow("plant/#", 0) as feed:
                nursery.start_soon(received.take_all, feed)
                yield received
                nursery.cancel_scope.cancel()
        else:
            async with client.subscribe(shard=SHARD, start=Start.earliest()) as subscription:
                nursery.start_soon(received.take_all, subscription)
                yield received
                nursery.cancel_scope.cancel()


async def shows(client: Client, shard: str = SHARD) -> None:
    """Until the server of a client has a shard."""
    with trio.fail_after(PATIENCE_S):
        while not await client.list_shards(shard):
            await trio.sleep(0.05)


def has_metric(server: Server, line: str) -> bool:
    return line in server.get("/metrics")[1]


BOTH_KINDS = pytest.mark.parametrize("by_filter", [False, True], ids=["one shard", "a filter"])


@BOTH_KINDS
@pytest.mark.slow("kills the owner of two servers, and waits for the takeover")
async def test_a_subscription_at_a_follower_goes_on_through_its_takeover(tmp_path: Path, by_filter: bool) -> None:
    with running(tmp_path, 2) as cluster:
        async with writing(cluster) as writer:
            owner, follower = await two(cluster)
            async with reading_from(follower) as reader:
                await shows(reader)
                session = await reader.wait_connected()
                async with receiving(reader, by_filter=by_filter) as received:
                    await received.have(30)
                    owner.kill()
                    await writer.wait_for(30)
                    assert await cluster.owner() is follower
                    await received.have(len(writer.acknowledged))
                    assert await reader.wait_connected() is session, "the connection did not go on"
                    # A filter finds what is created at the new owner.
                    if by_filter:
                        async with open_client(follower.tcp) as other:
                            await other.create_shard("plant/new", FILE_MODE)
                            await other.append("plant/new", [Record(value=b"0")])
                        await received.have(1, "plant/new")
        await check(cluster, writer)


@BOTH_KINDS
@pytest.mark.slow("kills a follower of three servers")
async def test_a_subscription_goes_on_at_another_follower(tmp_path: Path, by_filter: bool) -> None:
    with running(tmp_path, 3) as cluster:
        async with writing(cluster) as writer:
            owner = await cluster.owner()
            first, second = await cluster.followers(owner)
            for follower in (first, second):
                async with reading_from(follower) as reader:
                    await shows(reader)
            async with (
                reading_from(first, f"{first.tcp},{second.tcp},{owner.tcp}?read=follower") as reader,
                receiving(reader, by_filter=by_filter) as received,
            ):
                for end in (signal.SIGKILL, signal.SIGTERM):
                    await writer.wait_for(20)
                    await received.have(len(writer.acknowledged))
                    used, other = (first, second) if has_metric(first, "journal_subscriptions 1.0") else (second, first)
                    assert has_metric(used, "journal_subscriptions 1.0")
                    assert has_metric(other, "journal_subscriptions 0.0")
                    used.send(end)
                    await trio.to_thread.run_sync(used.wait)
                    await writer.wait_for(20)
                    await received.have(len(writer.acknowledged))
                    used.start()
                    await cluster.followers(owner)
                    async with reading_from(used) as again:
                        await shows(again)
        await check(cluster, writer)


@pytest.mark.slow("ends owners of three servers in several ways, and waits for takeovers")
async def test_subscriptions_go_on_through_many_takeovers_and_at_whatever_server_is_left(tmp_path: Path) -> None:
    """Each number comes once and in order to each subscription, whether it stays at its server or has to move."""
    with running(tmp_path, 3) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(1)
            for follower in await cluster.followers(await cluster.owner()):
                async with reading_from(follower) as reader:
                    await shows(reader)
            async with (
                open_client(f"{cluster.address}?read=follower") as first,
                open_client(f"{cluster.address}?read=follower") as second,
                receiving(first, by_filter=False) as one,
                receiving(second, by_filter=True) as every,
            ):
                for end in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
                    owner = await cluster.owner()
                    await writer.wait_for(20)
                    owner.send(end)
                    # Acknowledged by another one.
                    await writer.wait_for(20)
                    if end is signal.SIGSTOP:
                        owner.send(signal.SIGCONT)
                    else:
                        await trio.to_thread.run_sync(owner.wait)
                        owner.start()
                    for received in (one, every):
                        await received.have(len(writer.acknowledged))
                    await cluster.followers(await cluster.owner())
        await check(cluster, writer)


@BOTH_KINDS
@pytest.mark.slow("starts two servers, and writes more than a follower keeps in memory")
async def test_a_subscription_goes_on_when_the_follower_opens_its_directory_again(
    tmp_path: Path, by_filter: bool
) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, FILE_MODE)
            await writer.create_shard("other", FILE_MODE)
            await shows(reader)
            async with receiving(reader, by_filter=by_filter) as received:
                for number in range(40):
                    await writer.append("other", [Record(value=bytes(100_000))])
                    await writer.append(SHARD, [Record(value=b"%d" % number)])
                    if number % 5 == 0:
                        await received.have(number + 1)
                await received.have(40)
        assert "ends reads" in follower.log.read_text(), "the follower never opened its directory again"


@pytest.mark.slow("starts three servers, and suspends one")
async def test_a_subscription_waits_at_a_follower_that_is_further_behind(tmp_path: Path) -> None:
    """The shard does not exist there yet, or ends before: neither is an error, and nothing comes twice."""
    with running(tmp_path, 3) as cluster:
        owner = await cluster.owner()
        first, second = await cluster.followers(owner)
        async with open_client(owner.tcp) as writer:
            # It gets nothing of the log from here on.
            second.send(signal.SIGSTOP)
            await writer.create_shard(SHARD, FILE_MODE)
            await writer.append(SHARD, [Record(value=b"0"), Record(value=b"1")])
            async with reading_from(first) as direct:
                await shows(direct)
            async with (
                open_client(f"{first.tcp},{second.tcp}?read=follower") as reader,
                receiving(reader, by_filter=False) as one,
                receiving(reader, by_filter=True) as every,
            ):
                for received in (one, every):
                    await received.have(2)
                first.kill()
                second.send(signal.SIGCONT)
                await writer.append(SHARD, [Record(value=b"2")])
                for received in (one, every):
                    await received.have(3)
                    assert received.values[SHARD] == [0, 1, 2]


@pytest.mark.slow("starts two servers")
async def test_a_filter_at_a_follower_finds_new_shards_and_shows_their_deletion(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            async with receiving(reader, by_filter=True) as received:
                for number in range(3):
                    name = f"plant/{number}"
                    await writer.create_shard(name, FILE_MODE)
                    await writer.append(name, [Record(value=b"0")])
                    await received.have(1, name)
            async with reader.subscribe(shard="plant/0", start=Start.latest()) as subscription:
                await writer.delete_shard("plant/0")
                with trio.fail_after(PATIENCE_S), pytest.raises(ShardNotFoundError):
                    await anext(subscription)


@pytest.mark.slow("starts two servers")
async def test_a_group_is_for_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, FILE_MODE)
            await shows(reader)
            with pytest.raises(InvalidRequestError, match="read=follower"):
                async with reader.subscribe(shard=SHARD, group="g"):
                    pass
            connection = await reader.wait_connected()
            with pytest.raises(NotOwnerError) as refused:
                await connection.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, SHARD, group="g"))
            assert refused.value.owner == owner.tcp
            # The connection goes on, and the number is free.
            await connection.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, SHARD))


@pytest.mark.slow("starts two servers")
async def test_an_adapter_subscribes_at_a_follower_and_joins_groups_at_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with reading_from(follower):
            pass
        async with open_adapter(f"{cluster.address}?read=follower") as adapter:
            await adapter.create_shard(SHARD, FILE_MODE)
            await adapter.append(SHARD, [b"0"])
            with trio.fail_after(PATIENCE_S):
                while not await adapter.list_shards(SHARD):
                    await trio.sleep(0.05)
                async with aclosing(adapter.tail(SHARD, Start.earliest())) as tail:
                    delivery = await anext(tail)
                    assert [value_of(record) for record in delivery.records] == [0]
                    assert has_metric(follower, "journal_subscriptions 1.0")
                async with adapter.follow("#", 0) as feed:
                    item = await anext(feed)
                    while isinstance(item, Progress):
                        item = await anext(feed)
                    assert has_metric(follower, "journal_subscriptions 1.0")
                async with adapter.subscribe(SHARD, Start.earliest(), group="g") as member:
                    delivery = await anext(member)
                    assert [value_of(record) for record in delivery.records if not isinstance(record, Gap)] == [0]
                    assert has_metric(owner, "journal_subscriptions 1.0")


@pytest.mark.slow("starts two servers")
async def test_the_clients_of_a_follower_count_in_its_metrics(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, FILE_MODE)
            await shows(reader)
            async with receiving(reader, by_filter=False) as received:
                await writer.append(SHARD, [Record(value=b"0")])
                await received.have(1)
                await reader.fetch(SHARD, 0)
                with pytest.raises(NotOwnerError):
                    await reader.delete_shard(SHARD)
                page = follower.get("/metrics")[1]
                lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
                for name in ("journal_subscriptions", "journal_connections", "journal_follower"):
                    assert lines[name] == "1.0", name
                for name in ("journal_pushed_bytes_total", "journal_fetched_bytes_total", "journal_committed_lsn"):
                    assert float(lines[name]) > 0, name
                assert lines['journal_refusals_total{code="not_owner"}'] == "1.0"


async def offsets_until(subscription: Subscription, next_offset: int) -> list[int | Gap]:
    """The offsets of the records up to an offset, and the gaps."""
    found: list[int | Gap] = []
    with trio.fail_after(PATIENCE_S):
        async for delivery in subscription:
            records = read_records(delivery.batches, start_offset=delivery.first_offset)
            found += [record if isinstance(record, Gap) else record.offset for record in records]
            if delivery.next_offset >= next_offset:
                break
    return found


@pytest.mark.slow("starts two servers, and kills one")
async def test_what_was_trimmed_while_a_follower_was_down_is_a_gap(tmp_path: Path) -> None:
    """The subscription ended with `OffsetOutOfRangeError`."""
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, FILE_MODE)
            await writer.append(SHARD, [b"0", b"1", b"2"])
            await shows(reader)
            async with reader.subscribe(shard=SHARD, start=Start.earliest()) as subscription:
                assert await offsets_until(subscription, 3) == [0, 1, 2]
                follower.kill()
                await writer.append(SHARD, [b"3", b"4", b"5", b"6"])
                await writer.trim(SHARD, 5)
                follower.start()
                assert await offsets_until(subscription, 7) == [Gap(3, 5), 5, 6]
