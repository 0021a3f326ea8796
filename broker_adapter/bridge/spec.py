"""What a bridge is: where its records come from, what becomes of them, and where they go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs

from broker_adapter.bridge.breaker import BreakerSettings
from broker_adapter.bridge.projection import Projection
from broker_adapter.cache_queue import QueueSettings
from broker_adapter.sinks import Sink, SinkContext


@attrs.frozen(slots=True, kw_only=True)
class BridgeSpec:
    """One bridge. Its queue has its name.

    Attributes:
        topics: Filters of the topics whose messages it takes.
        open_sink: Opens the sink.
        batch_records: Most records of a batch.
        batch_bytes: Most bytes of values of a batch, but for one record that has more by itself.
        batch_wait_s: How long a batch waits for more records.
        window: Batches that may be unconfirmed at once: that much is written again at most after a crash. How many of
            them are on their way to the sink at once is up to the sink.
        max_rate: Records a second that the sink is given at most; 0 for no limit.
        max_refusals: After so many refusals by the sink a record is set aside that could be tried alone.
        max_outages: After so many outages while a record alone was on its way it is set aside; 0 for never.
        drive: Whether this process may drive it; else it only puts messages into the queue.
        health_interval_s: How often an idle sink is asked whether it would take records.
    """

    name: str
    topics: tuple[str, ...]
    open_sink: Callable[[SinkContext], AbstractAsyncContextManager[Sink]]
    queue: QueueSettings = attrs.field(factory=QueueSettings)
    projection: Projection = attrs.field(factory=lambda: Projection({}))
    batch_records: int = 500
    batch_bytes: int = 1 << 20
    batch_wait_s: float = 0.1
    window: int = 4
    max_rate: int = 0
    max_refusals: int = 3
    max_outages: int = 0
    drive: bool = True
    health_interval_s: float = 10.0
    breaker: BreakerSettings = attrs.field(factory=BreakerSettings)
