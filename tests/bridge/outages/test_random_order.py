"""All outages in random order, on both sides of a bridge at once; the ledger must balance at the end."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.bridge.outages.disk import SETTINGS, small_disk
from tests.bridge.outages.havoc import KILLS, OF_SINK, Havoc
from tests.bridge.outages.world import open_world

POISON_SHARE = 0.004
"""Few: for each one mosquitto 2.0.11 ends some connections, and each time its sink counts as out for a moment."""


async def run_havoc(directory: Path, sink: str, seed: int, seconds: float) -> tuple[int, Havoc]:
    """One run; how many messages were acknowledged, and what happened."""
    rng = random.Random(seed)
    with small_disk(directory / "disk", size_mib=128) as disk:
        async with open_world(
            directory, sink, brokers=2, data=disk / "data", settings=SETTINGS, seed=rng.randrange(1 << 30)
        ) as world:
            await world.wait_driven()
            if world.stage.refused() is not None:
                world.publish_poison(POISON_SHARE)
            havoc = Havoc(world, rng, disk)
            try:
                await havoc.wreak(seconds)
                await world.check()
            except BaseException as error:
                error.add_note(f"seed {seed}, {havoc.course}")
                raise
            return world.ledger.acknowledged_count, havoc


@pytest.mark.slow("outages for seconds")
@pytest.mark.timeout(90)
async def test_the_ledger_balances_after_outages_in_random_order(tmp_path: Path) -> None:
    acknowledged_count, havoc = await run_havoc(tmp_path, "postgresql", seed=1, seconds=8)
    assert acknowledged_count > 200, havoc.course
    assert len(havoc.counts) >= 5, havoc.course


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("sink", ["http", "postgresql", "mqtt_mosquitto", "redis"])
async def test_the_ledger_balances_after_a_minute_of_outages(
    sink: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OUTAGE_SEED repeats a run, as far as the machine lets it be repeated."""
    seed = int(os.environ.get("OUTAGE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    with capsys.disabled():
        print(f"\noutages of {sink}: seed {seed}", flush=True)
    acknowledged_count, havoc = await run_havoc(tmp_path, sink, seed, seconds=60)
    with capsys.disabled():
        print(f"{acknowledged_count} messages, {dict(havoc.counts)}", flush=True)
    assert acknowledged_count > 1000
    assert len(havoc.counts) == len(OF_SINK) + len(KILLS) + 1, havoc.course
