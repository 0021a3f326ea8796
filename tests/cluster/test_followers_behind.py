"""A client whose subscription moves to a follower that has less of the log: it waits there, and nothing goes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from journal.client import Client
from journal.client.address import Address
from journal.client.opening import open_client
from journal.client.receiver import Delivery
from journal.client.subscription import Feed, Subscription
from journal.client.transport import Transport, open_transport
from journal.protocol import Op, messages
from shards.errors import NotOwnerError, ShardNotFoundError
from shards.format.batch import read_records
from shards.format.record import Gap
from shards.model import Mode, ShardConfig
from shards.position import Start
from tests.cluster.followed import Followed, followed
from tests.patience import PATIENCE_S

FILE_MODE = ShardConfig(mode=Mode.FILE)


@attrs.define
class Moving:
    """A client that reads, first at the owner, and from `move` on at the follower.

    Attributes:
        client: The client.
    """

    client: Client
    _to: list[str]

    async def move(self, address: str) -> None:
        """Lose the connection, and go on at another server, which has got all requests when this returns."""
        self._to[0] = address
        before = await self.client.wait_connected()
        before.close()
        with trio.fail_after(PATIENCE_S):
            while (connection := await self.client.wait_connected()) is before:
                await trio.sleep(0.01)
            await connection.exchange(Op.PING, b"")
        assert self.client.server is not None
        assert self.client.server.is_follower


@asynccontextmanager
async def moving(both: Followed) -> AsyncIterator[Moving]:
    to = [both.owner_tcp]

    async def connect(nursery: trio.Nursery) -> Transport:
        return await open_transport(Address.parse_all(to[0])[0], nursery)

    async with open_client(f"{both.owner_tcp}?read=follower", connect=connect) as client:
        yield Moving(client, to)


async def take(receiver: Subscription | Feed, count: int) -> list[bytes]:
    """So many values."""
    values: list[bytes] = []
    with trio.fail_after(PATIENCE_S):
        while len(values) < count:
            item = await anext(receiver)
            if isinstance(item, Delivery):
                for record in read_records(item.batches, start_offset=item.first_offset):
                    assert not isinstance(record, Gap)
                    values.append(bytes(record.value or b""))
    return values


async def raw_subscribe(client: Client, **request: object) -> messages.SubscribeReply:
    connection = await client.wait_connected()
    reply: messages.SubscribeReply = await connection.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, **request))  # type: ignore[arg-type]
    return reply


async def has_answered(client: Client) -> None:
    """The server has answered what was sent before, or has begun to wait."""
    await trio.testing.wait_all_tasks_blocked()
    await (await client.wait_connected()).exchange(Op.PING, b"")


async def test_a_follower_that_has_not_read_of_a_creation_begins_later(tmp_path: Path) -> None:
    async with followed(tmp_path) as both, open_client(f"{both.follower_tcp}?read=follower") as reader:
        await both.caught_up()
        both.log.is_held = True
        shard_id = (await both.owner.create_shard("a", FILE_MODE)).shard_id
        # A client that has not seen it gets the answer of this server.
        with pytest.raises(ShardNotFoundError):
            await raw_subscribe(reader, shard="a")
        replies: list[messages.SubscribeReply] = []

        async def subscribe() -> None:
            replies.append(await raw_subscribe(reader, shard="a", seen_lsn=shard_id))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(subscribe)
                await has_answered(reader)
                assert not replies
                both.log.is_held = False
        assert replies[0].lsn >= shard_id


async def test_a_subscription_that_waits_to_begin_ends_with_the_reads(tmp_path: Path) -> None:
    async with followed(tmp_path) as both, open_client(f"{both.follower_tcp}?read=follower") as reader:
        engine = await both.caught_up()
        connection = await reader.wait_connected()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_refused, reader)
                await has_answered(reader)
                engine.end_following()
            while connection.reason is None:
                await trio.sleep(0.01)
        assert isinstance(connection.reason, NotOwnerError)


async def _refused(reader: Client) -> None:
    with pytest.raises(NotOwnerError):
        await raw_subscribe(reader, filter="#", seen_lsn=1000)


@pytest.mark.parametrize("has_older", [False, True])
async def test_subscriptions_that_move_to_a_follower_without_their_shard_wait_for_it(
    tmp_path: Path, has_older: bool
) -> None:
    """They get nothing of an older shard of that name, which the follower may still have."""
    async with followed(tmp_path) as both, moving(both) as reader, open_client(both.owner_tcp) as writer:
        if has_older:
            await writer.create_shard("a", FILE_MODE)
            await writer.append("a", [b"old"] * 5)
        await both.caught_up()
        both.log.is_held = True
        if has_older:
            await writer.delete_shard("a")
        await writer.create_shard("a", FILE_MODE)
        await writer.append("a", [b"0", b"1"])
        async with (
            reader.client.subscribe(shard="a", start=Start.earliest()) as one,
            reader.client.follow("#", 0) as every,
        ):
            assert await take(one, 2) == await take(every, 2) == [b"0", b"1"]
            await reader.move(both.follower_tcp)
            both.log.is_held = False
            await writer.append("a", [b"2"])
            assert await take(one, 1) == await take(every, 1) == [b"2"]


async def test_a_filter_that_has_seen_a_deletion_does_not_get_the_shard_again(tmp_path: Path) -> None:
    async with followed(tmp_path) as both, moving(both) as reader, open_client(both.owner_tcp) as writer:
        await writer.create_shard("a", FILE_MODE)
        await writer.append("a", [b"0"])
        await both.caught_up()
        both.log.is_held = True
        async with reader.client.subscribe(topic_filter="#", start=Start.earliest()) as every:
            assert await take(every, 1) == [b"0"]
            await writer.delete_shard("a")
            with trio.fail_after(PATIENCE_S):
                while every._positions:
                    await trio.sleep(0.01)
            # As before the first progress.
            every._resume = Start.earliest()
            await reader.move(both.follower_tcp)
            both.log.is_held = False
            await writer.create_shard("b", FILE_MODE)
            await writer.append("b", [b"1"])
            assert await take(every, 1) == [b"1"]
