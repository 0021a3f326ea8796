"""A shared file that is damaged or missing keeps no other file from being merged, and STATUS names it meanwhile.

The files of a day were chosen for merging again and again with the damaged one among them, so none was ever merged.
"""

from __future__ import annotations

import logging

import pytest

from journal.engine import Engine
from journal.engine.parquet.rewriting import MERGED_AT_ONCE
from shards.delta.log_files import LOG
from shards.model import ShardConfig
from tests.journal.engines import append, values_of
from tests.journal.test_gathering import NAMES, opened, roll, sealed, until
from tests.journal.test_history_table import ROOT, listed
from tests.simulation.file_system import SimulatedFileSystem

LOOKED_AGAIN_S = 301


async def gather_again(engine: Engine) -> None:
    """Make one more shared file, without a look at the others."""
    for name in NAMES:
        await engine.create_shard(name, ShardConfig(), exist_ok=True)
        await append(engine, name, name.encode(), b"again")
    many = len(sealed(engine, NAMES[0])) + 1
    await roll(engine, *NAMES)
    await until(lambda: all(len(sealed(engine, name)) == many for name in NAMES))


async def a_file_less_than_are_merged(files: SimulatedFileSystem) -> str:
    """Make so many files and return the second of them."""
    async with opened(files) as engine:
        for _ in range(MERGED_AT_ONCE - 1):
            await gather_again(engine)
        return sealed(engine, NAMES[0])[1].path


def replace(files: SimulatedFileSystem, path: str, content: bytes) -> bytes:
    """Give a file other content, and return what it was. Without content it is removed."""
    before = b""
    if files.exists(path):
        file = files.open(path)
        before = bytes(file.pread(file.size(), 0))
        file.close()
        files.remove(path)
    if content:
        file = files.open(path, create=True)
        file.pwritev([content], 0)
        file.fsync()
        file.close()
    return before


def damaged(content: bytes, where: str) -> bytes:
    """The content of a file with one changed byte, or nothing."""
    if where == "missing":
        return b""
    at = 40 if where == "rows" else len(content) - 300
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


def unmerged(engine: Engine) -> list[str]:
    return sorted({segment.path for name in NAMES for segment in sealed(engine, name)})


@pytest.mark.few_cases(1, "a failure in each step")
@pytest.mark.parametrize("where", ["rows", "footer", "missing"])
async def test_other_files_of_the_day_are_merged_and_the_damaged_one_is_named_until_it_is_put_back(
    where: str, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimulatedFileSystem()
    path = await a_file_less_than_are_merged(files)
    intact = replace(files, path, b"")
    replace(files, path, damaged(intact, where))
    async with opened(files) as engine:
        # Seven of eight files can be read: one more is made, so that eight can be merged without the damaged one.
        for _ in range(2):
            await gather_again(engine)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: len(unmerged(engine)) == 2)
        assert path in unmerged(engine)
        assert path in engine.statistics().conversion_failure
        told = [each for each in caplog.records if each.levelno >= logging.WARNING and path in each.getMessage()]
        assert len(told) == 1
        replace(files, path, intact)
        await until(lambda: engine.statistics().conversion_failure == "", step_s=LOOKED_AGAIN_S)
        before = {name: await values_of(engine, name) for name in NAMES}
        # It takes part again.
        for _ in range(MERGED_AT_ONCE - 1):
            await gather_again(engine)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: path not in unmerged(engine))
        for name in NAMES:
            assert (await values_of(engine, name))[: len(before[name])] == before[name]


async def test_the_table_without_a_damaged_file_is_told_once_and_gets_it_when_it_is_put_back(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimulatedFileSystem()
    path = await a_file_less_than_are_merged(files)
    intact = replace(files, path, b"")
    replace(files, path, damaged(intact, "footer"))
    for name in files.listdir(f"{ROOT}/{LOG}"):
        files.remove(f"{ROOT}/{LOG}/{name}")
    async with opened(files) as engine:
        for _ in range(3):
            await gather_again(engine)
            await until(lambda: engine.parts.history.is_current)
        assert path not in listed(files)
        assert path in engine.parts.history.failure
        told = [each for each in caplog.records if "left out of the Delta table" in each.getMessage()]
        assert len(told) == 1
        replace(files, path, intact)
        await until(lambda: engine.parts.history.failure == "", step_s=LOOKED_AGAIN_S)
        assert path in listed(files)
