"""A reader that comes back by lsn is shown what a shard lost with the memory: once, and only if it had not read it."""

from __future__ import annotations

import pytest

from journal.engine import Engine, SubscriptionTarget
from shards.format.batch import read_records
from shards.format.record import Gap
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.segments.losses import MOST_LOSSES
from shards.subscriptions.events import Push
from tests.journal.engines import append, open_simulated, stop_without_checkpoint
from tests.simulation.file_system import SimulatedFileSystem

MEMORY = ShardConfig(mode=Mode.MEMORY)
Shown = tuple[int, int] | bytes


async def shown(engine: Engine, lsn: int) -> list[Shown]:
    """What a subscription by filter gives from an lsn on: (first, next) of gaps, and values."""
    committed = engine.parts.committer.committed_lsn
    if lsn > committed:
        return []
    subscription = await engine.parts.subscriptions.subscribe(
        SubscriptionTarget(topic_filter="#"),
        start=Start.lsn(lsn),
        until_lsn=committed,
        on_ready=lambda: None,
        credit_bytes=lambda: 1 << 20,
    )
    found: list[Shown] = []
    while True:
        item = await subscription.take(1 << 20)
        if isinstance(item, Push):
            for buffer in item.buffers:
                for record in read_records(buffer):
                    if isinstance(record, Gap):
                        found.append((record.first_offset, record.next_offset))
                    else:
                        assert record.value is not None
                        found.append(record.value)
        elif item is not None and item.event == "end":
            return found


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_loss_of_a_memory_shard_was_silent_for_a_reader_by_lsn(checkpointed: bool) -> None:
    """It went on with the first record behind the gap, and did not get the gap."""
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("a", MEMORY)
        await append(engine, "a", b"read")
        behind_read = engine.parts.committer.committed_lsn + 1
        await append(engine, "a", b"lost")
        if checkpointed:
            await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        end = engine.parts.table.peek_by_name("a").next_offset
        # Before anything is appended, whether the shard is open or not, and behind it.
        assert await shown(engine, behind_read) == [(0, end)]
        behind_gap = engine.parts.committer.committed_lsn + 1
        await append(engine, "a", b"new")
        assert await shown(engine, behind_read) == [(0, end), b"new"]
        assert await shown(engine, behind_gap) == [b"new"]
        await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        # The record after the gap is lost as well: of the first gap only who has not seen it is told again.
        after = engine.parts.table.peek_by_name("a").next_offset
        assert await shown(engine, behind_gap) == [(end, after)]
        assert await shown(engine, behind_read) == [(0, after)]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_gap_between_segments_in_files_was_silent_for_a_reader_by_lsn(checkpointed: bool) -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("a", ShardConfig())
        await append(engine, "a", b"before")
        await engine.set_mode("a", Mode.MEMORY)
        await append(engine, "a", b"read")
        behind_read = engine.parts.committer.committed_lsn + 1
        await append(engine, "a", b"lost")
        behind_lost = engine.parts.committer.committed_lsn + 1
        await engine.set_mode("a", Mode.FILE)
        behind_switch = engine.parts.committer.committed_lsn + 1
        await append(engine, "a", b"behind")
        assert await shown(engine, behind_lost) == [b"behind"]
        if checkpointed:
            await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    for _ in range(2):
        async with open_simulated(files) as engine:
            assert await shown(engine, 1) == [b"before", (1, 3), b"behind"]
            assert await shown(engine, behind_read) == [(1, 3), b"behind"]
            assert await shown(engine, behind_switch) == [b"behind"]
            if checkpointed:
                assert await shown(engine, behind_lost) == [b"behind"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_gap_at_the_end_of_a_shard_in_file_mode_was_silent_for_a_reader_by_lsn(checkpointed: bool) -> None:
    """Nothing was appended after the switch, so the shard seemed to have nothing new."""
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("a", ShardConfig())
        await append(engine, "a", b"before")
        await engine.set_mode("a", Mode.MEMORY)
        await append(engine, "a", b"read")
        behind_read = engine.parts.committer.committed_lsn + 1
        await append(engine, "a", b"lost")
        await engine.set_mode("a", Mode.FILE)
        if checkpointed:
            await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    for _ in range(2):
        async with open_simulated(files) as engine:
            assert await shown(engine, behind_read) == [(1, 3)]


async def test_the_rest_of_a_gap_was_silent_after_a_trim_into_it() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("a", MEMORY)
        await append(engine, "a", b"lost")
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        end = engine.parts.table.peek_by_name("a").next_offset
        await append(engine, "a", b"new")
        await engine.trim("a", end // 2)
        assert await shown(engine, 1) == [(end // 2, end), b"new"]


async def test_a_shard_that_lost_nothing_gives_no_gap() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("file", ShardConfig())
        await engine.create_shard("unused", MEMORY)
        await append(engine, "file", b"1")
        await engine.roll("file")
        await append(engine, "file", b"2")
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        assert await shown(engine, 1) == [b"1", b"2"]


async def test_who_has_read_everything_before_an_orderly_stop_gets_no_gap() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("a", MEMORY)
        await append(engine, "a", b"1")
        first = engine.parts.committer.committed_lsn
        await append(engine, "a", b"2")
        committed = engine.parts.committer.committed_lsn
    async with open_simulated(files) as engine:
        assert await shown(engine, committed + 1) == []
        assert await shown(engine, first + 1) == [(0, 2)]
        await append(engine, "a", b"3")
        assert await shown(engine, committed + 1) == [b"3"]


async def test_what_is_noted_of_losses_is_bounded() -> None:
    files = SimulatedFileSystem()
    for life in range(MOST_LOSSES + 3):
        async with open_simulated(files) as engine:
            if not life:
                await engine.create_shard("a", MEMORY)
            await append(engine, "a", b"x")
            await engine.parts.checkpointer.checkpoint()
            stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        shard = engine.parts.table.by_name("a")
        assert len(shard.losses) == MOST_LOSSES
        assert await shown(engine, 1) == [(0, shard.next_offset)]
