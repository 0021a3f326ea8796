"""Conversion begins when something becomes due, and not when it next happens to look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from journal.engine import Engine, Environment, open_engine
from journal.engine.environment import at_once
from journal.engine.parquet import gathering_queue
from journal.engine.parquet.rewriting import LONGEST_DEAD_S
from journal.settings.server import ServerConfig
from shards.errors import ConversionFailedError, DiskFullError
from shards.seams.clock import ManualClock
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from tests.journal.engines import DATA, append
from tests.journal.test_gathering import (
    GATHERING,
    NAMES,
    Converter,
    fill,
    gathered,
    roll,
    until,
)
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.inline import InlineDisk
from tests.simulation.store import SimulatedStore

SOON_S = 5
"""Shorter than the time after which conversion looks again without a reason."""


# The other background work looks seldom, so that an hour passes quickly.
SELDOM = attrs.evolve(GATHERING, storage=attrs.evolve(GATHERING.storage, flush_interval_ms=5000))


class TrioClock(ManualClock):
    """Passes as trio's clock does."""

    def now_us(self) -> int:
        return super().now_us() + round(trio.current_time() * 1_000_000)

    def monotonic_us(self) -> int:
        return super().monotonic_us() + round(trio.current_time() * 1_000_000)


class TimedConverter(Converter):
    """Notes when it is asked to write shared files: how long other steps take does not count."""

    def __init__(self, files: SimulatedFileSystem) -> None:
        super().__init__(files)
        self.asked_at: list[float] = []

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        self.asked_at.append(trio.current_time())
        return await super().gather(plan)


class SlowLooks(TimedConverter):
    """Takes longer to look into a file than closed segments wait."""

    look_s = 2.0

    async def shards_in(self, path: str) -> list[int]:
        await trio.sleep(self.look_s)
        return await super().shards_in(path)


@asynccontextmanager
async def opened(
    files: SimulatedFileSystem, converter: Converter | None = None, config: ServerConfig = SELDOM
) -> AsyncIterator[Engine]:
    """An engine without threads: while one works, a clock that jumps by itself jumps."""
    environment = Environment(
        files=files,
        clock=TrioClock(),
        make_disk=InlineDisk,
        open_store=lambda path: SimulatedStore(files, path),
        off_loop=at_once,
    )
    async with open_engine(DATA, config, environment, make_converter=lambda: converter or Converter(files)) as engine:
        yield engine


async def leave_mostly_dead(engine: Engine, *names: str) -> None:
    """Have a shared file of which a checkpoint finds that most records are dead: those of these shards."""
    for name in names:
        await engine.parts.commands.trim(name, 8)
    await engine.parts.checkpointer.checkpoint()


async def test_a_gathering_that_becomes_due_during_a_look_for_other_work_begins_at_once(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = SlowLooks(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        # The file of a stopped shard is not rewritten, but it takes time to find that out.
        engine.parts.views.stop(engine.parts.table.by_name(NAMES[0]), "a test")
        await append(engine, NAMES[2], b"new")
        await engine.parts.commands.roll(NAMES[2])
        await leave_mostly_dead(engine, *NAMES[1:])
        rolled_at = trio.current_time()
        await until(lambda: len(converter.asked_at) == 2, step_s=1)
        assert converter.asked_at[-1] - rolled_at < SOON_S


async def test_a_rewriting_is_tried_again_although_nothing_else_waits(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = TimedConverter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        converter.failures += [ConversionFailedError("not now")]
        await leave_mostly_dead(engine, *NAMES[:2])
        await until(lambda: len(converter.asked_at) == 3, step_s=10)
        assert converter.asked_at[2] - converter.asked_at[1] < 300 + SOON_S


async def test_a_rewriting_begins_when_the_disk_has_room_again(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimulatedFileSystem()
    converter = TimedConverter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        parts = engine.parts
        with monkeypatch.context() as patch:
            patch.setattr(parts.disk_space, "_too_little", lambda: DiskFullError("full"))
            parts.checkpointer.look_at_disk()
            await leave_mostly_dead(engine, *NAMES[:2])
            await trio.sleep(60)
            assert len(converter.asked_at) == 1
        parts.checkpointer.look_at_disk()
        roomy_at = trio.current_time()
        await until(lambda: len(converter.asked_at) == 2, step_s=1)
        assert converter.asked_at[-1] - roomy_at < SOON_S


async def test_a_file_is_rewritten_at_the_time_at_which_its_dead_records_are_too_old(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = TimedConverter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.checkpointer.checkpoint()
        (record,) = engine.parts.views.files
        found_at = trio.current_time() - (engine.parts.time.expiry_us() - record.dead_since_us) / 1_000_000
        # An hour is a multiple of the time between looks without a reason: they are at other times.
        await trio.sleep(100)
        engine.parts.conversion.wake()
        await until(lambda: len(converter.asked_at) == 2, step_s=10)
        assert LONGEST_DEAD_S <= round(converter.asked_at[-1] - found_at, 3) < LONGEST_DEAD_S + SOON_S


async def test_very_many_shards_that_cannot_be_gathered_now_are_not_looked_at_all_the_time(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering_queue, "EARLY_SHARDS", 2)
    monkeypatch.setattr(gathering_queue, "is_in_part", lambda segment: True)
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        looks = 0
        take = engine.parts.conversion._gathering.take

        async def counted(most_parts: int) -> object:
            nonlocal looks
            looks += 1
            return await take(most_parts)

        monkeypatch.setattr(engine.parts.conversion._gathering, "take", counted)
        await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await trio.sleep(60)
        assert 10 < looks < 70
