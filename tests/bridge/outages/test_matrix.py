"""What happens to sinks and to processes, a case each: nothing is lost, the order is kept, nothing is there too often.

Publishers go on all the time; that their messages are acknowledged also while something is out is part of each case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.bridge.outages.world import World, open_world
from tests.patience import PATIENCE_S

SINKS = ("http", "postgresql", "mqtt_mosquitto", "redis")
MESSAGES = 60
Outage = Callable[[World], Awaitable[None]]


async def refuse_connections(world: World) -> None:
    world.proxy.refuse()
    await world.wait_out()
    await world.publish(MESSAGES)
    await world.proxy.listen()


async def hang(world: World) -> None:
    world.proxy.hang()
    await world.wait_out()
    await world.publish(MESSAGES)
    world.proxy.pass_all()


async def answer_slowly(world: World) -> None:
    """Slowly, but within the time that a call may take."""
    world.proxy.slow_down(0.2)
    await world.publish(4 * MESSAGES)
    state = await world.look()
    assert state.depth.record_count
    world.proxy.pass_all()


async def die_in_the_middle_of_a_batch(world: World) -> None:
    """It may have what it was sent, but does not reply."""
    await world.proxy.wait_passed(world.proxy.to_server_bytes + 2000)
    world.proxy.hold_replies()
    await world.stage.kill()
    world.proxy.pass_all()
    await world.wait_out()
    await world.publish(MESSAGES)
    await world.stage.restart()


async def refuse_some_rows(world: World) -> None:
    world.publish_poison(0.02)
    await world.wait_queue(lambda state: state.dead_letter_count > 3)


async def lose_its_connection(world: World) -> None:
    for size_bytes in (100, 1500, 3333):
        before = world.proxy.connection_count
        world.proxy.cut_after(size_bytes)
        while world.proxy.connection_count == before:
            await trio.sleep(0.01)
        await world.publish(MESSAGES // 3)


OUTAGES: tuple[Outage, ...] = (
    refuse_connections,
    hang,
    answer_slowly,
    die_in_the_middle_of_a_batch,
    refuse_some_rows,
    lose_its_connection,
)


@pytest.mark.slow("starts a server, a broker and a sink, which is out for a while")
@pytest.mark.parametrize(
    ("outage", "sink"),
    [
        pytest.param(
            outage,
            sink,
            id=f"{outage.__name__}-{sink}",
            marks=[pytest.mark.smoke] if (outage, sink) == (die_in_the_middle_of_a_batch, "http") else [],
        )
        for outage in OUTAGES
        for sink in SINKS
        if (outage, sink) != (refuse_some_rows, "redis")  # which takes whatever can be published
    ],
)
async def test_sink(outage: Outage, sink: str, tmp_path: Path) -> None:
    async with open_world(tmp_path, sink) as world:
        await world.wait_driven()
        with trio.fail_after(PATIENCE_S):
            await outage(world)
        await world.publish(MESSAGES)
        rows = await world.check()
    assert len(rows) > 2 * MESSAGES
