"""What a broker imports: one storage interface over several engines.

``async with open_adapter("journal://127.0.0.1:7420") as adapter`` gives a `StorageAdapter`. An engine's own
dependencies are imported only when its URL is opened, so a broker installs what it uses.
"""

from broker_adapter.adapter import StorageAdapter
from broker_adapter.feed import Feed, Progress
from broker_adapter.opening import open_adapter
from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.subscription import Delivery, Subscription
from broker_adapter.topic_mapping import MappedStorage, MappingRule, TopicMapping

__all__ = [
    "Delivery",
    "Feed",
    "MappedStorage",
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
