"""MQTT 3.1.1 against real brokers; version 5 is what the contract suite speaks."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sinks.stage import Stage, batches_of, bring, numbers, open_sink


@pytest.fixture(params=["mqtt_mosquitto", "mqtt_journal_broker"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with importlib.import_module(f"tests.sinks.stages.{request.param}").open_stage(tmp_path) as opened:
        yield opened


async def test_the_older_version(stage: Stage) -> None:
    async with open_sink(stage, version="3.1.1") as sink:
        await bring(sink, batches_of(8, 100))
    assert await numbers(stage) == list(range(800))


async def test_a_second_driver_ends_the_connection_of_the_first(stage: Stage) -> None:
    """What a driver that lost its lease has under way does not come behind what the next one writes."""
    batches = batches_of(4, 10)
    async with open_sink(stage) as old, open_sink(stage, epoch=2) as new:
        await bring(old, batches[:1])
        await bring(new, batches[1:2])
        await bring(old, batches[2:3])
        await bring(new, batches[3:])
    assert await numbers(stage) == list(range(40))
