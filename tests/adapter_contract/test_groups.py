"""Members of a group share the records of a shard; what a member leaves behind goes to the others."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter, Subscription
from shards.errors import InvalidNameError
from shards.position import Start
from tests.adapter_contract.reading import assert_silent, next_delivery, offsets_of, values_of
from tests.patience import PATIENCE_S


async def fill(adapter: StorageAdapter, shard: str, count: int) -> None:
    await adapter.create_shard(shard, exist_ok=True)
    for number in range(count):
        await adapter.append(shard, [b"%d" % number])


async def position(adapter: StorageAdapter, shard: str, group: str) -> int | None:
    cursor = await adapter.get_cursor(shard, f"group/{group}")
    return None if cursor is None else cursor.offset


async def wait_for_position(adapter: StorageAdapter, shard: str, group: str, offset: int) -> None:
    """An acknowledgement is stored soon, not at once: read until it is."""
    with trio.fail_after(PATIENCE_S):
        while await position(adapter, shard, group) != offset:
            await trio.lowlevel.checkpoint()


async def test_members_share_the_records_and_each_goes_to_one(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 0)
    async with (
        adapter.subscribe("s", Start.earliest(), group="g") as left,
        adapter.subscribe("s", Start.earliest(), group="g") as right,
    ):
        await fill(adapter, "s", 20)
        taken: dict[str, list[int]] = {"left": [], "right": []}
        everything = trio.Event()

        async def consume(name: str) -> None:
            async for delivery in left if name == "left" else right:
                taken[name] += offsets_of(delivery.records)
                await delivery.acknowledge()
                if sum(map(len, taken.values())) == 20:
                    everything.set()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume, "left")
                nursery.start_soon(consume, "right")
                await everything.wait()
                nursery.cancel_scope.cancel()
        assert sorted(taken["left"] + taken["right"]) == list(range(20))
        assert taken["left"] == sorted(taken["left"])
        assert taken["left"]
        assert taken["right"]
        await wait_for_position(adapter, "s", "g", 20)


async def test_what_a_lost_member_held_goes_to_the_others_in_order(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 0)
    async with adapter.subscribe("s", Start.earliest(), group="g") as stays:
        async with adapter.subscribe("s", Start.earliest(), group="g") as leaves:
            await fill(adapter, "s", 6)
            held = values_of((await next_delivery(leaves)).records)
        found: list[bytes] = []
        while len(set(found)) < 6:
            found += values_of((await next_delivery(stays, acknowledge=True)).records)
        assert len(found) == 6
        assert [value for value in found if value in held] == held
        await wait_for_position(adapter, "s", "g", 6)


async def test_a_group_continues_where_it_stopped(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 6)
    async with adapter.subscribe("s", Start.earliest(), group="g") as subscription:
        done = 0
        while done < 3:
            done = (await next_delivery(subscription, acknowledge=True)).next_offset
        await wait_for_position(adapter, "s", "g", done)
        # The next one is delivered and never acknowledged.
        if done < 6:
            await next_delivery(subscription)
    await adapter.append("s", [b"6"])
    async with adapter.subscribe("s", Start.latest(), group="g") as subscription:
        found: list[int] = []
        while not found or found[-1] < 6:
            found += offsets_of((await next_delivery(subscription, acknowledge=True)).records)
    assert found == list(range(done, 7))


async def test_the_position_waits_for_the_lowest_unacknowledged_record(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 0)
    async with adapter.subscribe("s", Start.earliest(), group="g") as subscription:
        deliveries = []
        for number in range(3):
            await adapter.append("s", [b"%d" % number])
            deliveries.append(await next_delivery(subscription))
        await deliveries[2].acknowledge()
        await deliveries[1].acknowledge()
        cursor = await adapter.get_cursor("s", "group/g")
        assert cursor is None or cursor.offset == 0
        await deliveries[0].acknowledge()
        await wait_for_position(adapter, "s", "g", 3)


async def test_groups_do_not_disturb_each_other(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 3)
    for group in ("g", "h"):
        async with adapter.subscribe("s", Start.earliest(), group=group) as subscription:
            found: list[bytes] = []
            while len(found) < 3:
                found += values_of((await next_delivery(subscription, acknowledge=True)).records)
            assert found == [b"0", b"1", b"2"]


async def test_a_group_on_a_filter_shares_every_matching_shard(adapter: StorageAdapter) -> None:
    await fill(adapter, "a/1", 3)
    async with (
        adapter.subscribe("a/#", Start.earliest(), group="g") as left,
        adapter.subscribe("a/#", Start.earliest(), group="g") as right,
    ):
        await fill(adapter, "a/2", 3)
        found: list[tuple[str, bytes]] = []
        everything = trio.Event()

        async def consume(member: object) -> None:
            async for delivery in left if member == "left" else right:
                found.extend((delivery.shard, value) for value in values_of(delivery.records))
                await delivery.acknowledge()
                if len(found) == 6:
                    everything.set()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume, "left")
                nursery.start_soon(consume, "right")
                await everything.wait()
                nursery.cancel_scope.cancel()
        assert sorted(found) == [(shard, b"%d" % number) for shard in ("a/1", "a/2") for number in range(3)]


async def test_a_group_has_a_position_in_a_shard_from_the_moment_it_is_created(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a/1")
    async with adapter.subscribe("a/#", group="g") as subscription:
        await fill(adapter, "a/2", 2)
        await next_delivery(subscription)
    async with adapter.subscribe("a/#", Start.latest(), group="g") as subscription:
        found: list[bytes] = []
        while len(found) < 2:
            found += values_of((await next_delivery(subscription, acknowledge=True)).records)
        assert found == [b"0", b"1"]


async def test_a_member_with_nothing_left_to_do_waits(adapter: StorageAdapter) -> None:
    await fill(adapter, "s", 1)
    async with adapter.subscribe("s", Start.earliest(), group="g") as subscription:
        await next_delivery(subscription, acknowledge=True)
        await assert_silent(subscription)
        await adapter.append("s", [b"more"])
        assert values_of((await next_delivery(subscription)).records) == [b"more"]


async def test_a_bad_group_name_is_refused(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    with pytest.raises(InvalidNameError):
        async with adapter.subscribe("s", group="x" * 300):
            pass


async def test_in_a_sticky_group_each_shard_goes_to_one_member_while_it_is_there(adapter: StorageAdapter) -> None:
    names = [f"a/{number}" for number in range(12)]
    for name in names:
        await adapter.create_shard(name)
    taken: dict[str, list[tuple[str, bytes]]] = {"left": [], "right": []}

    async def consume(subscription: Subscription, name: str) -> None:
        async for delivery in subscription:
            taken[name] += [(delivery.shard, value) for value in values_of(delivery.records)]
            await delivery.acknowledge()

    async def fill_all(count: int) -> None:
        before = sum(map(len, taken.values()))
        for number in range(count):
            for name in names:
                await adapter.append(name, [b"%d" % number])
        with trio.fail_after(PATIENCE_S):
            while sum(map(len, taken.values())) < before + count * len(names):
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        async with adapter.subscribe("a/+", Start.earliest(), group="sticky/g") as left:
            nursery.start_soon(consume, left, "left")
            async with adapter.subscribe("a/+", Start.earliest(), group="sticky/g") as right:
                nursery.start_soon(consume, right, "right")
                await fill_all(5)
                of_left, of_right = ({shard for shard, _ in taken[name]} for name in ("left", "right"))
                assert of_left | of_right == set(names)
                assert not of_left & of_right
                assert of_left
                assert of_right
            await fill_all(3)
            assert {shard for shard, _ in taken["left"]} == set(names)
        for name in names:
            values = [value for side in ("left", "right") for shard, value in taken[side] if shard == name]
            assert sorted(values) == sorted(b"%d" % number for number in (*range(5), *range(3)))
        nursery.cancel_scope.cancel()
