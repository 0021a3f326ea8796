"""A retained message is stored once, whatever becomes of the answers of the store."""

from __future__ import annotations

import pytest

from broker_adapter import open_adapter
from broker_adapter.changes import Changes
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt_codec import Properties, ReasonCode
from tests.mqtt.serving import serving
from tests.mqtt.test_shared_exactly_once import Faulty

RETAINED = keys.retained_prefix("")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 3600], ids=["session ends", "session stays"])
async def test_a_retained_message_is_not_stored_again_when_the_answer_of_the_store_is_lost(
    qos: int, expiry_s: int
) -> None:
    """It was committed again, as if the first attempt had not been carried out: every subscriber got it twice."""
    lost: list[Changes] = []

    def lose(changes: Changes) -> bool:
        if lost or not any(put.key.startswith(RETAINED) for put in changes.puts):
            return False
        lost.append(changes)
        return True

    async with open_adapter("memory:") as opened:
        store = Faulty(opened)
        store.loses_answer_of = lose
        async with serving(store) as served:  # type: ignore[arg-type]
            watcher, publisher = (
                await served.client("watcher"),
                await served.client("p", properties=Properties(session_expiry_interval=expiry_s)),
            )
            await watcher.subscribe("a", qos=2)
            assert await publisher.publish("a", b"once", qos, retain=True) == ReasonCode.SUCCESS
            await publisher.publish("a", b"last", 1)
            assert [(await watcher.message()).payload for _ in range(2)] == [b"once", b"last"]
            assert lost
