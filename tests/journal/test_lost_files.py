"""A part of the data directory that is missing is refused by name, and everything is there once it is back.

Defect behind these tests: with journal/ on a file system that was not mounted, or its newest file gone, the server
started, acknowledged records were missing, and their offsets were given to other records.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest

from journal.check import check_directory
from journal.engine.directory.data_directory import MARKED
from journal.engine.wal.journal_file import list_journal_files
from shards.errors import CorruptionError
from shards.model import ShardConfig
from tests.journal.engines import (
    DATA,
    append,
    config,
    open_simulated,
    stop_without_checkpoint,
    values_of,
)
from tests.simulation.file_system import CrashNow, SimulatedFileSystem
from tests.simulation.store import SimulatedStore

SMALL = config(journal_file_bytes=8 * 1024)
VALUES = [b"%d" % number * 200 for number in range(30)]


async def used_directory() -> SimulatedFileSystem:
    """Three journal files or more, whose records no checkpoint covers."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config()) as engine:
        await engine.create_shard("s", ShardConfig())
    async with open_simulated(files, SMALL) as engine:
        engine.parts.checkpointer.checkpoint = _no_checkpoint  # type: ignore[method-assign]
        for value in VALUES:
            await append(engine, "s", value)
        stop_without_checkpoint(engine)
    assert len(list_journal_files(files, f"{DATA}/journal")) >= 3
    return files


async def _no_checkpoint() -> None:
    """The journal keeps everything."""


def newest_file(files: SimulatedFileSystem) -> str:
    return list_journal_files(files, f"{DATA}/journal")[-1][1]


def journal_files(files: SimulatedFileSystem) -> list[str]:
    return [path for _, path in list_journal_files(files, f"{DATA}/journal")]


def all_files(files: SimulatedFileSystem) -> list[str]:
    return [f"{DATA}/journal/{name}" for name in files.listdir(f"{DATA}/journal")]


async def refused_then_whole(files: SimulatedFileSystem, lost: list[str], message: str) -> None:
    """Without these files a start and a check say what is missing; with them again all records are there."""
    aside = [(path, f"/aside-{number}") for number, path in enumerate(lost)]
    for path, kept in aside:
        files.rename(path, kept)
    damages = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path)).damages
    assert any(re.search(message, damage.problem) for damage in damages), damages
    with pytest.raises(CorruptionError, match=message):
        async with open_simulated(files, SMALL):
            pass
    for path, kept in aside:
        files.rename(kept, path)
    async with open_simulated(files, SMALL) as engine:
        assert await values_of(engine, "s") == VALUES


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (lambda files: [newest_file(files)], "the file is missing"),
        (
            lambda files: [path for _, path in list_journal_files(files, f"{DATA}/journal")],
            "is the journal's file system",
        ),
        (all_files, "it has no marker"),
        (lambda files: [f"{DATA}/log/.node"], "it has no marker"),
        (lambda files: [f"{DATA}/sealed/.node"], "it has no marker"),
        (lambda files: [f"{DATA}/state/content"], "the store of the views"),
    ],
    ids=["newest journal file", "all journal files", "journal not mounted", "log", "sealed", "state not mounted"],
)
async def test_a_missing_part_is_refused_by_name(
    lost: Callable[[SimulatedFileSystem], list[str]], message: str
) -> None:
    files = await used_directory()
    await refused_then_whole(files, lost(files), f"(?i){message}")


async def test_a_missing_newest_file_is_refused_when_the_file_before_it_leads_to_no_other() -> None:
    """A start continues in a new file, which the views record and the older files do not."""
    files = await used_directory()
    async with open_simulated(files, SMALL) as engine:
        await append(engine, "s", b"last")
        stop_without_checkpoint(engine)
    newest = newest_file(files)
    files.rename(newest, "/aside")
    with pytest.raises(CorruptionError, match="and so is every later one"):
        async with open_simulated(files, SMALL):
            pass
    files.rename("/aside", newest)
    async with open_simulated(files, SMALL) as engine:
        assert (await values_of(engine, "s"))[-1] == b"last"


async def test_a_journal_that_ends_before_what_the_views_hold_is_refused() -> None:
    files = await used_directory()
    _, newest = list_journal_files(files, f"{DATA}/journal")[-1]
    async with open_simulated(files, SMALL) as engine:
        await engine.put_state(b"key", b"value", None, 0)
        engine.parts._store.flush()
        stop_without_checkpoint(engine)
    _, newest = list_journal_files(files, f"{DATA}/journal")[-1]
    file = files.open(newest)
    file.pwritev([bytes(file.size() - 4096)], 4096)
    with pytest.raises(CorruptionError, match="its newest part is missing"):
        async with open_simulated(files, SMALL):
            pass


async def test_a_directory_of_another_node_is_refused() -> None:
    files = await used_directory()
    for name in MARKED:
        file = files.open(f"{DATA}/{name}/.node")
        stored = file.pread(100, 0)
        other = stored.replace(b'"node_id": "', b'"node_id": "x')
        file.pwritev([other], 0)
        with pytest.raises(CorruptionError, match="belongs to another node"):
            async with open_simulated(files, SMALL):
                pass
        file.truncate(0)
        file.pwritev([stored], 0)


async def test_first_starts_may_be_killed_in_a_row_after_their_journal_file_was_made() -> None:
    """FORMAT said that the directory was whole before the views did: the third start was refused."""
    files = SimulatedFileSystem()
    for _ in range(4):
        files.crash_at(1, pattern=f"sync directory {DATA}/journal$")
        files = await _killed_start(files)
        files.crash_at(3, pattern=f"{DATA}/state/content.new")
        files = await _killed_start(files)
    async with open_simulated(files, SMALL) as engine:
        await engine.create_shard("s", ShardConfig())


async def _killed_start(files: SimulatedFileSystem) -> SimulatedFileSystem:
    with contextlib.suppress(CrashNow):
        async with open_simulated(files, SMALL):
            files.stop()
            raise CrashNow("at the end of the start")
    return files.kill(lambda _: 1)


async def test_views_of_another_node_are_refused() -> None:
    """Their numbers may fit by chance: a start served them without this node's shards, and wrote over their files."""
    files, other = SimulatedFileSystem(), SimulatedFileSystem()
    for each in (files, other):
        async with open_simulated(each) as engine:
            await engine.create_shard("s", ShardConfig())
            await append(engine, "s", b"value")
    content = other.open(f"{DATA}/state/content").pread(1 << 20, 0)
    own = files.open(f"{DATA}/state/content").pread(1 << 20, 0)
    _put(files, content)
    damages = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path)).damages
    assert [damage.path for damage in damages if "the views belong to another node" in damage.problem] == [
        f"{DATA}/state"
    ]
    with pytest.raises(CorruptionError, match=f"{DATA}/state at byte 0: the views belong to another node"):
        async with open_simulated(files):
            pass
    _put(files, own)
    async with open_simulated(files) as engine:
        assert await values_of(engine, "s") == [b"value"]


def _put(files: SimulatedFileSystem, content: bytes) -> None:
    file = files.open(f"{DATA}/state/content")
    file.truncate(0)
    file.pwritev([content], 0)


@pytest.mark.slow("opens an engine after each step")
async def test_a_directory_whose_making_was_cut_short_anywhere_is_made_to_its_end() -> None:
    rehearsal = SimulatedFileSystem()
    async with open_simulated(rehearsal, SMALL):
        pass
    made = next(at for at, name in enumerate(rehearsal.operations, 1) if "journal-" in name)
    for operation in range(1, made):
        for fates in (lambda _: 0, lambda _: 1):
            files = SimulatedFileSystem()
            files.crash_at(operation)
            with pytest.raises(CrashNow):
                async with open_simulated(files, SMALL):
                    pass
            files = files.crash(fates)
            async with open_simulated(files, SMALL) as engine:
                await engine.create_shard("s", ShardConfig())
                await append(engine, "s", b"value")
            async with open_simulated(files, SMALL) as engine:
                assert await values_of(engine, "s") == [b"value"]


async def test_a_new_directory_may_have_its_journal_mounted_before_the_first_start() -> None:
    """Defect: the documents allow a mount of its own, and the first start refused the directory for it."""
    files = SimulatedFileSystem()
    for name in ("journal/lost+found", "state"):
        files.mkdir(f"{DATA}/{name}")
    async with open_simulated(files, SMALL) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"value")
    async with open_simulated(files, SMALL) as engine:
        assert await values_of(engine, "s") == [b"value"]
