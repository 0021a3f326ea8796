"""The power goes off at any file system operation while commits run: of each, all is there afterwards or nothing.

Each commit writes its number into two shards and a key, and a counter by compare-and-set. What was answered must be
there; what was not may be, but whole, and only as far as the counter got.
"""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from journal.engine import Engine
from journal.engine.write.transactions import Put
from shards.errors import VersionConflictError
from shards.format.batch import encode_values, read_records
from shards.format.record import StoredRecord
from shards.model import ShardConfig
from shards.seams.clock import ManualClock
from tests.crash.simulation import run
from tests.crash.test_simulated_crashes import choices
from tests.simulation.file_system import SimulatedFileSystem

SHARDS = ("left", "right")
WRITERS = 3


@attrs.define
class Life:
    """One disk, and the numbers whose commit was answered."""

    files: SimulatedFileSystem = attrs.Factory(SimulatedFileSystem)
    clock: ManualClock = attrs.Factory(ManualClock)
    answered: set[int] = attrs.Factory(set)
    seed: int = 0

    def live(self, commits: int) -> None:
        async def body(engine: Engine) -> None:
            await self.check(engine)
            for shard in SHARDS:
                await engine.create_shard(shard, ShardConfig(), exist_ok=True)
            async with trio.open_nursery() as nursery:
                for writer in range(WRITERS):
                    nursery.start_soon(self.write, engine, commits, random.Random(self.seed * 10 + writer))

        self.seed += 1
        run(self.files, body, seed=self.seed, clock=self.clock)

    async def write(self, engine: Engine, commits: int, rng: random.Random) -> None:
        for _ in range(commits):
            counter = engine.get_state(b"counter")
            number = int(counter.value) + 1 if counter else 1
            value = b"%d " % number + bytes(rng.choice((0, 700)))
            batch = encode_values([value], timestamp_us=1)
            puts = [
                Put(b"counter", b"%d" % number, counter.version if counter else 0),
                Put(b"number/%d" % number, value),
            ]
            try:
                await engine.parts.transactions.commit([(shard, batch) for shard in SHARDS], puts, [])
            except VersionConflictError:
                continue
            self.answered.add(number)

    async def check(self, engine: Engine) -> None:
        counter = engine.get_state(b"counter")
        last = int(counter.value) if counter else 0
        numbers = list(range(1, last + 1))
        assert self.answered <= set(numbers)
        assert len((await engine.scan_state(b"number/", None, 10_000))[0]) == last
        for name in SHARDS:
            if engine.parts.table.catalogue.id_of(name) is not None:
                assert await numbers_in(engine, name) == numbers


async def numbers_in(engine: Engine, name: str) -> list[int]:
    shard = engine.parts.table.by_name(name)
    found: list[int] = []
    offset = 0
    while offset < shard.published_offset:
        extent = await engine.parts.reader.read(shard, offset, 1 << 20, None)
        records = read_records(b"".join(extent.buffers), start_offset=offset)
        found += [int(record.value.split(b" ")[0]) for record in records if isinstance(record, StoredRecord)]
        offset = extent.next_offset
    return found


def operations() -> int:
    life = Life()
    life.live(8)
    return len(life.files.operations)


@pytest.mark.slow("an engine after each place of a crash")
@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["all-lost", "all-there", "torn-2", "torn-3"])
def test_a_commit_is_there_whole_or_not_at_all(kind: int) -> None:
    count = operations()
    for operation in range(1 + kind, count, 5):
        life = Life()
        life.files.crash_at(operation)
        life.live(8)
        life.files = life.files.crash(choices(kind))
        life.live(4)
        life.live(0)
        assert len(life.answered) >= 4
