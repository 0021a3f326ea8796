"""A directory opens again, whatever the engine did before it stopped. Each test is named after what once went wrong."""

from __future__ import annotations

from shards.model import Mode, ShardConfig
from tests.journal.engines import (
    DATA,
    append,
    append_at_once,
    config,
    open_simulated,
    stop_without_checkpoint,
    values_of,
)
from tests.simulation.file_system import SimulatedFileSystem, everything_lost

IN_MEMORY = ShardConfig(mode=Mode.MEMORY)


async def test_memory_batches_that_wait_for_a_commit_leave_no_gap_in_the_journal() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.control.create_shard("volatile", IN_MEMORY)
        await engine.control.create_shard("kept", ShardConfig())
        await append_at_once(engine, "volatile", 5)
        await append(engine, "kept", b"a")
    async with open_simulated(files) as engine:
        await append(engine, "kept", b"b")
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"a", b"b"]


async def test_a_start_and_stop_with_nothing_done_leaves_no_gap_in_the_journal() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.control.create_shard("volatile", IN_MEMORY)
        await engine.control.create_shard("kept", ShardConfig())
        for _ in range(3):
            await append(engine, "volatile", b"x")
    async with open_simulated(files):
        pass
    async with open_simulated(files) as engine:
        await append(engine, "kept", b"a")
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"a"]


async def test_trimming_empty_segments_of_a_mode_switched_back_and_forth_keeps_the_live_file() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.control.create_shard("kept", ShardConfig())
        await append(engine, "kept", b"old")
        for mode in (Mode.MEMORY, Mode.FILE, Mode.MEMORY, Mode.FILE):
            await engine.control.set_mode("kept", mode)
        await append(engine, "kept", b"new")
        await engine.maintenance.flush()
        await engine.control.trim("kept", 1)
        await engine.maintenance.remove_files()
        assert await values_of(engine, "kept") == [b"new"]
        assert len(files.listdir(f"{DATA}/log/01")) == 1
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"new"]


async def test_a_segment_closed_while_a_checkpoint_is_made_goes_on_after_a_crash() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.control.create_shard("kept", ShardConfig())
        await append(engine, "kept", b"a")
        flush = engine.maintenance.flush

        async def flush_and_let_more_come() -> None:
            await flush()
            await append(engine, "kept", b"b")
            await engine.control.seal("kept")
            await append(engine, "kept", b"c")

        engine.maintenance.flush = flush_and_let_more_come  # type: ignore[method-assign]
        await engine.maintenance.checkpoint()
        engine.maintenance.flush = flush  # type: ignore[method-assign]
        stop_without_checkpoint(engine)
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert engine.table.by_name("kept").damage == ""
        assert await values_of(engine, "kept") == [b"a", b"b", b"c"]


async def test_nothing_is_lost_when_the_journal_files_get_larger_or_smaller() -> None:
    files = SimulatedFileSystem()
    expected: list[bytes] = []
    for number, kib in enumerate((64, 128, 32, 256)):
        async with open_simulated(files, config(journal_file_bytes=kib * 1024)) as engine:
            if number == 0:
                await engine.control.create_shard("kept", ShardConfig())
            for _ in range(60):
                expected.append(b"%d" % len(expected) * 500)
                await append(engine, "kept", expected[-1])
            stop_without_checkpoint(engine)
        files = files.crash(everything_lost)
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == expected
