"""What is done to cache queues, their drivers and their sinks under publishers. Each phase is one round."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.bridge.outages.havoc import KILLS, OF_OPERATOR, OF_SINK, Havoc
from tests.bridge.outages.impatient_broker import LEASE
from tests.bridge.outages.world import World, open_world
from tests.torture.rounds import Result

SINKS = ("files", "http", "redis", "postgresql", "mqtt_mosquitto")
POISON_SHARE = 0.01
FREEZES = ("freeze_broker", "freeze_server", "lose_answers")
SETTLED_S = 15.0
"""How long a message may wait when nothing has been out for as long: until a lease has run out, a candidate has looked
(both as the brokers of these tests have them) and the breaker of a sink has tried it again, and as much again for a
busy machine."""


def queues(directory: Path, rng: random.Random, seconds: float) -> Result:
    """A queue is drained to files while its mode changes, while it is purged, and while letters are put back.

    Brokers and the store are killed and frozen, and answers of the store are lost; at last the queue is deleted.
    """
    return trio.run(_round, directory, rng, seconds, "files", ("kill_sink", *KILLS, *FREEZES, *OF_OPERATOR))


def bridges(directory: Path, rng: random.Random, seconds: float) -> Result:
    """A bridge to a real sink, out in every way, while brokers and the store are killed and frozen."""
    sink = rng.choice(SINKS)
    of_sink = OF_SINK if sink != "files" else ("kill_sink",)
    return trio.run(_round, directory, rng, seconds, sink, (*of_sink, *KILLS, *FREEZES))


async def _round(directory: Path, rng: random.Random, seconds: float, sink: str, kinds: Sequence[str]) -> Result:
    result = Result()
    try:
        async with open_world(directory, sink, brokers=2, seed=rng.randrange(1 << 30), with_relays=True) as world:
            await _break_everything(world, rng, seconds, kinds, result)
            world.ledger.history.write(directory / "history.jsonl")
    except pytest.skip.Exception as skipped:
        return Result(skipped=f"{sink}: {skipped.msg}")
    return result


async def _break_everything(
    world: World, rng: random.Random, seconds: float, kinds: Sequence[str], result: Result
) -> None:
    assert 2 * LEASE.lease_s < SETTLED_S
    await world.wait_driven()
    if world.stage.refused() is not None:
        world.publish_poison(POISON_SHARE)
    havoc = Havoc(world, rng, kinds=kinds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.watch_progress)
        await havoc.wreak(seconds)
        result.broken += await world.problems(held_up_s=SETTLED_S)
        nursery.cancel_scope.cancel()
    if "change_mode" in kinds and not result.broken:
        result.broken += await world.delete_queue_of_killed_drivers()
    if result.broken:
        result.broken.append(f"what was done: {', '.join(havoc.course)}")
    result.counts += Counter({name.replace("_", " "): count for name, count in havoc.counts.items()})
    result.counts["messages for bridges"] += world.ledger.acknowledged_count
    result.counts["dead letters"] += len(world.ledger.history.letters)
