"""The engines that the contract is checked on. A new engine is one more entry in `ENGINES`; no test changes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.engines.embedded import open_embedded
from journal.engine import open_engine
from journal.net.listening import bind
from journal.server.server import Server
from journal.settings.server import ListenConfig, ServerConfig, StorageConfig
from tests.adapter_contract.followed_adapter import open_followed

Opening = Callable[[], AbstractAsyncContextManager[StorageAdapter]]


@attrs.frozen
class Engine:
    """One engine under test.

    Attributes:
        open_in: Opens the store that lives in a directory.
        survives: Whether what it acknowledges as durable is there when the directory is opened again.
        converts: Whether it makes Parquet files of closed segments.
        numbers_appends: Whether it numbers what it sends by itself, and so refuses batches that a producer numbered.
    """

    name: str
    open_in: Callable[[Path], AbstractAsyncContextManager[StorageAdapter]]
    survives: bool
    converts: bool = True
    numbers_appends: bool = False


def small_config() -> ServerConfig:
    """A server's configuration for a test: small files, which take no time to make, and no waiting for retention."""
    return ServerConfig(
        listen=ListenConfig(tcp="127.0.0.1:0", websocket="", http=""),
        storage=StorageConfig(journal_file_bytes=1 << 20, journal_budget_bytes=8 << 20, retention_interval_s=1),
    )


@asynccontextmanager
async def open_served(directory: Path) -> AsyncIterator[StorageAdapter]:
    """A journal server on a free port and the adapter over its client, both gone at the end."""
    sockets = bind({"tcp": "127.0.0.1:0"}, main="tcp")
    with contextlib.ExitStack() as stack:
        for sock in sockets.values():
            stack.enter_context(sock)
        async with open_engine(str(directory / "journal"), small_config()) as engine, background_tasks() as tasks:
            server = Server(engine)
            addresses = dict(address.split("=") for address in await tasks.start(server.run, sockets))
            async with open_adapter(f"journal://{addresses['tcp']}") as adapter:
                yield adapter


ENGINES = [
    Engine("memory", lambda _: open_adapter("memory:"), survives=False, converts=False),
    Engine("rocksdb", lambda directory: open_adapter(f"rocksdb:{directory}/rocksdb"), survives=True, converts=False),
    Engine(
        "embedded", lambda directory: open_embedded(f"embedded:{directory}/embedded", small_config()), survives=True
    ),
    Engine("journal", open_served, survives=True, numbers_appends=True),
]
# A follower has no records in memory mode, and no cursors: it takes part where subscriptions are checked.
FOLLOWED = Engine("follower", open_followed, survives=False, converts=False, numbers_appends=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, engines in (("engine", ENGINES), ("surviving_engine", [one for one in ENGINES if one.survives])):
        if fixture in metafunc.fixturenames:
            if fixture == "engine" and metafunc.module.__name__.endswith(".test_subscriptions"):
                engines = [*engines, FOLLOWED]
            metafunc.parametrize(fixture, [pytest.param(one, id=one.name, marks=_marks_of(one)) for one in engines])


def _marks_of(engine: Engine) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow("the engine of embedded: by another name")] if engine.name == "rocksdb" else []


@pytest.fixture
async def adapter(engine: Engine, tmp_path: Path) -> AsyncIterator[StorageAdapter]:
    """A fresh store of each engine."""
    async with engine.open_in(tmp_path) as opened:
        yield opened


@pytest.fixture
def opening(surviving_engine: Engine, tmp_path: Path) -> Opening:
    """Opens one and the same store each time, of each engine that keeps anything."""
    return partial(surviving_engine.open_in, tmp_path)
