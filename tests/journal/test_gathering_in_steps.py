"""The parts of a decision reach their shards in many steps; what comes in between finds the same as after one step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from journal.engine import Engine
from journal.engine.time_slice import in_order_of
from shards.errors import StorageFailedError
from shards.model import ShardConfig
from shards.seams.clock import ManualClock
from tests.crash.segment_files import check_files
from tests.journal.engines import DATA, append, stop_without_checkpoint, values_of
from tests.journal.test_gathering import (
    Converter,
    damages,
    fill,
    is_gathered,
    opened,
    roll,
    sealed,
    shared_files,
    until,
)
from tests.simulation.file_system import SimulatedFileSystem, everything_lost, everything_survived
from tests.simulation.inline import run_inline

NAMES = tuple(f"plant/{letter}" for letter in "abcdef")


class Steps:
    """In place of `TimeSlice`: each step ends after one shard, and the next one begins when the test allows it."""

    is_over = True

    def __init__(self) -> None:
        self.resting = trio.Event()
        self.go_on = trio.Event()

    async def rest(self) -> None:
        self.resting.set()
        await self.go_on.wait()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    # The clock jumps while a thread works: all is done in place.
    monkeypatch.setattr("trio.to_thread.run_sync", run_inline)
    monkeypatch.setattr("journal.engine.parts.TimeSlice", lambda: steps)
    return steps


async def decide(engine: Engine, steps: Steps) -> dict[str, list[bytes]]:
    """Have closed segments gathered, up to the step after the first shard; returns what they have."""
    before = await fill(engine, *NAMES)
    await roll(engine, *NAMES)
    with trio.fail_after(60):
        await steps.resting.wait()
    assert gathered_shards(engine) == [NAMES[0]]
    return before


def gathered_shards(engine: Engine) -> list[str]:
    return [name for name in NAMES if name in engine.parts.table.catalogue.matching("#") and is_gathered(engine, name)]


async def test_all_shards_get_their_parts_and_their_logs_go(steps: Steps, autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await decide(engine, steps)
        steps.go_on.set()
        await until(lambda: is_gathered(engine, *NAMES))
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)
    assert damages(files) == []


async def test_what_is_decided_about_a_shard_comes_after_its_parts(steps: Steps, autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await decide(engine, steps)
        await engine.parts.commands.trim(NAMES[2], 3)
        await engine.parts.commands.trim(NAMES[3], 8)
        await engine.parts.commands.delete_shard(NAMES[4])
        await append(engine, NAMES[5], b"later")
        assert gathered_shards(engine) == [NAMES[0], NAMES[2]]
        assert sealed(engine, NAMES[3]) == []
        expected = {
            NAMES[0]: before[NAMES[0]],
            NAMES[1]: before[NAMES[1]],
            NAMES[2]: before[NAMES[2]][3:],
            NAMES[3]: [],
            NAMES[5]: [*before[NAMES[5]], b"later"],
        }
        assert {name: await values_of(engine, name) for name in expected} == expected
        steps.go_on.set()
        await until(lambda: is_gathered(engine, NAMES[1], NAMES[2], NAMES[5]))
        assert {name: await values_of(engine, name) for name in expected} == expected
        await check_files(engine, files, DATA)
        (record,) = engine.parts.views.files
        assert (record.live_records, record.record_count) == (4 * 8, 6 * 8)
    assert damages(files) == []


async def test_a_checkpoint_waits_for_the_last_part(steps: Steps, autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine, trio.open_nursery() as nursery:
        await decide(engine, steps)
        before = engine.parts.checkpointer.checkpoints
        nursery.start_soon(engine.checkpoint)
        await trio.sleep(10)
        assert engine.parts.checkpointer.checkpoints == before
        steps.go_on.set()
        await until(lambda: engine.parts.checkpointer.checkpoints > before)
        (record,) = engine.parts.views.files
        assert record.live_records == record.record_count == 6 * 8


@pytest.mark.parametrize("choose", [everything_lost, everything_survived])
@pytest.mark.parametrize("trims", [False, True])
async def test_a_crash_in_between_loses_nothing(
    trims: bool, choose: Callable[[int], int], steps: Steps, autojump_clock: object
) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await decide(engine, steps)
        if trims:
            await engine.parts.commands.trim(NAMES[2], 3)
            before[NAMES[2]] = before[NAMES[2]][3:]
        stop_without_checkpoint(engine)
        steps.go_on.set()
    files = files.crash(choose)
    async with opened(files) as engine:
        assert is_gathered(engine, *NAMES)
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)
    assert damages(files) == []


async def test_views_that_cannot_be_read_stop_the_engine(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFileSystem()

    def damaged() -> bool:
        raise OSError("no such page")

    with pytest.raises(StorageFailedError, match="no such page"):
        async with opened(files) as engine:
            await decide(engine, steps)
            monkeypatch.setattr(engine.parts.views, "put_next_parts", damaged)
            steps.go_on.set()
            await engine.parts.committer.has_failed.wait()
            assert len(shared_files(files)) == 1, "its entry is durable, so it is valid"
            await engine.create_shard("another", ShardConfig())


async def test_parts_that_do_not_fit_into_one_decision_wait(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    monkeypatch.setattr("journal.engine.parquet.gatherer.MOST_PARTS", 3)
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        await fill(engine, *NAMES)
        clock.advance(seconds=86_400)
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await until(lambda: is_gathered(engine, *NAMES))
        assert {len(sealed(engine, name)) for name in NAMES} == {2}, "a part for each day"
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)
    assert damages(files) == []


@given(st.lists(st.integers(-9, 9), max_size=30))
async def test_items_are_sorted_as_in_one_step(items: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("journal.engine.time_slice._SORTED_AT_ONCE", 4)
        assert await in_order_of(items, abs) == sorted(items, key=abs)


async def test_quiet_shards_get_no_log_files(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await until(lambda: is_gathered(engine, *NAMES))
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)
    assert not any(".log" in str(operation) for operation in files.operations)
    assert damages(files) == []
    async with opened(files) as engine:
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_memory_that_is_freed_meanwhile_damages_nothing(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.open = trio.Event()
    async with opened(files, converter) as engine:
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await converter.asked.wait()
        # The tails are flushed, one is trimmed, and their memory is used by others.
        await engine.parts.commands.trim(NAMES[1], 8)
        await engine.checkpoint()
        later = await fill(engine, "other")
        converter.open.set()
        names = [name for name in NAMES if name != NAMES[1]]
        await until(lambda: is_gathered(engine, *names))
        assert {name: await values_of(engine, name) for name in names} == {name: before[name] for name in names}
        assert await values_of(engine, "other") == later["other"]
        await check_files(engine, files, DATA)
        assert engine.parts.conversion.last_failure == ""
    assert damages(files) == []


async def test_tails_that_are_damaged_in_their_file_are_written_again(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.open = trio.Event()
    async with opened(files, converter) as engine:
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await converter.asked.wait()
        (tails,) = {source.log_path for source in converter.plans[0].sources}
        assert "sealing" in tails
        files.open(tails).pwritev([b"damage"], 100)
        converter.open.set()
        await until(lambda: is_gathered(engine, *NAMES))
        assert len(converter.plans) == 2
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)


async def test_tails_that_are_only_in_memory_go_into_the_same_file(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await engine.parts.checkpointer.flush()
        await fill(engine, *NAMES[:3])
        await roll(engine, *NAMES)
        await until(lambda: is_gathered(engine, *NAMES))
        assert len(converter.plans) == 1
        assert len(shared_files(files)) == 1
