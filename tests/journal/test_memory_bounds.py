"""How much of a shard in memory mode is kept that has no retention of its own."""

from __future__ import annotations

import attrs
import pytest

from journal.settings.server import ShardsConfig
from shards.model import Mode, ShardConfig
from tests.journal.engines import append, apply_retention, config, open_simulated, values_of
from tests.simulation.file_system import SimulatedFileSystem


@pytest.mark.parametrize(("bound", "kept"), [(0, 4), (1 << 30, 4), (1, 2)], ids=["no-bound", "large", "small"])
async def test_closed_memory_segments_stay_within_the_default_bound(bound: int, kept: int) -> None:
    """A bound of 0 is none; it took every closed segment away."""
    bounded = attrs.evolve(config(), shards=ShardsConfig(memory_max_bytes=bound))
    async with open_simulated(SimulatedFileSystem(), bounded) as engine:
        await engine.create_shard("s", ShardConfig(mode=Mode.MEMORY))
        for number in range(3):
            await append(engine, "s", b"%d" % number)
            if number < 2:
                await engine.roll("s")
        await apply_retention(engine)
        await append(engine, "s", b"committed behind the trims")
        assert len(await values_of(engine, "s")) == kept
