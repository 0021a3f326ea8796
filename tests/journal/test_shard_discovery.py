"""Whatever published above an lsn is found, in memory or in stored records, and waiting tasks are notified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.engine import Engine
from journal.engine.state import shard_discovery
from journal.engine.state.shard_discovery import ShardDiscovery
from journal.engine.time_slice import TimeSlice
from shards.model import Mode, ShardConfig
from shards.segments.shard import Shard
from shards.topics.topic_filters import matches
from tests.journal.engines import append, open_simulated, stop_without_checkpoint
from tests.patience import PATIENCE_S
from tests.simulation.file_system import SimulatedFileSystem

NAMES = ("a", "a/1", "a/2", "b/1", "$sys/x")
CONFIGS = {name: ShardConfig(mode=Mode.MEMORY if name == "a/2" else Mode.FILE) for name in NAMES}
FILTERS = ("#", "a/#", "+/1", "a/1", "$sys/#", "nothing/#")

Step = tuple[str, str]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(NAMES)),
        st.tuples(st.just("wait"), st.sampled_from(FILTERS)),
        st.tuples(st.just("forget"), st.sampled_from(FILTERS)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    ),
    max_size=20,
)


class ShortSlice(TimeSlice):
    """Over after each second thing that is done, however long that takes."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    @property
    def is_over(self) -> bool:
        self._asked += 1
        return self._asked % 2 == 0


@pytest.fixture(scope="module", autouse=True, params=[0, 1000], ids=["by lsn", "by name"])
def few_names(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to search, and pages that are full now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_discovery, "_FEW_NAMES", request.param)
        for name in ("_LOOKED_AT_ONCE", "_SORTED_AT_ONCE"):
            patch.setattr(shard_discovery, name, 2)
        patch.setattr(shard_discovery, "TimeSlice", ShortSlice)
        yield


@attrs.define(eq=False)
class Waiter:
    """A subscriber to new shards.

    Attributes:
        told: Of these shards.
        published: These have published since it began to wait.
    """

    told: set[str] = attrs.Factory(set)
    published: set[str] = attrs.Factory(set)
    is_forgotten: bool = False

    def arrives(self, shard: Shard) -> None:
        assert not self.is_forgotten
        self.told.add(shard.name)


async def found_by(discovery: ShardDiscovery, topic_filter: str, above_lsn: int | None) -> list[str]:
    search = discovery.search(topic_filter, above_lsn)
    found: list[str] = []
    while (some := await search.more()) is not None:
        found += [shard.name for shard in some]
    return found


class Model:
    """What published last at which lsn, and who waits for what."""

    def __init__(self) -> None:
        self.lsns: dict[str, int] = {}
        self.newest_lsn = 0
        self.waiting: dict[str, Waiter] = {}

    async def step(self, engine: Engine, action: str, name: str) -> None:
        if action == "append":
            await self.append(engine, name)
        elif action == "delete" and name in self.lsns:
            await engine.delete_shard(name)
            del self.lsns[name]
            for waiter in self.waiting.values():
                waiter.published.discard(name)
        elif action == "wait" and name not in self.waiting:
            self.waiting[name] = Waiter()
            engine.parts.discovery.wait(name, self.waiting[name])
        elif action == "forget" and name in self.waiting:
            waiter = self.waiting.pop(name)
            engine.parts.discovery.forget(name, waiter)
            waiter.is_forgotten = True

    async def append(self, engine: Engine, name: str) -> None:
        await engine.create_shard(name, CONFIGS[name], exist_ok=True)
        await append(engine, name, b"x")
        self.newest_lsn = self.lsns[name] = engine.parts.table.by_name(name).published_lsn
        for topic_filter, waiter in self.waiting.items():
            if matches(topic_filter, name) and name not in waiter.published:
                assert name in waiter.told, f"{topic_filter} was not told of the first record of {name}"
            waiter.published.add(name)
            assert all(matches(topic_filter, told) for told in waiter.told)

    async def check(self, engine: Engine) -> None:
        for topic_filter in FILTERS:
            fitting = {name for name in self.lsns if matches(topic_filter, name)}
            for above_lsn in {0, self.newest_lsn, *self.lsns.values()}:
                found = set(await found_by(engine.parts.discovery, topic_filter, above_lsn))
                newer = {name for name in fitting if self.lsns[name] > above_lsn}
                assert newer <= found <= fitting, f"{topic_filter} above {above_lsn}"
            found = set(await found_by(engine.parts.discovery, topic_filter, None))
            assert found == fitting

    def restart(self) -> None:
        """Who waited is gone, and so are the records of memory mode."""
        self.waiting.clear()
        self.lsns |= {name: 0 for name in self.lsns if CONFIGS[name].mode is Mode.MEMORY}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives=st.lists(st.tuples(STEPS, st.booleans()), min_size=1, max_size=3))
async def test_newer_shards_are_found_and_waiting_tasks_are_woken(lives: list[tuple[list[Step], bool]]) -> None:
    files, model = SimulatedFileSystem(), Model()
    with trio.fail_after(PATIENCE_S):
        for steps, ends_well in lives:
            async with open_simulated(files) as engine:
                await model.check(engine)
                for action, name in steps:
                    await model.step(engine, action, name)
                    await model.check(engine)
                if not ends_well:
                    stop_without_checkpoint(engine)
            model.restart()


async def test_those_who_search_at_once_share_one_list_of_what_is_stored() -> None:
    """Making it costs a look at every shard; a hundred feeds that come back together must not each do so."""
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        for name in NAMES:
            await engine.create_shard(name, ShardConfig())
            await append(engine, name, b"x")
    async with open_simulated(files) as engine:
        lists = []

        async def ask() -> None:
            lists.append(list(await engine.parts.discovery.stored_newer_than(0)))

        made = 0
        make = engine.parts.discovery._list_stored

        async def counted() -> Any:
            nonlocal made
            made += 1
            return await make()

        engine.parts.discovery._list_stored = counted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        assert made == 1
        assert all(sorted(one) == sorted(lists[0]) for one in lists)
        assert len(lists[0]) == len(NAMES)


async def test_who_is_cancelled_while_making_the_list_leaves_it_to_the_next() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        for name in NAMES:
            await engine.create_shard(name, ShardConfig())
            await append(engine, name, b"x")
    async with open_simulated(files) as engine:
        with trio.move_on_after(0) as scope:
            await engine.parts.discovery.stored_newer_than(0)
        assert scope.cancelled_caught
        with trio.fail_after(PATIENCE_S):
            assert len(await engine.parts.discovery.stored_newer_than(0)) == len(NAMES)
