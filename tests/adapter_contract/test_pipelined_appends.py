"""Appends that are handed over without waiting: in order, bounded, each with an outcome of its own."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import PendingAppend, StorageAdapter
from shards.errors import InvalidRequestError, OffsetConflictError, OverloadedError, ShardNotFoundError
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from tests.adapter_contract.conftest import Opening
from tests.adapter_contract.reading import read_all, values_of
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("mode", [Mode.FILE, Mode.MEMORY])
async def test_they_are_stored_in_the_order_of_the_calls(adapter: StorageAdapter, mode: Mode) -> None:
    await adapter.create_shard("s", ShardConfig(mode=mode))
    pending = [adapter.append_nowait("s", [b"%d" % number]) for number in range(500)]
    with trio.fail_after(PATIENCE_S):
        appended = [await one.wait() for one in pending]
    assert [one.base_offset for one in appended] == list(range(500))
    assert all(one.is_done for one in pending)
    assert pending[-1].result_nowait() == appended[-1]
    assert values_of(await read_all(adapter, "s")) == [b"%d" % number for number in range(500)]


async def test_values_and_records_and_waiting_calls_mix(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    first = adapter.append_nowait("s", [b"0", b"1"])
    second = adapter.append_nowait("s", [Record(b"2", key=b"k")])
    third = await adapter.append("s", [b"3"])
    assert [(await one.wait()).base_offset for one in (first, second)] == [0, 2]
    assert third.base_offset == 3


async def test_an_outcome_before_its_time_would_block(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    pending = adapter.append_nowait("s", [b"v"])
    if not pending.is_done:
        with pytest.raises(trio.WouldBlock):
            pending.result_nowait()
    assert (await pending.wait()).base_offset == 0


async def test_a_refusal_is_the_outcome_of_its_own_append_only(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    good = adapter.append_nowait("s", [b"0"])
    conflicting = adapter.append_nowait("s", [b"no"], expected_offset=7)
    fitting = adapter.append_nowait("s", [b"1"], expected_offset=1)
    unknown = adapter.append_nowait("nowhere", [b"v"])
    with pytest.raises(OffsetConflictError):
        await conflicting.wait()
    with pytest.raises(ShardNotFoundError):
        await unknown.wait()
    assert [(await one.wait()).base_offset for one in (good, fitting)] == [0, 1]
    assert values_of(await read_all(adapter, "s")) == [b"0", b"1"]


async def test_what_cannot_be_stored_is_refused_at_once(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    with pytest.raises(InvalidRequestError):
        adapter.append_nowait("s", [])


async def test_what_is_under_way_is_bounded(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    value = bytes(64_000)
    pending: list[PendingAppend] = []
    with trio.fail_after(4 * PATIENCE_S):
        refused = 0
        while not refused and len(pending) < 2_000:
            try:
                pending.append(adapter.append_nowait("s", [value]))
            except OverloadedError:
                refused += 1
                await adapter.wait_for_room(len(value))
        # An engine that stores at once is never behind.
        assert refused or all(one.is_done for one in pending)
        pending.append(adapter.append_nowait("s", [value]))
        offsets = [(await one.wait()).base_offset for one in pending]
    assert offsets == list(range(len(pending)))


async def test_they_are_carried_out_although_no_caller_waits(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        for number in range(100):
            adapter.append_nowait("s", [b"%d" % number])
    async with opening() as adapter:
        assert values_of(await read_all(adapter, "s")) == [b"%d" % number for number in range(100)]


async def test_a_closed_adapter_takes_none(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.aclose()
    with pytest.raises(trio.ClosedResourceError):
        adapter.append_nowait("s", [b"v"])
    with pytest.raises(trio.ClosedResourceError):
        await adapter.wait_for_room()


async def test_a_call_comes_once_when_the_outcome_is_known_whatever_it_is(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    stored = adapter.append_nowait("s", [b"v"], is_last=True)
    refused = adapter.append_nowait("no such shard", [b"v"])
    told: list[tuple[str, bool]] = []
    for name, pending in (("stored", stored), ("refused", refused)):
        for _ in range(2):
            pending.call_when_done(lambda name=name, pending=pending: told.append((name, pending.is_done)))  # type: ignore[misc]
    assert (await stored.wait()).base_offset == 0
    with pytest.raises(ShardNotFoundError):
        await refused.wait()
    with trio.fail_after(PATIENCE_S):
        while len(told) < 4:
            await trio.lowlevel.checkpoint()
    assert sorted(told) == [("refused", True)] * 2 + [("stored", True)] * 2
    stored.call_when_done(lambda: told.append(("later", True)))
    assert told[-1] == ("later", True)
