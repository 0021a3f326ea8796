"""Cache queues: bounded, durable queues in the store that keep records in order until a sink can take them.

`QueueWriter` puts records in, `QueueLease` decides which process takes them out, `QueueDrain` takes them out. A queue
is a shard and a cursor; `broker_adapter.bridge` drains it into a sink.
"""

from broker_adapter.cache_queue.drain import QueueDrain, Waiting
from broker_adapter.cache_queue.lease import LeaseSettings, QueueLease
from broker_adapter.cache_queue.queue import QueueState, ensure_queue, list_queues, look
from broker_adapter.cache_queue.settings import Overflow, QueueMode, QueueSettings
from broker_adapter.cache_queue.writer import QueueWriter

__all__ = [
    "LeaseSettings",
    "Overflow",
    "QueueDrain",
    "QueueLease",
    "QueueMode",
    "QueueSettings",
    "QueueState",
    "QueueWriter",
    "Waiting",
    "ensure_queue",
    "list_queues",
    "look",
]
