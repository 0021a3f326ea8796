"""The storage interface of a broker, with several engines behind it.

``async with open_adapter("journal://127.0.0.1:7420") as adapter`` opens a `StorageAdapter`. The dependencies of an
engine are imported only when its URL is opened, so a broker installs only what it uses.

Submodules are imported on first use: the programs below this package handle signals before anything takes long.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {
    "Delivery": "broker_adapter.subscription",
    "Feed": "broker_adapter.subscription",
    "MappingRule": "broker_adapter.topic_mapping",
    "PendingAppend": "broker_adapter.results",
    "Progress": "broker_adapter.subscription",
    "ReadResult": "broker_adapter.results",
    "StorageAdapter": "broker_adapter.adapter",
    "StoredBatches": "broker_adapter.results",
    "Subscription": "broker_adapter.subscription",
    "TopicMapping": "broker_adapter.topic_mapping",
    "open_adapter": "broker_adapter.opening",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
