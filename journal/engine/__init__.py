"""The engine of one data directory. Its parts, from group commit to retention, are modules of `journal` beside it."""

from journal.engine.engine import Engine
from journal.engine.opening import open_engine, open_rocks_store
from journal.engine.replay import RecoveryReport

__all__ = ["Engine", "RecoveryReport", "open_engine", "open_rocks_store"]
