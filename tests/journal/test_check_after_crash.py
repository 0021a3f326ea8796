"""Whatever an engine did and wherever the power went, the check finds no damage, nor after a recovery."""

from __future__ import annotations

import random

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.check import check_directory
from journal.engine import Engine
from shards.format.batch import encode_values
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.segments.sparse_index import INTERVAL_BYTES
from tests.journal.engines import (
    DATA,
    append,
    append_at_once,
    config,
    open_simulated,
    stop_without_checkpoint,
    values_of,
)
from tests.simulation.file_system import Choose, SimulatedFileSystem, everything_lost
from tests.simulation.store import SimulatedStore

FILE_BYTES = 128 * 1024
SHARDS = ("a", "b", "c")


@attrs.frozen
class Step:
    action: str
    shard: str
    amount: int


ACTIONS = (
    "append",
    "append",
    "many",
    "large",
    "roll",
    "switch",
    "trim",
    "flush",
    "checkpoint",
    "cursor",
    "state",
    "recreate",
)
steps = st.lists(
    st.builds(Step, st.sampled_from(ACTIONS), st.sampled_from(SHARDS), st.integers(0, 100)), min_size=3, max_size=25
)


async def take(engine: Engine, step: Step) -> None:
    commands, shard = engine.parts.commands, engine.parts.table.by_name(step.shard)
    match step.action:
        case "append":
            await append(engine, step.shard, *[b"%d" % number for number in range(1 + step.amount % 5)])
        case "many":
            await append_at_once(engine, step.shard, 5)
        case "large":
            await append(engine, step.shard, b"x" * (INTERVAL_BYTES + step.amount))
        case "roll":
            await commands.roll(step.shard)
        case "switch":
            await commands.set_mode(step.shard, Mode.FILE if shard.in_memory_mode else Mode.MEMORY)
        case "trim":
            await commands.trim(step.shard, shard.published_offset * step.amount // 100)
        case "flush":
            await engine.parts.checkpointer.flush()
        case "checkpoint":
            await engine.parts.checkpointer.checkpoint()
        case "cursor":
            await commands.commit_cursor(step.shard, f"reader-{step.amount % 3}", shard.published_offset, None)
        case "state":
            await commands.put_state(b"%d" % (step.amount % 3), step.shard.encode(), None, step.amount % 2 << 60)
        case "recreate":
            await commands.delete_shard(step.shard)
            await commands.create_shard(step.shard, ShardConfig(index_keys=True))


async def values_in_files(engine: Engine) -> dict[str, list[bytes]]:
    return {name: await values_of(engine, name) for name in SHARDS}


def damages(files: SimulatedFileSystem) -> list[str]:
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    return [str(damage) for damage in report.damages]


@settings(deadline=None, max_examples=20)
@given(steps, steps, st.integers(0, 2**32))
def test_no_damage_is_found_after_a_crash_nor_after_the_recovery(
    first: list[Step], second: list[Step], seed: int
) -> None:
    trio.run(crash_twice, first, second, random.Random(seed).randrange)


async def crash_twice(first: list[Step], second: list[Step], choose: Choose) -> None:
    files = SimulatedFileSystem()
    for number, wanted in enumerate((first, second)):
        async with open_simulated(files, config(journal_file_bytes=FILE_BYTES)) as engine:
            assert engine.recovery.damages == ()
            for name in SHARDS if number == 0 else ():
                await engine.create_shard(name, ShardConfig())
            for step in wanted:
                await take(engine, step)
            stop_without_checkpoint(engine)
        files = files.crash(choose)
        assert damages(files) == []
    async with open_simulated(files, config(journal_file_bytes=FILE_BYTES)) as engine:
        assert all(shard.damage == "" for shard in engine.parts.table.open_shards())
        before = await values_in_files(engine)
    assert damages(files) == []
    async with open_simulated(files, config(journal_file_bytes=FILE_BYTES)) as engine:
        assert await values_in_files(engine) == before


async def test_an_index_entry_that_a_recovery_made_counts_records_behind_it_and_is_no_damage() -> None:
    """A check took it for damage, and compaction refused the directory: seen after kills of a server under load.

    The views record the newest timestamp of a segment with what is not in its file yet. A recovery that reads that from
    the journal again gives an entry in between a time that is too high, which makes a search by time begin too early.
    """
    files = SimulatedFileSystem()
    settings = config(journal_file_bytes=8 * INTERVAL_BYTES)

    async def append_at(engine: Engine, timestamp_us: int) -> None:
        batch = encode_values([b"x" * INTERVAL_BYTES], timestamp_us=timestamp_us)
        await engine.append(engine.parts.table.by_name("s"), batch)

    async with open_simulated(files, settings) as engine:
        await engine.create_shard("s", ShardConfig())
        await append_at(engine, 1)
        flush = engine.parts.checkpointer.flush

        async def flush_and_let_more_come() -> bool:
            flushed = await flush()
            for timestamp_us in (2, 3):
                await append_at(engine, timestamp_us)
            return flushed

        engine.parts.checkpointer.flush = flush_and_let_more_come  # type: ignore[method-assign, assignment]
        await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    files = files.crash(everything_lost)
    async with open_simulated(files, settings) as engine:
        shard = engine.parts.table.by_name("s")
        assert [await engine.parts.reader.find_offset(shard, Start.time(at)) for at in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert damages(files) == []
