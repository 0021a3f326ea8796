"""The engines that the contract is checked on. A new engine is one more entry in `ENGINES`; no test changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import attrs
import pytest

from broker_adapter import StorageAdapter, open_adapter

Opening = Callable[[], AbstractAsyncContextManager[StorageAdapter]]


@attrs.frozen
class Engine:
    """One engine under test.

    Attributes:
        open_in: Opens the store that lives in a directory.
        survives: Whether what it acknowledges as durable is there when the directory is opened again.
        numbers_appends: Whether it numbers what it sends by itself, and so refuses batches that a producer numbered.
    """

    name: str
    open_in: Callable[[Path], AbstractAsyncContextManager[StorageAdapter]]
    survives: bool
    numbers_appends: bool = False


ENGINES = [
    Engine("memory", lambda _: open_adapter("memory:"), survives=False),
    Engine("rocksdb", lambda directory: open_adapter(f"rocksdb:{directory}/rocksdb"), survives=True),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, engines in (("engine", ENGINES), ("surviving_engine", [one for one in ENGINES if one.survives])):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, engines, ids=[one.name for one in engines])


@pytest.fixture
async def adapter(engine: Engine, tmp_path: Path) -> AsyncIterator[StorageAdapter]:
    """A fresh store of each engine."""
    async with engine.open_in(tmp_path) as opened:
        yield opened


@pytest.fixture
def opening(surviving_engine: Engine, tmp_path: Path) -> Opening:
    """Opens one and the same store each time, of each engine that keeps anything."""
    return partial(surviving_engine.open_in, tmp_path)
