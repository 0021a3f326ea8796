"""A check verifies shared files to the last byte, and says of everything beside them why it is there."""

from __future__ import annotations

import posixpath

import pytest

from journal.check import Report, check_directory
from shards.errors import DataDirectoryError
from shards.model import ShardConfig
from tests.journal.engines import DATA, append, stop_without_checkpoint
from tests.journal.test_gathering import opened, shared_files
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.store import SimulatedStore

SEALED = f"{DATA}/sealed"
SEALING = f"{DATA}/sealing"


def check(files: SimulatedFileSystem) -> Report:
    return check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))


def put(files: SimulatedFileSystem, path: str, content: bytes) -> None:
    files.mkdir(posixpath.dirname(path))
    file = files.open(path, create=True)
    file.truncate(0)
    file.pwritev([content], 0)
    file.close()


async def directory(*, crash: bool = False) -> SimulatedFileSystem:
    """A shard with two sealed segments of three and two records, each in a file, and a log with one."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await engine.create_shard("plant/line", ShardConfig(index_keys=True))
        for number in range(3):
            await append(engine, "plant/line", b"%d" % number * 400)
        await engine.convert("plant/line")
        await append(engine, "plant/line", b"second", b"segment")
        await engine.convert("plant/line")
        await append(engine, "plant/line", b"in the log")
        if crash:
            stop_without_checkpoint(engine)
    return files.crash(everything_survived) if crash else files


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_sound_sealed_segments_are_counted_and_nothing_is_reported(crash: bool) -> None:
    report = check(await directory(crash=crash))
    assert report.damages == []
    assert [note for note in report.notes if "/sealed" in note.path] == []
    if not crash:
        assert (report.counts.segments, report.counts.sealed_segments, report.counts.records) == (3, 2, 6)
        assert "in 3 segments (2 sealed) of 1 shard" in report.summary


@pytest.mark.slow("damages a file at every byte")
async def test_every_byte_of_a_shared_file_is_checked() -> None:
    files = await directory()
    path = min(shared_files(files), key=lambda each: files.open(each).size())
    file = files.open(path)
    for position in range(0, file.size(), 7):
        byte = file.pread(1, position)
        file.pwritev([bytes((byte[0] ^ 1 << position % 8,))], position)
        assert {damage.path for damage in check(files).damages} == {path}, position
        file.pwritev([byte], position)
    assert check(files).damages == []


async def test_a_missing_file_is_a_damage_and_an_unknown_one_a_note() -> None:
    files = await directory()
    path = shared_files(files)[0]
    stranger = f"{posixpath.dirname(path)}/{7:016x}.parquet"
    files.rename(path, stranger)
    report = check(files)
    assert [damage.path for damage in report.damages] == [path]
    assert "the file is missing" in report.damages[0].problem
    assert [note.path for note in report.notes] == [stranger]


async def test_other_names_and_leftovers_of_a_conversion_are_notes() -> None:
    files = await directory()
    put(files, f"{SEALED}/notes/x", b"")
    put(files, f"{SEALING}/{7:016x}-2026-11-22.parquet", b"half a file")
    notes = {note.path: note.problem for note in check(files).notes}
    assert "no such name" in notes.pop(f"{SEALED}/notes")
    assert "the next start removes it" in notes.pop(f"{SEALING}/{7:016x}-2026-11-22.parquet")
    assert notes == {}


async def test_a_directory_with_files_of_single_shards_is_refused_and_named() -> None:
    """Their records would be missing without a word."""
    files = await directory()
    put(files, f"{SEALED}/shard=plant%2Fline/{0:020}-{3:020}-{1:016x}.parquet", b"PAR1")
    assert [note.path for note in check(files).notes] == [f"{SEALED}/shard=plant%2Fline"]
    with pytest.raises(DataDirectoryError, match=r"sealed/shard=plant%2Fline .* one shard each, .* does not read"):
        async with opened(files):
            pass
