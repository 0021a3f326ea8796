"""The storage interface of a broker, with several engines behind it.

``async with open_adapter("journal://127.0.0.1:7420") as adapter`` opens a `StorageAdapter`. The dependencies of an
engine are imported only when its URL is opened, so a broker installs only what it uses.
"""

from broker_adapter.adapter import StorageAdapter
from broker_adapter.opening import open_adapter
from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.subscription import Delivery, Feed, Progress, Subscription
from broker_adapter.topic_mapping import MappingRule, TopicMapping

__all__ = [
    "Delivery",
    "Feed",
    "MappingRule",
    "PendingAppend",
    "Progress",
    "ReadResult",
    "StorageAdapter",
    "StoredBatches",
    "Subscription",
    "TopicMapping",
    "open_adapter",
]
