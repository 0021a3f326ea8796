"""A look of the background work visits the shards in which something may be due, and drops what a look at all would."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine import Engine, Environment, open_engine
from journal.engine.segments import retention as retention_module
from journal.engine.segments.retention import SegmentRetention
from journal.engine.wal.disk import at_once
from journal.engine.wal.pending_ack import PendingAck
from journal.settings.server import ConversionConfig, ServerConfig, ShardsConfig, StorageConfig
from shards.format.batch import encode_values
from shards.model import Mode, Retention, SegmentKind, ShardConfig
from shards.seams.clock import ManualClock
from shards.seams.steady_clock import SECOND_US
from shards.segments.log_segment import LogSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from tests.journal.engines import DATA, append, stop_without_checkpoint
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.inline import InlineConverter, InlineDisk
from tests.simulation.store import SimulatedStore

CLOSE_AFTER_S = 540
SETTINGS = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=1 << 20,
        journal_budget_bytes=4 << 20,
        disk_reserve_bytes=0,
        flush_interval_ms=60_000,
        retention_interval_s=86_400,
    ),
    shards=ShardsConfig(memory_max_bytes=8_000),
)
NOT_CONVERTING = attrs.evolve(SETTINGS, conversion=ConversionConfig(enabled=False))


@asynccontextmanager
async def opened(
    files: SimulatedFileSystem, clock: ManualClock, config: ServerConfig = SETTINGS
) -> AsyncIterator[Engine]:
    async with open_engine(
        DATA,
        config,
        Environment(
            files=files,
            clock=clock,
            make_disk=InlineDisk,
            open_store=lambda path: SimulatedStore(files, path),
            off_loop=at_once,
        ),
        make_converter=lambda: InlineConverter(files),
    ) as engine:
        yield engine


async def look(engine: Engine) -> None:
    await engine.parts.checkpointer.retention.apply()
    await engine.parts.committer.drain()


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that looks have visited."""
    names: list[str] = []
    visit: Callable[..., None] = SegmentRetention._visit

    def noting(self: SegmentRetention, shard: Shard, *times: int) -> None:
        names.append(shard.name)
        visit(self, shard, *times)

    monkeypatch.setattr(SegmentRetention, "_visit", noting)
    return names


def taken(visits: list[str]) -> list[str]:
    names = sorted(visits)
    visits.clear()
    return names


# What a look visits


async def test_a_look_at_which_nothing_is_due_visits_no_shard(visits: list[str]) -> None:
    """It visited every open shard: with a million of them for some seconds of every ten."""
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        for number in range(5):
            await engine.create_shard(f"s/{number}", ShardConfig())
            await append(engine, f"s/{number}", b"x")
        await engine.create_shard("aged", ShardConfig(retention=Retention(max_age_s=3600)))
        await append(engine, "aged", b"x")
        await look(engine)
        assert len(taken(visits)) == 6
        for _ in range(10):
            clock.advance(seconds=10)
            await look(engine)
        assert taken(visits) == []
        # Neither does an append to a segment that has records already: it makes nothing due earlier.
        await append(engine, "s/1", b"y")
        await append(engine, "aged", b"y")
        await look(engine)
        assert taken(visits) == []


async def test_a_shard_is_visited_when_its_time_has_come(visits: list[str]) -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.create_shard("early", ShardConfig())
        await engine.create_shard("late", ShardConfig())
        await append(engine, "early", b"x")
        clock.advance(seconds=100)
        await append(engine, "late", b"x")
        await look(engine)
        visits.clear()
        clock.advance(seconds=CLOSE_AFTER_S - 90)
        await look(engine)
        assert taken(visits) == ["early"]
        assert [len(engine.shard(name).segments) for name in ("early", "late")] == [2, 1]
        clock.advance(seconds=100)
        await look(engine)
        # The other one was changed by the look before.
        assert taken(visits) == ["early", "late"]
        assert [len(engine.shard(name).segments) for name in ("early", "late")] == [2, 2]


@pytest.mark.parametrize("retention", [Retention(max_records=2), Retention(max_bytes=300)], ids=["records", "bytes"])
async def test_an_append_to_a_shard_with_a_bound_of_its_size_is_looked_at(
    retention: Retention, visits: list[str]
) -> None:
    async with opened(SimulatedFileSystem(), ManualClock(), NOT_CONVERTING) as engine:
        await engine.create_shard("bounded", ShardConfig(retention=retention))
        await engine.create_shard("free", ShardConfig())
        await append(engine, "bounded", b"1", b"2")
        await engine.roll("bounded")
        await look(engine)
        visits.clear()
        await look(engine)
        assert taken(visits) == []
        await append(engine, "bounded", bytes(300))
        await append(engine, "free", b"3")
        await look(engine)
        assert taken(visits) == ["bounded"]
        assert engine.shard("bounded").start_offset == 2


@pytest.mark.parametrize("is_closed", [False, True], ids=["active", "closed"])
async def test_what_is_beyond_its_age_is_dropped_at_the_first_look_after_it(is_closed: bool, visits: list[str]) -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock, NOT_CONVERTING) as engine:
        await engine.create_shard("s", ShardConfig(retention=Retention(max_age_s=60)))
        await append(engine, "s", b"1")
        if is_closed:
            await engine.roll("s")
        await look(engine)
        visits.clear()
        clock.advance(seconds=50)
        await look(engine)
        assert taken(visits) == []
        clock.advance(seconds=10)
        await look(engine)
        assert engine.shard("s").start_offset == 0
        clock.advance(microseconds=1)
        await look(engine)
        assert engine.shard("s").start_offset == 1


async def test_the_time_before_a_start_counts_for_the_closing_of_a_segment() -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"1")
    clock.advance(seconds=CLOSE_AFTER_S - 40)
    async with opened(files, clock) as engine:
        shard = engine.shard("s")
        await look(engine)
        assert len(shard.segments) == 1
        clock.advance(seconds=41)
        await look(engine)
        assert len(shard.segments) == 2


async def test_memory_segments_beyond_the_bound_are_dropped_after_the_mode_was_switched() -> None:
    async with opened(SimulatedFileSystem(), ManualClock(), NOT_CONVERTING) as engine:
        await engine.create_shard("s", ShardConfig(Mode.MEMORY))
        await append(engine, "s", bytes(9000))
        await look(engine)
        shard = engine.shard("s")
        assert [segment.kind for segment in shard.segments] == [SegmentKind.MEMORY]
        await engine.set_mode("s", Mode.FILE)
        await look(engine)
        assert (shard.start_offset, [segment.kind for segment in shard.segments]) == (1, [SegmentKind.LOG])


async def test_the_first_append_to_an_empty_segment_begins_the_time_to_its_closing() -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"1")
        await engine.roll("s")
        for _ in range(2):
            await look(engine)
        clock.jump(seconds=-CLOSE_AFTER_S)
        await append(engine, "s", b"2")
        await look(engine)
        # The time of day tells no age now: the elapsed time does.
        clock.advance(seconds=CLOSE_AFTER_S + 1)
        clock.jump(seconds=-CLOSE_AFTER_S)
        await look(engine)
        assert [segment.next_offset for segment in engine.shard("s").segments if segment.closed] == [1, 2]


# Changes


async def test_a_retention_that_is_changed_counts_at_the_next_look() -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock, NOT_CONVERTING) as engine:
        await engine.create_shard("s", ShardConfig(retention=Retention(max_age_s=86_400)))
        await append(engine, "s", b"1")
        await look(engine)
        clock.advance(seconds=60)
        await engine.configure_shard("s", retention=Retention(max_age_s=30))
        await look(engine)
        assert engine.shard("s").start_offset == 1
        await engine.configure_shard("s", retention=Retention())
        await append(engine, "s", b"2", b"3")
        await engine.roll("s")
        await look(engine)
        await engine.configure_shard("s", retention=Retention(max_records=1))
        await look(engine)
        assert engine.shard("s").start_offset == 3


async def test_what_was_not_durable_at_one_look_is_dropped_at_a_later_one() -> None:
    async with opened(SimulatedFileSystem(), ManualClock(), NOT_CONVERTING) as engine:
        await engine.create_shard("s", ShardConfig(retention=Retention(max_age_s=1)))
        await append(engine, "s", b"1")
        shard = engine.shard("s")
        retention = engine.parts.checkpointer.retention
        retention._expiry_us = lambda: engine.now_us() + 60 * SECOND_US
        # No other task runs before the visit, so the record cannot become durable before.
        acknowledgement = PendingAck()
        engine.append_nowait(shard, encode_values([b"2"], timestamp_us=engine.now_us()), acknowledgement)
        assert (shard.next_offset, shard.published_offset) == (2, 1)
        retention._visit(shard, retention._expiry_us(), retention._monotonic_us())
        assert shard.trim_decided == 1
        await acknowledgement.wait()
        assert shard.published_offset == 2
        await look(engine)
        assert shard.start_offset == 2


async def test_after_a_start_the_shards_that_need_looks_are_visited(visits: list[str]) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock) as engine:
        for name, bounds in (("aged", Retention(max_age_s=3600)), ("free", Retention())):
            await engine.create_shard(name, ShardConfig(retention=bounds))
            await append(engine, name, b"x")
            await engine.roll(name)
        await look(engine)
        visits.clear()
    clock.advance(seconds=4000)
    async with opened(files, clock) as engine:
        await engine.parts.checkpointer.retention.open_shards()
        await look(engine)
        assert "aged" in taken(visits)
        assert engine.shard("aged").start_offset == 1
        assert engine.shard("free").start_offset == 0


async def test_shards_that_come_and_go_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "_MOST_REFUSED", 10)
    async with opened(SimulatedFileSystem(), ManualClock()) as engine:
        await engine.create_shard("stays", ShardConfig())
        shards: weakref.WeakSet[Shard] = weakref.WeakSet()
        for _ in range(100):
            await engine.create_shard("s", ShardConfig())
            shards.add(engine.shard("s"))
            await engine.delete_shard("s")
            await look(engine)
        retention = engine.parts.checkpointer.retention
        assert len(retention._closing_order) <= 2 * engine.parts.table.open_count + 10
        assert not retention._schedule._changed
        await engine.parts.checkpointer.checkpoint()
        assert len(shards) <= 1


# Closing shards that are not used


async def test_shards_that_cannot_be_closed_are_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look examined all of them, for as long as there were more than may stay open."""
    examined: list[str] = []
    close: Callable[..., bool] = SegmentRetention._closed_if_idle

    def noting(self: SegmentRetention, shard: Shard) -> bool:
        examined.append(shard.name)
        return close(self, shard)

    monkeypatch.setattr(SegmentRetention, "_closed_if_idle", noting)
    monkeypatch.setattr(retention_module, "_MOST_REFUSED", 3)
    async with opened(SimulatedFileSystem(), ManualClock()) as engine:
        for number in range(8):
            await engine.create_shard(f"s/{number}", ShardConfig())
            await append(engine, f"s/{number}", b"x")
        engine.parts.table.most_open = 0
        for count in (3, 6, 8, 8):
            await look(engine)
            assert len(examined) == len(set(examined)) == count
        await engine.roll("s/5")
        await engine.parts.checkpointer.checkpoint()
        await look(engine)
        assert examined[8:] == ["s/5"]
        assert "s/5" not in {shard.name for shard in engine.open_shards()}


async def test_shards_behind_many_that_cannot_be_closed_are_closed_by_later_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_module, "_MOST_REFUSED", 3)
    async with opened(SimulatedFileSystem(), ManualClock(), NOT_CONVERTING) as engine:
        for number in range(10):
            await engine.create_shard(f"s/{number}", ShardConfig())
        await engine.parts.checkpointer.checkpoint()
        for number in range(7):
            engine.shard(f"s/{number}").add_listener(lambda shard: None)
        engine.parts.table.most_open = 0
        for _ in range(4):
            await look(engine)
        assert sorted(shard.name for shard in engine.open_shards()) == [f"s/{number}" for number in range(7)]


# Compared with a look at all open shards


def is_for_conversion(engine: Engine, active: Segment) -> bool:
    conversion = engine.parts.config.conversion
    return conversion.enabled and isinstance(active, LogSegment) and active.next_offset > active.base_offset


def is_to_be_closed(engine: Engine, shard: Shard, active: Segment, now_us: int, monotonic_us: int) -> bool:
    max_age_s = shard.config.retention.max_age_s
    age_us = now_us - active.newest_append_us
    if max_age_s and active.next_offset > active.base_offset and age_us > max_age_s * SECOND_US:
        return True
    if not is_for_conversion(engine, active):
        return False
    assert isinstance(active, LogSegment)
    if active.seen_since_us is None:
        active.seen_since_us = monotonic_us
    age_us = max(now_us - active.created_us, monotonic_us - active.seen_since_us)
    return age_us > CLOSE_AFTER_S * SECOND_US


async def look_at_all(engine: Engine) -> None:
    """A look as it was before: it visits every open shard."""
    parts = engine.parts
    checkpointer = parts.checkpointer
    now_us, monotonic_us = parts.time.expiry_us(), parts.time.monotonic_us()
    for shard in engine.open_shards():
        active = shard.active()
        if active is not None and not shard.damage and is_to_be_closed(engine, shard, active, now_us, monotonic_us):
            parts.commands.roll_nowait(shard)
        checkpointer.retention.retain(shard)
    parts.committer.kick()
    await trio.lowlevel.checkpoint()
    for shard in engine.open_shards():
        active = shard.active()
        if (
            parts.table.may_close()
            and shard.is_at_rest
            and shard.config.retention == Retention()
            and shard.shard_id not in checkpointer.dirty
            and (active is None or not is_for_conversion(engine, active))
        ):
            parts.discovery.closing(shard)
            parts.table.close(shard)
    await parts.committer.drain()


def state_of(engine: Engine) -> dict[str, Any]:
    return {
        shard.name: (
            shard.start_offset,
            shard.trim_decided,
            shard.next_offset,
            shard.losses,
            [(each.kind, each.base_offset, each.next_offset, each.closed) for each in shard.segments],
        )
        for shard in engine.open_shards()
    }


class Pair:
    """Two engines with the same history: one looks at what may be due, the other one at everything."""

    def __init__(self, clock: ManualClock, engines: list[Engine], most_open: int) -> None:
        self.clock = clock
        self.engines = engines
        self.held: list[list[Shard]] = [[], []]
        for engine in engines:
            engine.parts.table.most_open = most_open

    async def look(self) -> None:
        # The background work may have to open shards, or to put parts of files into them.
        await trio.testing.wait_all_tasks_blocked()
        await look(self.engines[0])
        await look_at_all(self.engines[1])
        assert state_of(self.engines[0]) == state_of(self.engines[1])

    async def do(self, what: str, argument: Any, name: str) -> None:
        if what == "advance and look":
            self.clock.advance(seconds=argument)
            await self.look()
        elif what == "jump":
            self.clock.jump(seconds=argument)
        elif what == "look":
            await self.look()
        else:
            for engine, held in zip(self.engines, self.held, strict=True):
                await self._do_in(engine, held, what, argument, name)
        for engine in self.engines:
            engine.parts.time.sample()

    async def _do_in(self, engine: Engine, held: list[Shard], what: str, argument: Any, name: str) -> None:
        exists = engine.shard_id(name) is not None
        if what == "append":
            if not exists:
                await engine.create_shard(name, ShardConfig(segment_bytes=4096))
            await append(engine, name, *[bytes(1000)] * argument)
        elif what == "checkpoint":
            await engine.parts.checkpointer.checkpoint()
        elif what == "let go":
            held.clear()
        elif what == "append to held":
            for shard in held:
                if not shard.deleted:
                    await engine.append(shard, encode_values([b"held"], timestamp_us=1))
        elif exists:
            await self._change(engine, held, what, argument, name)

    async def _change(self, engine: Engine, held: list[Shard], what: str, argument: Any, name: str) -> None:
        if what == "configure":
            await engine.configure_shard(name, retention=argument)
        elif what == "mode":
            await engine.set_mode(name, argument)
        elif what == "roll":
            await engine.roll(name)
        elif what == "convert":
            await engine.convert(name)
        elif what == "trim":
            await engine.trim(name, engine.shard(name).published_offset - 1 if argument else 0)
        elif what == "delete":
            await engine.delete_shard(name)
        elif what == "open":
            held.append(engine.shard(name))


bounds = st.sampled_from([0, 1, 20, 600])
retentions = st.one_of(
    st.just(Retention()),
    st.builds(Retention, max_age_s=bounds),
    st.builds(Retention, max_bytes=st.sampled_from([3000, 9000])),
    st.builds(Retention, max_records=st.sampled_from([1, 6])),
    st.builds(Retention, max_age_s=bounds, max_bytes=st.just(9000), max_records=st.just(6)),
)
seconds = st.sampled_from([1, 9, 15, 70, CLOSE_AFTER_S + 1, 4000])
actions = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("advance and look"), seconds),
    st.tuples(st.just("advance and look"), seconds),
    st.tuples(st.just("jump"), seconds.map(lambda each: -each) | seconds),
    st.tuples(st.just("configure"), retentions),
    st.tuples(st.just("mode"), st.sampled_from(list(Mode))),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.sampled_from(["convert", "delete", "open", "let go", "append to held"]), st.none()),
    st.tuples(st.just("trim"), st.booleans()),
    st.tuples(st.sampled_from(["checkpoint", "restart", "crash"]), st.none()),
)
histories = st.lists(st.tuples(actions, st.sampled_from(["a", "b"])), min_size=10, max_size=60)


def lives_of(history: list[tuple[tuple[str, Any], str]]) -> list[tuple[list[tuple[tuple[str, Any], str]], str]]:
    """The steps of each run of the engines, and how it ends."""
    lives: list[tuple[list[tuple[tuple[str, Any], str]], str]] = []
    steps: list[tuple[tuple[str, Any], str]] = []
    for step in history:
        if step[0][0] in ("restart", "crash"):
            lives.append((steps, step[0][0]))
            steps = []
        else:
            steps.append(step)
    return [*lives, (steps, "restart")]


@pytest.mark.slow("runs two engines through many histories")
@pytest.mark.smoke
@pytest.mark.parametrize("config", [SETTINGS, NOT_CONVERTING], ids=["converting", "not converting"])
@given(history=histories, most_open=st.sampled_from([0, 9]))
@settings(max_examples=60, deadline=None)
async def test_looks_at_what_may_be_due_drop_and_close_what_looks_at_everything_do(
    config: ServerConfig, history: list[tuple[tuple[str, Any], str]], most_open: int
) -> None:
    if not config.conversion.enabled:
        history = [step for step in history if step[0][0] != "convert"]
    both, clock = [SimulatedFileSystem(), SimulatedFileSystem()], ManualClock()
    for steps, end in lives_of(history):
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(opened(files, clock, config)) for files in both]
            for engine in engines:
                await engine.parts.checkpointer.retention.open_shards()
            pair = Pair(clock, engines, most_open)
            await pair.look()
            for (what, argument), name in steps:
                await pair.do(what, argument, name)
            for _ in range(2):
                await pair.look()
            if end == "crash":
                for engine in engines:
                    stop_without_checkpoint(engine)
        if end == "crash":
            both = [files.crash(everything_survived) for files in both]
