"""A reader who has opened a data directory for a moment delays the start of its server, and does not make it fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from broker_adapter.engines.embedded import open_embedded
from journal.check import check_directory
from journal.engine import open_engine
from journal.engine.directory import reader_lock
from shards.errors import DataDirectoryError
from tests.journal.engines import config
from tests.patience import PATIENCE_S


@pytest.fixture
async def data(tmp_path: Path) -> str:
    """A directory that was used before, and is at rest."""
    path = str(tmp_path / "data")
    async with open_engine(path, config()):
        pass
    return path


async def test_a_start_failed_because_a_reader_had_the_directory(data: str) -> None:
    """The server said "in use by the process with pid ..." and ended."""
    started = trio.Event()

    async def start() -> None:
        async with open_engine(data, config()):
            started.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            async with open_embedded(f"embedded:{data}", to_read=True):
                nursery.start_soon(start)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert not started.is_set()
            await started.wait()


async def test_who_has_the_directory_for_long_is_not_waited_for(data: str) -> None:
    async with open_engine(data, config()):
        for to_read in (False, True):
            with trio.fail_after(PATIENCE_S), pytest.raises(DataDirectoryError, match="in use by the process with pid"):
                async with open_engine(data, config(), to_read=to_read):
                    raise AssertionError("two have it")


async def test_a_reader_is_refused_while_another_is_at_it(data: str) -> None:
    async with open_engine(data, config(), to_read=True):
        with pytest.raises(DataDirectoryError, match=r"in use by the process with pid \d+, which holds .*reading/LOCK"):
            async with open_engine(data, config(), to_read=True):
                raise AssertionError("two have it")


async def test_a_reader_that_does_not_leave_holds_a_start_up_for_a_bounded_time(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_lock, "READER_PATIENCE_S", 0.3)
    async with open_engine(data, config(), to_read=True):
        with (
            trio.fail_after(PATIENCE_S),
            pytest.raises(DataDirectoryError, match=r"has not finished after 0\.3 s"),
        ):
            async with open_engine(data, config()):
                raise AssertionError("two have it")
    async with open_engine(data, config()):
        pass
    report = check_directory(data)
    assert (report.damages, report.notes) == ([], [])


async def test_a_reader_makes_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="it has no FORMAT file"):
        async with open_engine(str(tmp_path / "data"), config(), to_read=True):
            raise AssertionError("there is none")
    assert not (tmp_path / "data").exists()
