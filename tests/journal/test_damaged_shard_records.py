"""The record of a shard that is damaged in the views stops this shard alone.

It ended the whole server a moment after the start, when its tasks looked for segments to convert.
"""

from __future__ import annotations

import pytest

from journal.engine import Engine
from journal.engine.parquet.rewriting import MERGED_AT_ONCE
from shards.errors import CorruptionError
from shards.model import SegmentKind
from shards.seams.store import Family, Mutations
from tests.journal.engines import DATA, append, stop_without_checkpoint, values_of
from tests.journal.test_damaged_shared_files import gather_again
from tests.journal.test_gathering import NAMES, opened, sealed, until
from tests.journal.test_parquet_scheduler import DISABLED, create, fill, kinds
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.store import SimulatedStore


def damage_record(files: SimulatedFileSystem, shard_id: int) -> None:
    """Cut off the end of the record of a shard's first segment."""
    store = SimulatedStore(files, f"{DATA}/state")
    key, value = list(store.scan(Family.SEGMENTS, shard_id.to_bytes(8, "big")))[1]
    mutations = Mutations()
    mutations.put(Family.SEGMENTS, key, value[:-1])
    store.write(mutations)
    store.flush()


def assert_named(engine: Engine, name: str) -> None:
    assert f"record of shard {name!r} in the views" in engine.statistics().conversion_failure
    assert engine.failure is None


async def test_logs_of_other_shards_are_converted_after_the_start() -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=DISABLED) as engine:
        bad, _ = await create(engine, "bad"), await create(engine, "good")
        await fill(engine, "bad", 5)
        values = await fill(engine, "good", 5)
    damage_record(files, bad.shard_id)
    async with opened(files) as engine:
        good = engine.parts.table.by_name("good")
        await until(lambda: SegmentKind.PARQUET in kinds(good))
        assert_named(engine, "bad")
        assert await values_of(engine, "good") == values
        for _ in range(2):
            with pytest.raises(CorruptionError, match="'bad' in the views"):
                await append(engine, "bad", b"more")
        await append(engine, "good", b"and on")


async def test_files_with_a_part_of_it_are_not_rewritten(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        for _ in range(MERGED_AT_ONCE - 1):
            await gather_again(engine)
        bad = engine.parts.table.by_name(NAMES[0])
        before = sealed(engine, NAMES[1])
        await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    damage_record(files, bad.shard_id)
    async with opened(files) as engine:
        others = NAMES[1:]
        count = len(before)
        for name in others:
            await append(engine, name, b"one more")
            await engine.roll(name)
        await until(lambda: all(len(sealed(engine, name)) == count + 1 for name in others))
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: "shared files are not rewritten for now" in caplog.text)
        assert [each.path for each in sealed(engine, NAMES[1])][:count] == [each.path for each in before]
        assert engine.failure is None
