"""Cache queues: bounded, durable queues in the store that hold what a sink cannot take, in order, until it can.

`QueueWriter` puts records in, `QueueLease` decides who takes them out, `QueueDrain` does so. A queue is a shard and a
cursor; which sink it is drained to is `broker_adapter.bridge`.
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
