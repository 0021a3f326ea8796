"""Shards that were opened and are not used are closed again, without an effect for clients."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine import Engine, SubscriptionTarget, open_engine
from journal.engine.subscribe.subscription import Subscription
from journal.settings.server import ConversionConfig
from shards.format.batch import encode_values
from shards.model import Mode, Retention, ShardConfig
from shards.position import Start
from shards.subscriptions.events import Push
from tests.journal.engines import append, apply_retention, config, open_simulated, values_of
from tests.simulation.file_system import SimulatedFileSystem

SHARDS = 40
# Shards whose records are still to be gathered stay open until they are.
NOT_CONVERTING = attrs.evolve(config(), conversion=ConversionConfig(enabled=False))


async def make(engine: Engine, count: int = SHARDS) -> None:
    for number in range(count):
        await engine.create_shard(f"s/{number}", ShardConfig())
        await append(engine, f"s/{number}", b"%d" % number)


async def close_idle(engine: Engine, *, most_open: int = 0) -> None:
    """What the background work does from time to time."""
    engine.parts.table.most_open = most_open
    await engine.parts.checkpointer.checkpoint()
    await apply_retention(engine)


async def subscribed(engine: Engine, topic_filter: str, start: Start) -> Subscription:
    return await engine.parts.subscriptions.subscribe(
        SubscriptionTarget(topic_filter=topic_filter),
        start=start,
        on_ready=lambda: None,
        credit_bytes=lambda: 1 << 20,
    )


async def test_shards_that_were_opened_are_closed_again(tmp_path: Path) -> None:
    """Every shard that was ever opened stayed in memory until the stop."""
    async with open_engine(str(tmp_path / "data"), NOT_CONVERTING) as engine:
        await make(engine)
    async with open_engine(str(tmp_path / "data"), NOT_CONVERTING) as engine:
        for number in range(SHARDS):
            assert engine.get_cursor(f"s/{number}", "c") is None
            await append(engine, f"s/{number}", b"more")
        objects = weakref.WeakSet(engine.parts.table.open_shards())
        assert len(objects) == SHARDS
        await close_idle(engine, most_open=10)
        gc.collect()
        assert len(engine.parts.table.open_shards()) == len(objects) == 10
        for number in range(SHARDS):
            assert await values_of(engine, f"s/{number}") == [b"%d" % number, b"more"]


async def test_what_is_in_use_or_looked_at_from_time_to_time_stays_open(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), NOT_CONVERTING) as engine:
        await make(engine, 4)
        await engine.create_shard("memory", ShardConfig(Mode.MEMORY))
        await engine.create_shard("retained", ShardConfig(retention=Retention(max_records=5)))
        feed = await subscribed(engine, "s/1", Start.latest())
        await append(engine, "s/1", b"x")
        while await feed.take(1 << 20) is not None:
            pass
        await engine.parts.checkpointer.checkpoint()
        await append(engine, "s/2", b"not saved yet")
        engine.parts.table.most_open = 0
        await apply_retention(engine)
        assert {shard.name for shard in engine.parts.table.open_shards()} == {"memory", "retained", "s/1", "s/2"}
        feed.close()


async def test_who_holds_a_closed_shard_and_who_opens_it_again_have_the_same(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), NOT_CONVERTING) as engine:
        await make(engine, 3)
        held = engine.parts.table.by_name("s/1")
        await close_idle(engine)
        assert not engine.parts.table.open_shards()
        # As a client's handle does.
        assert (await engine.append(held, encode_values([b"x"], timestamp_us=1))).base_offset == 1
        await engine.parts.checkpointer.checkpoint()
        assert engine.parts.table.by_name("s/1") is held
        await close_idle(engine)
        assert engine.parts.table.by_name("s/1") is held
        del held
        await close_idle(engine)
        assert await values_of(engine, "s/1") == [b"1", b"x"]


async def test_a_feed_finds_closed_shards_that_have_published_since(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), NOT_CONVERTING) as engine:
        await make(engine, 2 * SHARDS)
        from_lsn = engine.parts.committer.committed_lsn + 1
        for number in range(0, SHARDS, 3):
            await append(engine, f"s/{number}", b"new")
        await close_idle(engine)
        assert not engine.parts.table.open_shards()
        for topic_filter in ("s/#", "+/+"):
            feed = await subscribed(engine, topic_filter, Start.lsn(from_lsn))
            pushed = 0
            while (item := await feed.take(1 << 20)) is not None:
                pushed += isinstance(item, Push)
            assert pushed == len(range(0, SHARDS, 3))
            await append(engine, "s/1", b"live")
            while not isinstance(await feed.take(1 << 20), Push):
                await trio.lowlevel.checkpoint()
            feed.close()
            await engine.trim("s/1", engine.parts.table.by_name("s/1").published_offset)


numbers = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("append"), numbers),
    st.tuples(st.just("mode"), numbers),
    st.tuples(st.just("roll"), numbers),
    st.tuples(st.just("trim"), numbers),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.just("cursor"), numbers),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(history=st.lists(steps, max_size=25))
@settings(max_examples=60, deadline=None)
async def test_nothing_changes_by_being_closed(history: list[tuple[str, int]]) -> None:
    """The values, offsets and cursors of shards that are closed at any time are those of a plain model."""
    files = SimulatedFileSystem()
    model: dict[str, list[bytes]] = {}
    starts: dict[str, int] = {}
    cursors: dict[str, int] = {}
    memory: set[str] = set()
    lives: list[list[tuple[str, int]]] = [[]]
    for step in history:
        lives[-1].append(step)
        if step[0] == "restart":
            lives.append([])
    count = 0
    for life in lives:
        async with open_simulated(files) as engine:
            engine.parts.table.most_open = 0
            for what, number in life:
                name = f"s/{number}"
                if what == "append":
                    if name not in model:
                        await engine.create_shard(name, ShardConfig())
                        model[name], starts[name] = [], 0
                    count += 1
                    await append(engine, name, b"%d" % count)
                    model[name].append(b"%d" % count)
                elif what == "close":
                    await close_idle(engine)
                elif name not in model:
                    continue
                elif what == "mode":
                    memory ^= {name}
                    await engine.set_mode(name, Mode.MEMORY if name in memory else Mode.FILE)
                elif what == "roll":
                    await engine.roll(name)
                elif what == "trim" and model[name]:
                    starts[name] = len(model[name]) - 1
                    await engine.trim(name, starts[name])
                elif what == "cursor":
                    cursors[name] = len(model[name])
                    await engine.commit_cursor(name, "c", cursors[name], None)
                elif what == "delete":
                    await engine.delete_shard(name)
                    del model[name]
                    cursors.pop(name, None)
                    memory.discard(name)
                if memory:
                    # What is in memory is lost with a restart: not what this is about.
                    for each in sorted(memory):
                        await engine.set_mode(each, Mode.FILE)
                    memory.clear()
            for name, values in model.items():
                shard = engine.parts.table.by_name(name)
                assert shard.published_offset == len(values)
                assert shard.start_offset == starts[name]
                assert await values_of(engine, name) == values[starts[name] :]
                cursor = engine.get_cursor(name, "c")
                assert (None if cursor is None else cursor.offset) == cursors.get(name)
