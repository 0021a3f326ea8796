"""A delayed message is published once, whatever becomes of the answers of the store."""

from __future__ import annotations

import pytest

from broker_adapter import open_adapter
from broker_adapter.changes import Changes
from broker_adapter.mqtt.session import SessionSettings, keys
from broker_adapter.mqtt_codec import Properties, ReasonCode
from tests.mqtt.serving import serving
from tests.mqtt.test_shared_exactly_once import Faulty

QUICK = SessionSettings(timer_interval_s=0.05, min_backoff_s=0.01, max_backoff_s=0.02)


@pytest.mark.few_cases(2, "a client for each way in")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 3600], ids=["session ends", "session stays"])
async def test_a_delayed_message_is_published_twice_when_the_answer_of_the_store_is_lost(
    qos: int, expiry_s: int
) -> None:
    """It was stored again under a new random name, as if the first attempt had not been carried out."""
    lost: list[Changes] = []

    def lose(changes: Changes) -> bool:
        if lost or not any(put.key.startswith(keys.TIMERS) and b"/delayed/" in put.key for put in changes.puts):
            return False
        lost.append(changes)
        return True

    async with open_adapter("memory:") as opened:
        store = Faulty(opened)
        store.loses_answer_of = lose
        async with serving(store, session_settings=QUICK) as served:  # type: ignore[arg-type]
            watcher, publisher = (
                await served.client("watcher"),
                await served.client("p", properties=Properties(session_expiry_interval=expiry_s)),
            )
            await watcher.subscribe("later", qos=2)
            assert await publisher.publish("$delayed/0/later", b"once", qos) == ReasonCode.SUCCESS
            await publisher.publish("$delayed/1/later", b"last", 1)
            assert [(await watcher.message()).payload for _ in range(2)] == [b"once", b"last"]
            assert lost
