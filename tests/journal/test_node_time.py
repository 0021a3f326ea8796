"""What an engine does when the system's clock is set, within a run and between two."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from journal.check import check_directory
from journal.engine import Engine, Environment, open_engine
from journal.settings.server import ConversionConfig, ServerConfig
from shards.errors import VersionConflictError
from shards.format.batch_header import BatchHeader
from shards.model import Retention, SegmentKind, ShardConfig
from shards.seams.clock import ManualClock
from shards.seams.steady_clock import FORWARD_HOLD_US, SECOND_US
from shards.seams.store import Family, Mutations
from tests.journal.engines import DATA, append, apply_retention, config, stop_without_checkpoint, values_of
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.inline import InlineConverter, InlineDisk
from tests.simulation.store import SimulatedStore

HOUR_S = 3600


def settings() -> ServerConfig:
    return attrs.evolve(config(), conversion=ConversionConfig(max_age_s=86_400))


@asynccontextmanager
async def opened(files: SimulatedFileSystem, clock: ManualClock) -> AsyncIterator[Engine]:
    async with open_engine(
        DATA,
        settings(),
        Environment(
            files=files,
            clock=clock,
            make_disk=InlineDisk,
            open_store=lambda path: SimulatedStore(files, path),
        ),
        make_converter=lambda: InlineConverter(files),
    ) as engine:
        yield engine


async def append_times(engine: Engine, name: str) -> list[int]:
    shard = engine.parts.table.by_name(name)
    found, offset = [], shard.start_offset
    while offset < shard.published_offset:
        extent = await engine.parts.reader.read(shard, offset, 1)
        found.append(BatchHeader.unpack(b"".join(map(bytes, extent.buffers))).append_time_us)
        offset = extent.next_offset
    return found


def pass_time(engine: Engine, clock: ManualClock, seconds: int) -> None:
    """Let time pass with a sample each second."""
    for _ in range(seconds):
        clock.advance(seconds=1)
        engine.parts.time.sample()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_append_times_do_not_fall_when_the_clock_is_set_back_across_a_restart(crash: bool) -> None:
    """They fell: conversion then reported corruption for ever, and `journal check` reported damage."""
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"before")
        if crash:
            stop_without_checkpoint(engine)
    if crash:
        files = files.crash(everything_survived)
    clock.jump(seconds=-HOUR_S)
    async with opened(files, clock) as engine:
        await append(engine, "s", b"after")
        times = await append_times(engine, "s")
        assert times == sorted(times)
        info = await engine.convert("s")
        assert info.segments[0].kind is SegmentKind.PARQUET
        assert await values_of(engine, "s") == [b"before", b"after"]
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert not report.damages


async def test_append_times_do_not_fall_when_decisions_alone_are_newer() -> None:
    """A closed segment's successor is created at a time that its first batch must not be before."""
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"before")
        clock.advance(seconds=HOUR_S)
        await engine.roll("s")
        stop_without_checkpoint(engine)
    created_us = clock.now_us()
    clock.jump(seconds=-HOUR_S)
    async with opened(files.crash(everything_survived), clock) as engine:
        await append(engine, "s", b"after")
        assert (await append_times(engine, "s"))[-1] >= created_us


async def test_append_times_do_not_fall_on_a_directory_that_has_no_recorded_mark() -> None:
    """An older program recorded none; the records of the segments show it."""
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"before")
    store = SimulatedStore(files, f"{DATA}/state")
    mutations = Mutations()
    mutations.delete(Family.META, b"newest_append_us")
    store.write(mutations)
    store.flush()
    store.close()
    clock.jump(seconds=-HOUR_S)
    async with opened(files, clock) as engine:
        await append(engine, "s", b"after")
        times = await append_times(engine, "s")
        assert times == sorted(times)


async def test_a_clock_behind_what_is_stored_is_reported_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        await engine.create_shard("s", ShardConfig())
    clock.jump(seconds=-HOUR_S)
    with caplog.at_level(logging.WARNING):
        async with opened(files, clock):
            pass
    assert "clock is 3600.0 s behind the newest append time" in caplog.text


async def test_one_wrong_sample_does_not_hide_what_is_stored_after_it() -> None:
    """State with a time to live was acknowledged and invisible, and two could create one key in turn."""
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        clock.jump(seconds=24 * HOUR_S)
        engine.parts.time.sample()
        engine.begin_chunk()
        assert engine.get_state(b"lease") is None
        clock.jump(seconds=-24 * HOUR_S)
        await engine.put_state(b"lease", b"first", 0, clock.now_us() + 30 * SECOND_US)
        found = engine.get_state(b"lease")
        assert found is not None
        assert found.value == b"first"
        with pytest.raises(VersionConflictError):
            await engine.put_state(b"lease", b"second", 0, clock.now_us() + 30 * SECOND_US)


async def test_a_lease_does_not_end_early_because_the_clock_jumps_forwards() -> None:
    """Its holder counts on thirty seconds; another could take it at the moment of the jump."""
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.put_state(b"lease", b"first", 0, clock.now_us() + 30 * SECOND_US)
        clock.jump(seconds=HOUR_S)
        pass_time(engine, clock, 29)
        with pytest.raises(VersionConflictError):
            await engine.put_state(b"lease", b"second", 0, 0)
        pass_time(engine, clock, 1)
        await engine.put_state(b"lease", b"second", 0, 0)


async def test_a_jump_forwards_removes_nothing_for_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """With a clock set far ahead, retention and expiry deleted records at once."""
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.create_shard("s", ShardConfig(retention=Retention(max_age_s=24 * HOUR_S)))
        shard = engine.parts.table.by_name("s")
        await append(engine, "s", b"kept for a day")
        await engine.put_state(b"key", b"value", None, clock.now_us() + 24 * HOUR_S * SECOND_US)
        clock.jump(seconds=365 * 24 * HOUR_S)
        with caplog.at_level(logging.WARNING):
            pass_time(engine, clock, FORWARD_HOLD_US // SECOND_US)
        assert "jumped forward by 31536000.0 s" in caplog.text
        assert engine.parts.time.difference_us == 365 * 24 * HOUR_S * SECOND_US
        for _ in range(2):  # closes the segment, and would then let it go
            await apply_retention(engine)
        assert engine.get_state(b"key") is not None
        assert (shard.start_offset, len(shard.segments)) == (0, 1)
        pass_time(engine, clock, 1)
        for _ in range(2):
            await apply_retention(engine)
            await engine.parts.committer.drain()
        assert engine.get_state(b"key") is None
        assert shard.start_offset == 1


async def test_a_jump_that_is_taken_back_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.create_shard("s", ShardConfig())
        clock.jump(seconds=HOUR_S)
        pass_time(engine, clock, 300)
        await append(engine, "s", b"meanwhile")
        clock.jump(seconds=-HOUR_S)
        with caplog.at_level(logging.WARNING):
            pass_time(engine, clock, 1)
        assert "is back at the node" in caplog.text
        await append(engine, "s", b"after")
        times = await append_times(engine, "s")
        assert times == [clock.now_us() - SECOND_US, clock.now_us()]


async def test_append_times_do_not_change_while_a_jump_back_is_followed() -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"before")
        clock.jump(seconds=-HOUR_S)
        pass_time(engine, clock, 11)
        assert engine.now_us() == clock.now_us()
        await append(engine, "s", b"after")
        first, second = await append_times(engine, "s")
        assert second >= first > clock.now_us()


async def test_the_clock_is_sampled_once_a_second(autojump_clock: trio.testing.MockClock) -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        clock.jump(seconds=HOUR_S)
        await trio.sleep(1.5)
        assert engine.parts.time.difference_us == HOUR_S * SECOND_US
