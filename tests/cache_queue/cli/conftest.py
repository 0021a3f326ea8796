"""A journal server for the commands, and the commands as `pyproject.toml` adds them to the program."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar

import attrs
import pytest
import trio

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue.cli.connection import connect
from journal.cli import main

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def added_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installation of this very source finds, whatever is installed here."""
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]

    def found(*, group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in groups[group].items()]

    monkeypatch.setattr("importlib.metadata.entry_points", found)


@attrs.frozen
class Done:
    """What a command wrote and how it ended."""

    out: str
    err: str
    status: int


@attrs.define
class Store:
    """A store in a directory, which only one of us opens at a time: the test, or a command."""

    url: str
    capture: pytest.CaptureFixture[str]

    def queue(self, *arguments: str, status: int = 0) -> Done:
        """Run `journal queue ...`."""
        self.capture.readouterr()
        ended = main.run(["queue", *arguments, "--server", self.url])
        out, err = self.capture.readouterr()
        assert ended == status, err
        return Done(out, err, ended)

    def do(self, what: Callable[[StorageAdapter], object]) -> object:
        """Do something with the store."""

        async def connected() -> object:
            async with connect(self.url) as adapter:
                return await what(adapter)  # type: ignore[misc]

        return trio.run(connected)


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Store:
    return Store(f"rocksdb:{tmp_path}/store", capsys)
