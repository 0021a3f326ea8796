"""The look at all connections once a second: for silent clients, for logins that expire, for positions to store."""

from __future__ import annotations

import pytest
import trio

from broker_adapter.mqtt.broker import broker
from broker_adapter.mqtt.connection.connection import Connection
from tests.mqtt.serving import serving
from tests.patience import PATIENCE_S

CLIENTS = 7


async def test_others_run_between_a_look_at_few_connections_and_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 idle connections one message in a hundred was 35 ms late."""
    monkeypatch.setattr(broker, "_SWEEP_S", 0.01)
    monkeypatch.setattr(broker, "_LOOKED_AT_BETWEEN_CHECKPOINTS", 2)
    looks: list[Connection] = []
    check_silence = Connection.check_silence

    def noted(self: Connection, now_s: float) -> None:
        looks.append(self)
        check_silence(self, now_s)

    monkeypatch.setattr(Connection, "check_silence", noted)
    async with serving() as served:
        for number in range(CLIENTS):
            await served.client(f"c{number}")
        looks.clear()
        most = 0
        with trio.fail_after(PATIENCE_S):
            while len(set(looks)) < CLIENTS or len(looks) < 3 * CLIENTS:
                before = len(looks)
                await trio.lowlevel.checkpoint()
                most = max(most, len(looks) - before)
    # In two rounds of the event loop that follow each other the look may be last and then first.
    assert most <= 4
