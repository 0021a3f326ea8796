"""The engine of one data directory: opened by `open_engine`, used through `Engine`.

Submodules are imported on first use: the process that converts segments, and commands that only read a directory,
import single modules from here and do not load the whole engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from journal.engine.engine import Engine
    from journal.engine.environment import Environment, open_rocks_store
    from journal.engine.opening import open_engine, open_memory_engine
    from journal.engine.shared_log.claims import Addresses, Claim
    from journal.engine.shared_log.log import Decision, SharedLog
    from journal.engine.startup import RecoveryReport
    from journal.engine.subscribe.subscription import Subscription, SubscriptionTarget

__all__ = [
    "Addresses",
    "Claim",
    "Decision",
    "Engine",
    "Environment",
    "RecoveryReport",
    "SharedLog",
    "Subscription",
    "SubscriptionTarget",
    "open_engine",
    "open_memory_engine",
    "open_rocks_store",
]

_MODULES = {
    "Addresses": "journal.engine.shared_log.claims",
    "Claim": "journal.engine.shared_log.claims",
    "Engine": "journal.engine.engine",
    "Environment": "journal.engine.environment",
    "RecoveryReport": "journal.engine.startup",
    "Decision": "journal.engine.shared_log.log",
    "SharedLog": "journal.engine.shared_log.log",
    "Subscription": "journal.engine.subscribe.subscription",
    "SubscriptionTarget": "journal.engine.subscribe.subscription",
    "open_engine": "journal.engine.opening",
    "open_memory_engine": "journal.engine.opening",
    "open_rocks_store": "journal.engine.environment",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
