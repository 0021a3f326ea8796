"""What sessions promise, whatever happens to clients and brokers; the store lives on."""

from __future__ import annotations

from contextlib import nullcontext

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings

from broker_adapter import open_adapter
from tests.mqtt.contract.history import BROKERS, STEPS, History, Step
from tests.mqtt.contract.severed_brokers import SeveredBrokers

PATIENCE_S = 600.0


async def play(history: list[Step]) -> None:
    async with open_adapter("memory:") as store, trio.open_nursery() as tasks:
        cluster = SeveredBrokers(lambda: nullcontext(store), tasks)
        await cluster.start(BROKERS)
        await History(cluster, tasks, patience_s=PATIENCE_S).play(history)
        await cluster.stop()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(STEPS, max_size=30))
def test_sessions_keep_their_promises(history: list[Step]) -> None:
    trio.run(play, history, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.long
@pytest.mark.timeout(0)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(STEPS, max_size=80))
def test_sessions_keep_their_promises_in_long_histories(history: list[Step]) -> None:
    trio.run(play, history, clock=trio.testing.MockClock(autojump_threshold=0.01))
