"""Observations during a run."""

from __future__ import annotations

import attrs


@attrs.define(slots=True)
class Observations:
    """Observations during a run; times ending in ``_us`` are by the wall clock.

    Attributes:
        switched: The topic whose shard's mode was switched.
        switched_modes: Its modes, as they were before the server was killed.
        broker_killed_at_us: Just before the SIGKILL to the broker.
        server_killed_at_us: Just before the SIGKILL to the server.
        warehouse_s: How long the warehouse was out.
        queue_grew_to: Messages that waited in its queue when it came back.
        drained_s: From then until the queue was empty.
        server_back_at_us: The new server accepts connections: earlier acknowledged messages may have been in memory.
    """

    switched: str = ""
    switched_modes: list[tuple[str, int]] = attrs.Factory(list)
    broker_killed_at_us: int = 0
    server_killed_at_us: int = 0
    server_back_at_us: int = 0
    warehouse_s: float = 0.0
    queue_grew_to: int = 0
    drained_s: float = 0.0
    away_s: float = 0.0
    catching_up: tuple[int, float] = (0, 0.0)
    replayed: tuple[int, float] = (0, 0.0)
    publishing_s: float = 0.0
