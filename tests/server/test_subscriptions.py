"""Push subscriptions: by shard and by filter, credits, groups, and shards that go away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from journal.client import open_client
from journal.client.reconnection import Reconnection
from journal.protocol import Op, decode_reply, frames, messages
from journal.protocol.errors import UnknownSubscriptionError
from shards.back_off import BackOff
from shards.errors import (
    InvalidNameError,
    InvalidRequestError,
    LimitExceededError,
    OffsetOutOfRangeError,
    ShardNotFoundError,
)
from shards.position import Start
from tests.patience import PATIENCE_S
from tests.server.serving import FILE, MEMORY, RawClient, batch_of, serving, values_of


async def subscribe(client: RawClient, number: int = 1, **request: Any) -> messages.SubscribeReply:
    reply: messages.SubscribeReply = await client.call(Op.SUBSCRIBE, messages.SubscribeRequest(number, **request))
    return reply


async def pushed_values(client: RawClient, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        push = await client.push()
        values.extend(values_of(push.batches, push.first_offset))
    return values


async def assert_nothing_comes(client: RawClient, op: Op = Op.PUSH) -> None:
    """A PING is answered after whatever was sent before it."""
    for _ in range(2):
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.call(Op.PING)
    assert [frame for frame in client.others if frame.op == op] == []


@pytest.mark.parametrize("config", [FILE, MEMORY], ids=["file", "memory"])
async def test_a_shard_is_pushed_from_its_start_and_on(tmp_path: Path, config: Any) -> None:
    async with serving(tmp_path) as served, served.client() as client, served.client() as writer:
        handle = await writer.open("a", config)
        await writer.append_values(handle, b"0", b"1")
        await subscribe(client, shard="a", start="earliest")
        added = await client.event()
        assert (added.event, added.name, added.offset) == ("added", "a", 0)
        assert added.shard_id == served.engine.parts.table.by_name("a").shard_id
        push = await client.push()
        assert (push.subscription, push.shard_ref) == (1, added.shard_ref)
        assert (push.first_offset, push.next_offset) == (0, 2)
        await writer.append_values(handle, b"2")
        push = await client.push()
        assert (push.first_offset, push.next_offset, values_of(push.batches)) == (2, 3, [b"2"])


async def test_a_subscription_begins_where_it_was_asked_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for number in range(5):
            await client.append(handle, batch_of(b"%d" % number, timestamp_us=1000 * number))
        await subscribe(client, 1, shard="a", start="offset", value=3)
        assert await pushed_values(client, 2) == [b"3", b"4"]
        await subscribe(client, 2, shard="a", start="time", value=2000)
        assert await pushed_values(client, 3) == [b"2", b"3", b"4"]
        latest = await subscribe(client, 3, shard="a", start="latest")
        added = await client.receive(
            lambda frame: frame.op == Op.SHARD_EVENT and decode_reply(Op.SHARD_EVENT, frame.body).subscription == 3
        )
        # Known before the first push: this is where a reader goes on whose connection is lost before anything comes.
        assert decode_reply(Op.SHARD_EVENT, added.body).offset == 5
        await subscribe(client, 4, shard="a", start="lsn", value=latest.lsn)
        push = await client.push()
        assert (push.subscription, push.first_offset) == (4, 4)


async def test_a_subscription_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_subscriptions_per_connection=2) as served, served.client() as client:
        await client.open("a")
        with pytest.raises(InvalidRequestError, match="either a shard or a filter"):
            await subscribe(client)
        with pytest.raises(InvalidRequestError, match="either a shard or a filter"):
            await subscribe(client, shard="a", filter="#")
        with pytest.raises(InvalidRequestError, match="offset"):
            await subscribe(client, filter="#", start="offset")
        with pytest.raises(InvalidNameError):
            await subscribe(client, filter="a/#/b")
        with pytest.raises(ShardNotFoundError):
            await subscribe(client, shard="none")
        with pytest.raises(OffsetOutOfRangeError):
            await subscribe(client, shard="a", start="offset", value=1)
        await subscribe(client, 1, shard="a")
        with pytest.raises(InvalidRequestError, match="subscription 1 is already open"):
            await subscribe(client, 1, shard="a")
        await subscribe(client, 2, shard="a")
        with pytest.raises(LimitExceededError, match=r"limits\.max_subscriptions_per_connection"):
            await subscribe(client, 3, shard="a")
        assert served.engine.parts.subscriptions.count == 2


async def test_a_filter_includes_later_shards_but_not_those_with_a_dollar(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client, served.client() as writer:
        await writer.append_values(await writer.open("a/1"), b"old")
        await writer.append_values(await writer.open("b/1"), b"other")
        await subscribe(client, filter="+/1", start="latest")
        await subscribe(client, 2, filter="#", start="latest")
        for name in ("$sys/1", "c/1", "c/2", "a/1"):
            await writer.append_values(await writer.open(name), name.encode())
        pushed: dict[int, list[bytes]] = {1: [], 2: []}
        while sum(map(len, pushed.values())) < 5:
            push = await client.push()
            pushed[push.subscription].extend(values_of(push.batches, push.first_offset))
        assert sorted(pushed[1]) == [b"a/1", b"c/1"]
        assert sorted(pushed[2]) == [b"a/1", b"c/1", b"c/2"]
        await assert_nothing_comes(client)


async def test_credit_bounds_what_is_pushed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        size = len(batch_of(bytes(1000)))
        for _ in range(20):
            await client.append_values(handle, bytes(1000))
        await subscribe(client, shard="a", start="earliest", credit_bytes=size * 3)
        assert len(await pushed_values(client, 3)) == 3
        await assert_nothing_comes(client)
        # Credit of one byte is credit: the batch overdraws it, and that has to be given back first.
        await client.send(frames.build_credit(1, 1))
        assert len(await pushed_values(client, 1)) == 1
        await client.send(frames.build_credit(1, size - 1))
        await assert_nothing_comes(client)
        await client.send(frames.build_credit(1, size * 100))
        assert len(await pushed_values(client, 16)) == 16


async def test_no_credit_pushes_nothing_and_holds_up_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        await subscribe(client, 1, shard="a", start="earliest", credit_bytes=0)
        await subscribe(client, 2, shard="a", start="earliest")
        for number in range(5):
            await client.append_values(handle, b"%d" % number)
        assert await pushed_values(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await assert_nothing_comes(client)


async def test_after_unsubscribing_nothing_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        await subscribe(client, shard="a", start="earliest")
        await client.append_values(handle, b"0")
        await client.push()
        await client.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(1))
        await client.append_values(handle, b"1")
        await assert_nothing_comes(client)
        with pytest.raises(UnknownSubscriptionError, match="subscription 1 is not open"):
            await client.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(1))
        await subscribe(client, shard="a", start="offset", value=1)
        assert await pushed_values(client, 1) == [b"1"]
        # Late credit and acknowledgements are no fault of the client.
        await client.send(frames.build_credit(9, 1), frames.build_acknowledge(9, 1, 0, 1))
        await client.call(Op.PING)
        assert served.engine.parts.subscriptions.count == 1


async def test_a_subscription_that_is_ended_in_the_same_write_leaves_no_member(tmp_path: Path) -> None:
    """UNSUBSCRIBE was refused as of an unknown subscription. Then it began, and nothing read its records."""
    async with serving(tmp_path) as served, served.client() as left, served.client() as stays:
        handle = await stays.open("a")
        await subscribe(stays, shard="a", start="earliest", group="g")
        began, subscribing = left.start(Op.SUBSCRIBE, messages.SubscribeRequest(1, "a", start="earliest", group="g"))
        ended, unsubscribing = left.start(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(1))
        await left.send(subscribing, unsubscribing)
        await left.reply_to(Op.UNSUBSCRIBE, ended)
        await left.reply_to(Op.SUBSCRIBE, began)
        assert served.engine.parts.subscriptions.count == 1
        for number in range(10):
            await stays.append_values(handle, b"%d" % number)
        assert await pushed_values(stays, 10) == [b"%d" % number for number in range(10)]
        await assert_nothing_comes(left)


async def test_a_subscription_can_be_asked_for_ended_and_asked_for_again_in_one_write(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        await client.append_values(handle, b"0")
        ask = messages.SubscribeRequest(1, "a", start="earliest", credit_bytes=1 << 20, group="g")
        end = messages.UnsubscribeRequest(1)
        requests = [(Op.SUBSCRIBE, ask), (Op.UNSUBSCRIBE, end), (Op.SUBSCRIBE, ask)]
        started = [(op, *client.start(op, message)) for op, message in requests]
        await client.send(*(frame for _, _, frame in started))
        for op, correlation, _ in started:
            await client.reply_to(op, correlation)
        assert await pushed_values(client, 1) == [b"0"]
        assert served.engine.parts.subscriptions.count == 1


async def test_members_that_leave_while_their_client_connects_again_are_gone(tmp_path: Path) -> None:
    """As those of a broker that learns, when it has its store again, that their sessions are at another broker now."""
    async with serving(tmp_path) as served, served.client() as other, trio.open_nursery() as nursery:
        await other.open("a")

        async def be_member(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                async with client.subscribe(shard="a", start=Start.earliest(), group="g") as subscription:
                    task_status.started()
                    await subscription.__anext__()

        async def end_members(_connection: Reconnection) -> None:
            for scope in scopes:
                scope.cancel()

        async with open_client(served.address, name="c", backoff=BackOff(0.001, 0.01)) as client:
            with client.before_resending(end_members):
                # Which of the tasks are quicker than the one that writes is up to chance.
                for _ in range(3):
                    scopes = [trio.CancelScope() for _ in range(8)]
                    for scope in scopes:
                        await nursery.start(be_member, scope)
                    assert served.engine.parts.subscriptions.count == len(scopes)
                    await other.call(Op.END_CLIENT, messages.EndClientRequest("c"))
                    with trio.fail_after(PATIENCE_S):
                        while not all(scope.cancelled_caught for scope in scopes):
                            await trio.testing.wait_all_tasks_blocked(0.01)
                    await client.ping()
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert served.engine.parts.subscriptions.count == 0


async def test_credit_in_the_same_write_as_its_subscription_counts(tmp_path: Path) -> None:
    """A client that connects again returns credit of what it received before, at once. It was lost."""
    async with serving(tmp_path) as served, served.client() as client:
        await client.append_values(await client.open("a"), b"0")
        _, subscribing = client.start(Op.SUBSCRIBE, messages.SubscribeRequest(1, "a", start="earliest", credit_bytes=0))
        await client.send(subscribing, frames.build_credit(1, 1))
        assert await pushed_values(client, 1) == [b"0"]


async def test_a_lost_connection_ends_its_subscriptions(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with served.client() as client:
            await client.open("a")
            await subscribe(client, 1, shard="a")
            await subscribe(client, 2, filter="#")
            await subscribe(client, 3, filter="#", group="g")
        with trio.fail_after(PATIENCE_S):
            while served.engine.parts.subscriptions.count or served.engine.parts.table.by_name("a").listeners:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_deleted_shard_ends_its_part_of_a_subscription(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client, served.client() as other:
        handles = {name: await other.open(name) for name in ("a", "b")}
        await subscribe(client, 1, filter="#", start="earliest")
        await subscribe(client, 2, shard="a", start="earliest")
        for handle in handles.values():
            await other.append_values(handle, b"0")
        await pushed_values(client, 3)
        old_id = served.engine.parts.table.by_name("a").shard_id
        client.others.clear()
        await other.call(Op.DELETE_SHARD, messages.NameRequest("a"))
        removed = [await client.event() for _ in range(2)]
        assert sorted((event.subscription, event.event, event.name) for event in removed) == [
            (1, "removed", "a"),
            (2, "removed", "a"),
        ]
        # A new shard of that name is another shard: a filter has it from its beginning.
        handle = await other.open("a")
        await other.append_values(handle, b"new")
        while (added := await client.event()).event == "progress":
            # Progress with the deletion may still come.
            pass
        assert (added.subscription, added.event, added.name, added.offset) == (1, "added", "a", 0)
        assert added.shard_id != old_id
        push = await client.push()
        assert (push.subscription, push.shard_ref, values_of(push.batches)) == (1, added.shard_ref, [b"new"])
        await other.append_values(handles["b"], b"1")
        assert await pushed_values(client, 1) == [b"1"]
        await assert_nothing_comes(client)


async def test_a_trim_past_a_reader_shows_as_a_gap(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for number in range(4):
            await client.append_values(handle, b"%d" % number)
        await subscribe(client, shard="a", start="earliest", credit_bytes=0)
        await client.call(Op.TRIM, messages.TrimRequest("a", 2))
        await client.send(frames.build_credit(1, 1 << 20))
        first, second = await client.push(), await client.push()
        assert (first.first_offset, first.next_offset, values_of(first.batches)) == (0, 2, [])
        assert (second.first_offset, values_of(second.batches, 2)) == (2, [b"2", b"3"])


async def test_a_filter_subscription_gets_its_progress(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        reply = await subscribe(client, filter="a/#", start="earliest")
        await client.append_values(await client.open("a/1"), b"0")
        push = await client.push()
        lsn = served.engine.parts.table.by_name("a/1").published_lsn
        with trio.fail_after(PATIENCE_S):
            while True:
                event = await client.event()
                if event.event == "progress" and event.lsn >= lsn:
                    break
        assert event.lsn >= lsn > reply.lsn
        assert values_of(push.batches) == [b"0"]


# Groups


async def test_a_group_shares_records_and_a_lost_members_come_again(tmp_path: Path) -> None:
    """Every record goes to one live member; what a dead one held goes to the others; acknowledged ones never do."""
    async with serving(tmp_path) as served, served.client() as writer, served.client() as first:
        handle = await writer.open("a")
        await subscribe(first, shard="a", start="earliest", group="g")
        async with served.client() as second:
            await subscribe(second, shard="a", start="earliest", group="g")
            for number in range(20):
                await writer.append_values(handle, b"%d" % number)
            ranges: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}
            held: list[int] = []
            async with trio.open_nursery() as nursery:

                async def take(name: str, client: RawClient) -> None:
                    while True:
                        push = await client.push()
                        offsets = range(push.first_offset, push.next_offset)
                        assert not set(offsets) & set(held), "two live members hold the same records"
                        held.extend(offsets)
                        ranges[name].append((push.first_offset, push.next_offset))
                        if len(held) == 20:
                            nursery.cancel_scope.cancel()

                nursery.start_soon(take, "first", first)
                nursery.start_soon(take, "second", second)
            assert sorted(held) == list(range(20))
            assert ranges["first"]
            assert ranges["second"]
            acknowledged, *lost = ranges["second"]
            await second.send(frames.build_acknowledge(1, 1, *acknowledged))
            await second.call(Op.PING)
        again: set[int] = set()
        expected = {offset for first_offset, next_offset in lost for offset in range(first_offset, next_offset)}
        while again != expected:
            push = await first.push()
            offsets = set(range(push.first_offset, push.next_offset))
            assert not again & offsets
            again |= offsets
            assert again <= expected
        await assert_nothing_comes(first)
        for first_offset, next_offset in (*ranges["first"], *lost):
            await first.send(frames.build_acknowledge(1, 1, first_offset, next_offset))
        with trio.fail_after(PATIENCE_S):
            while True:
                cursor = (await writer.call(Op.CURSOR_GET, messages.CursorRequest("a", "group/g"))).cursor
                if cursor is not None and cursor.offset == 20:
                    break


async def test_a_group_continues_where_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("a")
        for number in range(4):
            await writer.append_values(handle, b"%d" % number)
        async with served.client() as member:
            await subscribe(member, filter="#", start="earliest", group="g")
            added = await member.event()
            for _ in range(4):
                push = await member.push()
                if push.next_offset <= 2:
                    acknowledge = frames.build_acknowledge(1, added.shard_ref, push.first_offset, push.next_offset)
                    await member.send(acknowledge)
            with trio.fail_after(PATIENCE_S):
                while (await writer.call(Op.CURSOR_LIST, messages.CursorListRequest("a"))).cursors == []:
                    pass
                while (await writer.call(Op.CURSOR_LIST, messages.CursorListRequest("a"))).cursors[0].offset < 2:
                    pass
        async with served.client() as member:
            await subscribe(member, filter="#", start="earliest", group="g")
            assert await pushed_values(member, 2) == [b"2", b"3"]
            await writer.append_values(await writer.open("later"), b"new")
            assert await pushed_values(member, 1) == [b"new"]


async def test_a_groups_member_gets_no_more_than_its_credit(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as member, served.client() as writer:
        handle = await writer.open("a")
        size = len(batch_of(bytes(1000)))
        for _ in range(20):
            await writer.append_values(handle, bytes(1000))
        await subscribe(member, shard="a", start="earliest", group="g", credit_bytes=3 * size)
        assert len(await pushed_values(member, 3)) == 3
        await assert_nothing_comes(member)
        async with served.client() as other:
            await subscribe(other, shard="a", group="g", credit_bytes=1 << 20)
            assert len(await pushed_values(other, 17)) == 17


async def test_a_group_on_a_shard_that_is_not_there_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        with pytest.raises(ShardNotFoundError):
            await subscribe(client, shard="a", group="g")
        with pytest.raises(InvalidNameError):
            await subscribe(client, filter="#", group="")
        await client.open("a")
        await subscribe(client, shard="a", group="g", start="earliest")
        await client.append_values(await client.open("a"), b"0")
        assert await pushed_values(client, 1) == [b"0"]


async def test_a_deleted_shard_ends_its_part_of_a_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as member, served.client() as other:
        handle = await other.open("a")
        await subscribe(member, filter="#", start="earliest", group="g")
        await other.append_values(handle, b"0")
        added = await member.event()
        await member.push()
        await other.call(Op.DELETE_SHARD, messages.NameRequest("a"))
        removed = await member.event()
        assert (removed.event, removed.name, removed.shard_ref) == ("removed", "a", added.shard_ref)
        await other.append_values(await other.open("a"), b"new")
        added = await member.event()
        assert (added.event, added.name) == ("added", "a")
        assert added.shard_ref != removed.shard_ref
        push = await member.push()
        assert (push.shard_ref, values_of(push.batches)) == (added.shard_ref, [b"new"])
