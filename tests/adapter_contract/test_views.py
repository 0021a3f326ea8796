"""Cursors and state change by compare-and-set; producer names fence."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator

import pytest
import trio

from broker_adapter import StorageAdapter
from shards.errors import InvalidNameError, OffsetOutOfRangeError, VersionConflictError
from shards.model import Cursor

YEAR_2100_US = 4_102_444_800_000_000


async def test_a_cursor_is_committed_read_listed_and_deleted(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"v"] * 10)
    assert await adapter.get_cursor("s", "c") is None
    committed = await adapter.commit_cursor("s", "c", 4)
    assert (committed.name, committed.offset, committed.version > 0) == ("c", 4, True)
    assert await adapter.get_cursor("s", "c") == committed
    other = await adapter.commit_cursor("s", "b", 10)
    assert await adapter.list_cursors("s") == [other, committed]
    await adapter.delete_cursor("s", "c")
    await adapter.delete_cursor("s", "c")
    assert await adapter.list_cursors("s") == [other]


async def test_a_cursor_changes_only_from_the_expected_version(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"v"] * 10)
    first = await adapter.commit_cursor("s", "c", 1, expected_version=0)
    with pytest.raises(VersionConflictError) as caught:
        await adapter.commit_cursor("s", "c", 2, expected_version=0)
    assert (caught.value.expected_version, caught.value.found_version) == (0, first.version)
    second = await adapter.commit_cursor("s", "c", 2, expected_version=first.version)
    assert second.version > first.version
    with pytest.raises(VersionConflictError):
        await adapter.delete_cursor("s", "c", expected_version=first.version)
    await adapter.delete_cursor("s", "c", expected_version=second.version)
    assert await adapter.get_cursor("s", "c") is None


async def test_of_competing_cursor_commits_exactly_one_wins(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"v"] * 10)
    won: list[Cursor] = []

    async def compete(offset: int) -> None:
        try:
            won.append(await adapter.commit_cursor("s", "c", offset, expected_version=0))
        except VersionConflictError:
            return

    async with trio.open_nursery() as nursery:
        for offset in range(8):
            nursery.start_soon(compete, offset)
    assert [await adapter.get_cursor("s", "c")] == won


async def test_a_cursor_is_within_its_shard_and_has_a_valid_name(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    with pytest.raises(OffsetOutOfRangeError):
        await adapter.commit_cursor("s", "c", 1)
    with pytest.raises(InvalidNameError):
        await adapter.commit_cursor("s", "", 0)


async def test_state_is_put_read_and_deleted(adapter: StorageAdapter) -> None:
    assert await adapter.get_state(b"k") is None
    put = await adapter.put_state(b"k", b"\x00value")
    assert (put.key, put.value, put.version > 0, put.expires_at_us) == (b"k", b"\x00value", True, 0)
    assert await adapter.get_state(b"k") == put
    await adapter.delete_state(b"k")
    await adapter.delete_state(b"k")
    assert await adapter.get_state(b"k") is None


async def test_state_changes_only_from_the_expected_version(adapter: StorageAdapter) -> None:
    first = await adapter.put_state(b"k", b"1", expected_version=0)
    with pytest.raises(VersionConflictError):
        await adapter.put_state(b"k", b"2", expected_version=0)
    second = await adapter.put_state(b"k", b"2", expected_version=first.version)
    with pytest.raises(VersionConflictError) as caught:
        await adapter.delete_state(b"k", expected_version=first.version)
    assert caught.value.found_version == second.version
    await adapter.delete_state(b"k", expected_version=second.version)
    assert (await adapter.put_state(b"k", b"3", expected_version=0)).version > second.version


async def test_expired_state_is_not_there(adapter: StorageAdapter) -> None:
    await adapter.put_state(b"expired", b"v", expires_at_us=1)
    kept = await adapter.put_state(b"kept", b"v", expires_at_us=YEAR_2100_US)
    assert await adapter.get_state(b"expired") is None
    assert [value async for value in adapter.scan_state()] == [kept]
    await adapter.put_state(b"expired", b"again", expected_version=0)
    found = await adapter.get_state(b"expired")
    assert found is not None
    assert found.value == b"again"


async def test_state_is_scanned_by_prefix_in_order(adapter: StorageAdapter) -> None:
    keys = [b"a/%04d" % number for number in range(300)]

    async with trio.open_nursery() as nursery:
        for key in [*keys, b"b/1", b"a", b"a\xff"]:
            nursery.start_soon(adapter.put_state, key, b"v" + key)
    found = [value async for value in adapter.scan_state(b"a/")]
    assert [(value.key, value.value) for value in found] == [(key, b"v" + key) for key in keys]
    assert [value.key async for value in adapter.scan_state(b"b")] == [b"b/1"]
    assert [value async for value in adapter.scan_state(b"c")] == []
    for after in (b"", b"0", *(value.key for value in found), b"b"):
        behind = [value async for value in adapter.scan_state(b"a/", after=after)]
        assert behind == [value for value in found if value.key > after]


async def test_opening_a_producer_name_again_raises_its_epoch(adapter: StorageAdapter) -> None:
    first = await adapter.open_producer("p")
    other = await adapter.open_producer("q")
    second = await adapter.open_producer("p")
    assert second.producer_id == first.producer_id != other.producer_id
    assert second.epoch > first.epoch
    with pytest.raises(InvalidNameError):
        await adapter.open_producer("")


async def test_a_scan_that_is_left_early_leaves_nothing_open(adapter: StorageAdapter) -> None:
    """An inner generator was left to the garbage collector, which trio warns of."""
    for number in range(3):
        await adapter.put_state(b"k%d" % number, b"v")
    scan = adapter.scan_state(b"k")
    async for value in scan:
        assert value.key == b"k0"
        break
    assert isinstance(scan, AsyncGenerator)
    await scan.aclose()
    gc.collect()
