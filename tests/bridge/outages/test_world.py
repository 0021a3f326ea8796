"""What the processes of an outage are judged by is whole when they have settled."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from broker_adapter import open_adapter
from broker_adapter.cache_queue import QueueMode
from broker_adapter.cache_queue.stored import Counts
from tests.bridge.outages import world as worlds
from tests.bridge.outages.havoc import Havoc
from tests.bridge.outages.ledger import Ledger
from tests.bridge.outages.world import World, open_world
from tests.cache_queue.queues import driven, filled
from tests.torture.deliveries.checker import check
from tests.torture.deliveries.history import Arrival, Promises


async def test_the_last_progress_is_in_the_history_without_another_look(monkeypatch: Any) -> None:
    """Messages that were brought between the last look and the end counted as held up for ever."""
    monkeypatch.setattr(worlds, "BRIDGE", "plant")
    async with open_adapter("memory:") as adapter:
        nothing = cast("Any", None)
        world = World(nothing, nothing, [], [], Ledger(), adapter, [], [])
        message = world.ledger.send("t")
        world.ledger.write(message)
        world.ledger.settle(message, is_taken=True)
        await filled(adapter, b"1")
        await (await driven(adapter)).confirm(1, Counts(confirmed=1), 0)
        await world.settle()
    history = world.ledger.history
    history.arrivals = [Arrival(message, 0)]
    history.promises = Promises(held_up_s=5)
    assert [each.offset for each in history.progress] == [1]
    assert check(history) == []


@pytest.mark.slow("runs and kills brokers")
@pytest.mark.timeout(90)
async def test_a_broker_that_comes_back_behind_a_change_of_the_mode_goes_by_it(tmp_path: Path) -> None:
    """The change was only in the files of the brokers: the next start found other rules in the store and ended."""
    async with open_world(tmp_path, "files", brokers=2) as world:
        await world.wait_driven()
        havoc = Havoc(world, random.Random(1))
        await havoc.change_mode(QueueMode.MEMORY)
        await havoc.kill_broker()
        await world.publish(10)
        assert (await world.look()).definition.settings["mode"] == "memory"
        await world.check()
