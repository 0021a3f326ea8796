"""What was acknowledged as durable is there when the store is opened again; producers stay exactly-once across it."""

from __future__ import annotations

import pytest
import trio

from shards.errors import (
    InvalidRequestError,
    ShardNotFoundError,
    StaleEpochError,
    UnknownProducerError,
    VersionConflictError,
)
from shards.format import batch as batches
from shards.format.record import Record
from shards.model import AckLevel, Mode, Retention, ShardConfig
from shards.position import Start
from tests.adapter_contract.conftest import Engine, Opening
from tests.adapter_contract.reading import next_delivery, read_all, values_of


async def test_records_shards_and_settings_survive(opening: Opening) -> None:
    config = ShardConfig(retention=Retention(max_age_s=3600), index_keys=True, index_tags=True)
    async with opening() as adapter:
        created = await adapter.create_shard("s", config)
        for number in range(6):
            await adapter.append("s", [Record(b"%d" % number, key=b"k%d" % (number % 2), tags=("t",))])
        await adapter.trim("s", 1)
        await adapter.create_shard("gone")
        await adapter.delete_shard("gone")
        before = await read_all(adapter, "s", 1)
    async with opening() as adapter:
        info = await adapter.describe_shard("s")
        assert (info.shard_id, info.config, info.start_offset, info.next_offset) == (created.shard_id, config, 1, 6)
        assert await read_all(adapter, "s", 1) == before
        assert values_of((await adapter.read_by_key("s", b"k1", from_offset=1)).records) == [b"1", b"3", b"5"]
        assert values_of((await adapter.read_by_tag("s", "t", from_offset=1)).records) == [b"1", b"2", b"3", b"4", b"5"]
        with pytest.raises(ShardNotFoundError):
            await adapter.describe_shard("gone")
        assert (await adapter.append("s", [b"6"])).base_offset == 6
        assert (await adapter.create_shard("gone")).shard_id > created.shard_id


async def test_an_emptied_shard_does_not_give_offsets_out_again(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"1", b"2"])
        await adapter.trim("s", 2)
    async with opening() as adapter:
        assert (await adapter.append("s", [b"3"])).base_offset == 2


async def test_a_memory_mode_shard_never_gives_an_offset_out_twice(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s", ShardConfig(mode=Mode.MEMORY))
        appended = await adapter.append("s", [b"1", b"2"])
        assert appended.level is AckLevel.MEMORY
    async with opening() as adapter:
        assert (await adapter.append("s", [b"3"])).base_offset >= 2
        assert (await adapter.describe_shard("s")).config.mode is Mode.MEMORY


async def test_cursors_and_state_survive_with_their_versions(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"v"] * 5)
        cursor = await adapter.commit_cursor("s", "c", 3)
        state = await adapter.put_state(b"k", b"v")
    async with opening() as adapter:
        assert await adapter.get_cursor("s", "c") == cursor
        assert await adapter.get_state(b"k") == state
        with pytest.raises(VersionConflictError):
            await adapter.put_state(b"k", b"w", expected_version=0)
        assert (await adapter.put_state(b"k", b"w", expected_version=state.version)).version > state.version


async def test_a_group_continues_from_its_stored_position(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"1"])
        async with adapter.subscribe("s", Start.earliest(), group="g") as subscription:
            await next_delivery(subscription, acknowledge=True)
            await adapter.append("s", [b"2"])
            await next_delivery(subscription)
            await adapter.put_state(b"barrier", b"")
    async with opening() as adapter, adapter.subscribe("s", Start.latest(), group="g") as subscription:
        assert values_of((await next_delivery(subscription)).records)[-1] == b"2"


async def test_a_producers_batch_is_stored_once_across_openings(surviving_engine: Engine, opening: Opening) -> None:
    def numbered(value: bytes, sequence: int) -> bytes:
        return batches.encode_values(
            [value], timestamp_us=1, producer_id=who.producer_id, producer_epoch=who.epoch, sequence=sequence
        )

    async with opening() as adapter:
        await adapter.create_shard("s")
        who = await adapter.open_producer("p")
        if surviving_engine.numbers_appends:
            with pytest.raises(InvalidRequestError, match="numbers what it sends"):
                await adapter.append_batch("s", numbered(b"1", 0))
            return
        first = await adapter.append_batch("s", numbered(b"1", 0))
        again = await adapter.append_batch("s", numbered(b"1", 0))
        assert (first.duplicate, again.duplicate, again.base_offset) == (False, True, 0)
    async with opening() as adapter:
        assert (await adapter.append_batch("s", numbered(b"1", 0))).duplicate
        assert not (await adapter.append_batch("s", numbered(b"2", 1))).duplicate
        assert values_of(await read_all(adapter, "s")) == [b"1", b"2"]
        newer = await adapter.open_producer("p")
        assert newer.epoch > who.epoch
        with pytest.raises(StaleEpochError):
            await adapter.append_batch("s", numbered(b"3", 2))
        stranger = batches.encode_values([b"x"], timestamp_us=1, producer_id=999_999, producer_epoch=1, sequence=0)
        with pytest.raises(UnknownProducerError):
            await adapter.append_batch("s", stranger)


async def test_giving_up_waiting_for_stored_records_loses_none(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        for number in range(20):
            await adapter.append("s", [b"%d" % number])
    # What is in files only is read by a thread; the consumer is cancelled at every step of that.
    async with opening() as adapter, adapter.subscribe("s", Start.earliest(), credit_bytes=1) as subscription:
        found: list[bytes] = []
        for steps in range(30):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def give_up(steps: int = steps, scope: trio.CancelScope = scope) -> None:
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(give_up)
                    found += values_of((await next_delivery(subscription)).records)
        while len(found) < 20:
            found += values_of((await next_delivery(subscription)).records)
    assert found == [b"%d" % number for number in range(20)]
