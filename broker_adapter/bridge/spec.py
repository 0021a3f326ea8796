"""The specification of a bridge: the topics it takes, its queue and batches, and its sink."""

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
        batch_records: Maximum of records in a batch.
        batch_bytes: Maximum of bytes of values in a batch; a single larger record is a batch by itself.
        batch_wait_s: How long a batch waits for more records, in seconds.
        window: Maximum of unconfirmed batches: after a crash at most this many are written again. How many of them are
            sent to the sink at once is limited by the sink.
        max_rate: Maximum of records a second that the sink is sent; 0 for no limit.
        max_refusals: A record that can be tried alone becomes a dead letter after this many refusals by the sink.
        max_outages: A record becomes a dead letter after this many outages while it alone was in flight; 0 for never.
        drive: Whether this process may drive it; otherwise it only puts messages into the queue.
        health_interval_s: How often an idle sink is checked, in seconds.
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
