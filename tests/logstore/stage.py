"""Log stores of every kind, empty, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import obstore.store
import pytest

from journal.logstore import LogStore
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.stores.memory import MemoryLogStore
from journal.logstore.stores.object_store import ObjectLogStore
from journal.logstore.stores.postgresql import PostgresqlLogStore
from tests.logstore import seaweed_server
from tests.sinks import postgresql_server


def conninfo(password: str = postgresql_server.PASSWORD) -> str:
    """Of an empty database."""
    server = postgresql_server.shared_server()
    server.ensure_running()
    database = server.clear_database()
    where = f"host={postgresql_server.HOST} port={server.port} dbname={database}"
    return f"{where} user={postgresql_server.USER} password={password}"


KINDS: Final[dict[str, Callable[[Path], LogStore]]] = {
    "memory": lambda _: MemoryLogStore(),
    "directory": DirectoryLogStore,
    "objects in memory": lambda _: ObjectLogStore(obstore.store.MemoryStore()),
    "postgresql": lambda _: PostgresqlLogStore(conninfo()),
    "seaweedfs": lambda _: seaweed_server.shared_server().open(),
}

SLOW: Final = {
    "postgresql": pytest.mark.slow("starts PostgreSQL"),
    "seaweedfs": pytest.mark.slow("starts SeaweedFS"),
}

ALL: Final = [pytest.param(name, marks=SLOW.get(name, ())) for name in KINDS]
