"""A check verifies sealed segments to the last byte, and says of every file beside them why it is there."""

from __future__ import annotations

import json
import posixpath

import attrs
import pytest

from journal.check import Report, check_directory
from journal.check.journal_files import CheckedJournal
from journal.check.sealed_files import SealedPass
from journal.check.views import CheckedViews
from journal.engine import Engine
from journal.engine.wal.entry_payloads import Converted, ShardCreated, ShardDeleted
from shards.model import ShardConfig
from shards.seams.store import Family, Mutations
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.views.catalogue import CatalogueRecord
from tests.journal.engines import DATA, append, config, open_simulated, stop_without_checkpoint
from tests.journal.sealed import convert_segment
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.store import SimulatedStore

SEALED = f"{DATA}/sealed"
DIRECTORY = f"{SEALED}/shard=plant%2Fline"
MARK = f"{DIRECTORY}/_start-{1:016x}"
SEALING = f"{DATA}/sealing"


def path_of(base_offset: int, next_offset: int, shard_id: int = 1) -> str:
    return f"{DIRECTORY}/{base_offset:020}-{next_offset:020}-{shard_id:016x}.parquet"


FIRST, SECOND = path_of(0, 3), path_of(3, 5)


def check(files: SimulatedFileSystem) -> Report:
    return check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))


def put(files: SimulatedFileSystem, path: str, content: bytes) -> None:
    files.mkdir(posixpath.dirname(path))
    file = files.open(path, create=True)
    file.truncate(0)
    file.pwritev([content], 0)
    file.close()


def copy(files: SimulatedFileSystem, path: str, to: str) -> None:
    put(files, to, files.open(path).pread(1 << 30, 0))


async def convert_closed(engine: Engine, files: SimulatedFileSystem, name: str = "plant/line") -> list[ParquetSegment]:
    """Convert what is closed: the file first, then the shard, then the log goes."""
    await engine.parts.checkpointer.flush()
    shard = engine.parts.table.by_name(name)
    made = []
    for segment in [each for each in shard.segments if isinstance(each, LogSegment) and each.closed]:
        sealed = convert_segment(files, segment, SEALED)
        shard.put_sealed(sealed)
        engine.parts.checkpointer.drop([segment])
        made.append(sealed)
    await engine.parts.checkpointer.remove_files()
    engine.parts.checkpointer.dirty[shard.shard_id] = shard
    return made


async def directory(trim: int = 0) -> SimulatedFileSystem:
    """A shard with two sealed segments of three and two records, and a log with one."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
        await engine.create_shard("plant/line", ShardConfig(index_keys=True))
        for number in range(3):
            await append(engine, "plant/line", b"%d" % number * 40_000)
        await engine.roll("plant/line")
        await append(engine, "plant/line", b"second", b"segment")
        await engine.roll("plant/line")
        await append(engine, "plant/line", b"in the log")
        await convert_closed(engine, files)
        if trim:
            await engine.trim("plant/line", trim)
    files.mkdir(SEALING)
    return files


async def test_sound_sealed_segments_are_counted_and_nothing_is_reported() -> None:
    report = check(await directory())
    assert (report.damages, report.notes) == ([], [])
    assert (report.counts.segments, report.counts.sealed_segments, report.counts.records) == (3, 2, 6)
    assert "in 3 segments (2 sealed) of 1 shard" in report.summary


@pytest.mark.slow("damages a file at every byte")
async def test_every_byte_of_a_sealed_file_is_checked() -> None:
    files = await directory()
    file = files.open(SECOND)
    for position in range(0, file.size(), 7):
        byte = file.pread(1, position)
        file.pwritev([bytes((byte[0] ^ 1 << position % 8,))], position)
        report = check(files)
        assert {damage.path for damage in report.damages} == {SECOND}, position
        assert report.counts.records == 4, "the others are read on"
        file.pwritev([byte], position)
    assert check(files).damages == []


async def test_a_damage_is_reported_at_its_place() -> None:
    files = await directory()
    file = files.open(FIRST)
    file.pwritev([bytes((file.pread(1, 500)[0] ^ 1,))], 500)
    damages = check(files).damages
    assert {damage.path for damage in damages} == {FIRST}
    (of_group,) = [damage for damage in damages if "row group 0 (offsets 0 to 3)" in damage.problem]
    assert of_group.position == 4
    assert not of_group.problem.startswith(FIRST)


async def test_another_complete_file_than_the_recorded_one_is_found_by_its_digest() -> None:
    files = await directory()
    other = SimulatedFileSystem()
    async with open_simulated(other, config(journal_file_bytes=1 << 20)) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        for number in range(3):
            await append(engine, "plant/line", b"%d" % (number + 5) * 40_000)
        await engine.roll("plant/line")
        await convert_closed(engine, other)
    put(files, FIRST, other.open(FIRST).pread(1 << 30, 0))
    assert any("SHA-256 of the file" in damage.problem for damage in check(files).damages)


async def test_a_missing_and_a_cut_off_file_are_damages() -> None:
    files = await directory()
    files.remove(FIRST)
    files.open(SECOND).truncate(files.open(SECOND).size() - 1)
    damages = {damage.path: damage.problem for damage in check(files).damages}
    assert damages[FIRST] == "the file is missing; offsets 0 to 2 of shard 'plant/line' are recorded to be in it"
    assert "magic" in damages[SECOND]


async def test_a_file_without_a_record_is_noted_with_its_reason() -> None:
    files = await directory(trim=3)
    unknown, placed, trimmed = path_of(6, 9), path_of(5, 6), path_of(0, 2)
    for path in (unknown, placed, trimmed):
        copy(files, SECOND, path)
    put(files, f"{SEALING}/x.parquet.place", json.dumps({"path": placed.removeprefix(f"{SEALED}/")}).encode())
    put(files, f"{DIRECTORY}/stranger", b"")
    put(files, f"{SEALED}/stranger/file", b"")
    # A segment that was trimmed away whole has no file in a directory that an engine looks after.
    if files.exists(FIRST):
        files.remove(FIRST)
    report = check(files)
    assert report.damages == []
    notes = {note.path: note.problem for note in report.notes}
    assert "move it away" in notes[unknown]
    assert "the next start removes it" in notes[placed]
    assert "trimmed" in notes[trimmed]
    assert "Parquet segments have no such names" in notes[f"{DIRECTORY}/stranger"]
    assert "a directory of Parquet segments has no such name" in notes[f"{SEALED}/stranger"]
    assert "left over from a conversion" in notes[f"{SEALING}/x.parquet.place"]
    assert len(notes) == 6


@pytest.mark.parametrize(
    ("mark", "told", "is_damage"),
    [
        (b'{"start_offset": 2}\n', "", False),
        (None, "the mark is missing, but offsets below 2 are trimmed", False),
        (b'{"start_offset": 1}\n', "says that the shard starts at 1, but offsets below 2", False),
        (b'{"start_offset": 3}\n', "says that the shard starts at 3, but it starts at 2", True),
        (b'{"start_of', "expected JSON", True),
        (b'{"start_offset": "2"}', "expected JSON", True),
    ],
)
async def test_a_mark_says_what_the_views_say(mark: bytes | None, told: str, is_damage: bool) -> None:
    files = await directory(trim=2)
    if files.exists(MARK):
        files.remove(MARK)
    if mark is not None:
        put(files, MARK, mark)
    report = check(files)
    findings = report.damages if is_damage else report.notes
    assert [(each.path, told in each.problem) for each in report.damages + report.notes] == [(MARK, True)] * bool(told)
    assert len(findings) == bool(told)


async def test_a_mark_without_a_sealed_segment_is_left_over() -> None:
    files = await directory()
    put(files, f"{DIRECTORY}/_start-{9:016x}", b'{"start_offset": 2}\n')
    (note,) = check(files).notes
    assert "left over: no sealed segment of shard 9 is recorded" in note.problem


async def test_a_conversion_that_only_the_journal_knows_counts() -> None:
    """After a crash the views may be those from before the conversion: its log need not be there, its file must be."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        await append(engine, "plant/line", b"a", b"b", b"c")
        await engine.roll("plant/line")
        await engine.parts.checkpointer.flush()
        log = engine.parts.table.by_name("plant/line").segments[0]
        assert isinstance(log, LogSegment)
        sealed = convert_segment(files, log, SEALED)
    fields = {field.name: getattr(sealed, field.name) for field in attrs.fields(Converted)}
    journal = CheckedJournal()
    journal.note(1, ShardCreated("plant/line", ShardConfig(), 1))
    journal.note(1, Converted(**fields))
    assert journal.converts(1, 0)
    assert not journal.converts(1, 3)

    def check_sealed(views: CheckedViews) -> Report:
        report = Report(DATA)
        SealedPass(files, DATA, views, journal, report, None).check()
        return report

    record = CatalogueRecord("plant/line", ShardConfig(), 1)
    for views in (CheckedViews(), CheckedViews(shards={1: record}), CheckedViews(sealed=[sealed], starts={1: 0})):
        report = check_sealed(views)
        assert (report.damages, report.notes, report.counts.sealed_segments) == ([], [], 1)
    files.remove(sealed.path)
    assert [damage.path for damage in check_sealed(CheckedViews()).damages] == [sealed.path]
    journal.note(1, ShardDeleted("plant/line"))
    assert check_sealed(CheckedViews()).damages == []


async def test_a_trim_or_a_deletion_that_only_the_journal_knows_lets_files_be_gone() -> None:
    for delete in (False, True):
        files = SimulatedFileSystem()
        async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
            await engine.create_shard("plant/line", ShardConfig())
            await append(engine, "plant/line", b"a", b"b", b"c")
            await engine.roll("plant/line")
            (sealed,) = await convert_closed(engine, files)
            await append(engine, "plant/line", b"d")
            await engine.parts.checkpointer.checkpoint()
            if delete:
                await engine.delete_shard("plant/line")
            else:
                await engine.trim("plant/line", 3)
            stop_without_checkpoint(engine)
        files = files.crash(everything_survived)
        if files.exists(sealed.path):
            assert [damage.path for damage in check(files).damages] == []
            files.remove(sealed.path)
        assert check(files).damages == []


async def test_sealed_segments_leave_no_gap_between_them() -> None:
    files = await directory()
    store = SimulatedStore(files, f"{DATA}/state")
    mutations = Mutations()
    mutations.delete(Family.SEGMENTS, (1).to_bytes(8, "big") + (3).to_bytes(8, "big"))
    store.write(mutations)
    store.flush()
    report = check(files)
    assert ["offsets 3 to 4 are in no segment" in damage.problem for damage in report.damages] == [True]
    assert [note.path for note in report.notes] == [SECOND]
