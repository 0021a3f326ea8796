"""A copy that has lost some files of its journal begins again: the log store has all that was in them.

The check of the directory called such a copy damaged.
"""

from __future__ import annotations

import random

import pytest

from journal.check import check_directory
from journal.engine.wal.journal_file import list_journal_files
from journal.logstore.stores.memory import MemoryLogStore
from shards.model import Mode, ShardConfig
from tests.cluster.simulated_owner import owner
from tests.journal.engines import DATA, append, stop_without_checkpoint, values_of
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.store import SimulatedStore

SHARD = "plant/line"
VALUES = [b"%04d" % number * 1000 for number in range(40)]


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}, {2}, {0, 1, 2}])
async def test_a_server_starts_without_some_files_of_its_journal(lost: set[int]) -> None:
    """It ended with "a file is missing before it", although the files of a copy may be deleted."""
    store, files, rng = MemoryLogStore(), SimulatedFileSystem(), random.Random(1)
    files.mkdir(DATA)
    async with owner(store, files, rng, journal_files=10) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        for value in VALUES:
            await append(engine, SHARD, value)
        paths = [path for _, path in list_journal_files(files, f"{DATA}/journal")]
        stop_without_checkpoint(engine)
    assert len(paths) == 3
    for place in lost:
        files.remove(paths[place])
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert report.damages == []
    assert any("reads what is missing from the log store again" in note.problem for note in report.notes)
    async with owner(store, files, rng) as engine:
        assert await values_of(engine, SHARD) == VALUES
