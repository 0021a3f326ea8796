"""Health of one broker: which of its parts are running, and why it is not ready if it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.mqtt.broker.broker import Broker
from broker_adapter.mqtt.rules.follower import Followed
from broker_adapter.mqtt.telemetry.store_watch import StoreWatch
from broker_adapter.mqtt.transport.listeners import Listeners
from journal.telemetry.loop_monitor import LoopLag

STOPPING: Final = "the broker is stopping"
NOT_OPEN: Final = "its listeners are not open yet: it is starting its bridges and sessions"


@attrs.frozen(slots=True)
class Serving:
    """The parts of a broker that accepts clients.

    Attributes:
        rules: Returns the rules of the store that it applies.
    """

    broker: Broker
    bridges: Bridges
    listeners: Listeners
    rules: Callable[[], Followed]


class Health:
    """Health of one broker, from the start of its process.

    Args:
        store_url: URL of its store, for messages.
        is_stopping: Whether it is shutting down.

    Attributes:
        store: Observes whether the store answers; None before it was opened.
        serving: The broker's parts; None before clients are accepted.
        loop_lag: Measures how late the event loop is.
    """

    def __init__(self, store_url: str, is_stopping: Callable[[], bool]) -> None:
        self._store_url = store_url
        self._is_stopping = is_stopping
        self.store: StoreWatch | None = None
        self.serving: Serving | None = None
        self.loop_lag = LoopLag(has_room=lambda: True)

    async def watch_store(self, adapter: StorageAdapter) -> None:
        """The store is open: observe it until cancelled."""
        self.store = StoreWatch(adapter)
        await self.store.run()

    def why_not_ready(self) -> list[str]:
        """All reasons why clients cannot use it now; empty if they can."""
        reasons = [STOPPING] if self._is_stopping() else []
        store, serving = self.store, self.serving
        if store is None:
            reasons.append(f"the store {self._store_url} has not answered yet")
        elif not store.is_up:
            reasons.append(f"the store {self._store_url} has not answered for {store.for_s:.0f} s: {store.reason}")
        elif serving is None or not (serving.listeners.is_accepting or self._is_stopping()):
            reasons.append(NOT_OPEN)
        return reasons
