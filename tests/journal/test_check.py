"""A check finds every damage, says where it is, calls nothing a damage that is none, and changes nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from journal.check import Report, check_directory
from journal.check import window as window_module
from journal.engine import open_engine
from journal.engine.directory.data_directory import open_directory
from journal.engine.wal.journal_file import JournalFileHeader
from shards.errors import CorruptionError, DataDirectoryError, FormatVersionError
from shards.model import Mode, ShardConfig
from shards.seams.store import Family, Mutations
from shards.segments.sparse_index import SparseIndex
from tests.journal.engines import DATA, append, config, open_simulated, stop_without_checkpoint
from tests.journal.journals import append_entry
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.store import SimulatedStore

LOG = f"{DATA}/log/01/0000000000000001-00000000000000000000.log"
NEXT_LOG = f"{DATA}/log/01/0000000000000001-00000000000000000003.log"
INDEX = LOG.replace(".log", ".index")
JOURNAL = f"{DATA}/journal/journal-0000000000000001.jnl"
STATE = f"{DATA}/state"


def check(files: SimulatedFileSystem) -> Report:
    return check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))


async def directory(*, crash: bool = False) -> SimulatedFileSystem:
    """A directory with a bit of everything; shard 1 has two log segments, the first with an index."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
        commands = engine.parts.commands
        await commands.create_shard("plant/line", ShardConfig(index_keys=True, index_tags=True))
        await commands.create_shard("volatile", ShardConfig(mode=Mode.MEMORY))
        for number in range(3):
            await append(engine, "plant/line", b"%d" % number * 40_000)
        await commands.roll("plant/line")
        await append(engine, "plant/line", b"second", b"segment")
        await append(engine, "volatile", b"x")
        await commands.commit_cursor("plant/line", "reader", 2, None)
        await commands.put_state(b"key", b"value", None, 1 << 60)
        await commands.open_producer("bridge")
        if crash:
            await engine.parts.checkpointer.checkpoint()
            await append(engine, "plant/line", b"after the checkpoint")
            await engine.parts.checkpointer.flush()
            stop_without_checkpoint(engine)
    return files.crash(everything_survived) if crash else files


def change(files: SimulatedFileSystem, path: str, position: int, bits: int = 1) -> None:
    file = files.open(path)
    file.pwritev([bytes((file.pread(1, position)[0] ^ bits,))], position)


def store_of(files: SimulatedFileSystem) -> SimulatedStore:
    return SimulatedStore(files, STATE)


def put(files: SimulatedFileSystem, family: Family, key: bytes, value: bytes | None) -> None:
    store, mutations = store_of(files), Mutations()
    if value is None:
        mutations.delete(family, key)
    else:
        mutations.put(family, key, value)
    store.write(mutations)
    store.flush()


async def test_a_sound_directory_has_no_damage_and_everything_is_counted() -> None:
    files = await directory()
    report = check(files)
    assert (report.damages, report.notes) == ([], [])
    counts = report.counts
    assert (counts.shards, counts.segments, counts.batches, counts.records) == (2, 2, 4, 5)
    assert (counts.cursors, counts.state_values, counts.producers, counts.index_entries) == (1, 1, 1, 1)
    assert counts.journal_files == 1
    assert counts.entries > 8
    assert "no damage" in report.summary


async def test_after_a_crash_what_the_journal_still_has_is_noted_at_most() -> None:
    files = await directory(crash=True)
    report = check(files)
    assert report.damages == []
    assert [note.path for note in report.notes] == [NEXT_LOG]
    assert "after the recorded end" in report.notes[0].problem


@pytest.mark.parametrize(
    ("path", "position", "at", "told"),
    [
        (JOURNAL, 20, 0, "header checksum"),
        (JOURNAL, 4096 + 9, 4096, "header of a commit group is damaged"),
        (JOURNAL, 4136 + 9, 4136, "entry header checksum"),
        (JOURNAL, 4136 + 60, 4136, "payload checksum"),
        (LOG, 20, 0, "header checksum"),
        (LOG, 60 + 40_000, 56, "body checksum"),
        (INDEX, 5, 0, "index entry checksum"),
    ],
)
async def test_a_flipped_bit_is_found_at_its_place(path: str, position: int, at: int, told: str) -> None:
    files = await directory()
    change(files, path, position)
    (damage,) = check(files).damages
    assert (damage.path, damage.position) == (path, at)
    assert told in damage.problem


async def test_every_bit_of_a_log_file_is_checked() -> None:
    files = await directory()
    file = files.open(NEXT_LOG)
    for position in range(file.size()):
        change(files, NEXT_LOG, position, 1 << position % 8)
        assert {damage.path for damage in check(files).damages} == {NEXT_LOG}, position
        change(files, NEXT_LOG, position, 1 << position % 8)
    assert check(files).damages == []


async def test_a_check_continues_behind_a_damage_and_reports_all_of_them() -> None:
    files = await directory()
    change(files, LOG, 70)
    change(files, LOG, 60 + 90_000)
    change(files, NEXT_LOG, 100)
    damages = check(files).damages
    assert [damage.path for damage in damages if "checksum" in damage.problem] == [LOG, LOG, NEXT_LOG]
    # Of the three batches of the first log and the one of the second, only the one between the damaged ones is whole.
    assert check(files).counts.batches == 1


@pytest.mark.parametrize(
    ("damage", "path", "told"),
    [
        (lambda files: files.remove(LOG), LOG, "the file is missing; the views record"),
        (lambda files: files.open(LOG).truncate(5000), LOG, "the file ends here, but the views record"),
        (lambda files: files.remove(INDEX), INDEX, "the index file is missing"),
        (lambda files: files.open(INDEX).truncate(10), INDEX, "the file ends here"),
        (lambda files: files.open(JOURNAL).truncate(1 << 19), JOURNAL, "the file ends here, but it was made with"),
        (lambda files: files.rename(LOG, NEXT_LOG), NEXT_LOG, "the views say LogHeader"),
        (lambda files: files.remove(f"{DATA}/FORMAT"), f"{DATA}/FORMAT", "missing"),
        (lambda files: files.open(f"{DATA}/FORMAT").truncate(3), f"{DATA}/FORMAT", "expected JSON"),
    ],
)
async def test_what_is_missing_or_cut_short_is_reported(
    damage: Callable[[SimulatedFileSystem], None], path: str, told: str
) -> None:
    files = await directory()
    damage(files)
    assert any(each.path == path and told in each.problem for each in check(files).damages)


async def test_an_index_entry_that_leads_to_another_batch_is_reported() -> None:
    files = await directory()
    index = SparseIndex.decode(files.open(INDEX).pread(1 << 20, 0), 1)
    assert index is not None
    wrong = SparseIndex()
    wrong.add(index.offsets[0] - 1, index.positions[0], index.lsns[0], index.times[0])
    files.open(INDEX).pwritev([wrong.encode(0, 1)], 0)
    (damage,) = check(files).damages
    assert (damage.path, damage.position) == (INDEX, 0)
    assert "the batch there or next is at" in damage.problem


SHARD = (1).to_bytes(8, "big")
SECOND = SHARD + (3).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("family", "key", "value", "told"),
    [
        (Family.META, b"checkpoint_lsn", b"short", "checkpoint_lsn has 5 bytes"),
        (Family.CATALOGUE, (9).to_bytes(8, "big"), b"\x01\xc1", "catalogue key"),
        (Family.CATALOGUE, (9).to_bytes(8, "big"), b"", "catalogue format none"),
        (Family.SEGMENTS, SHARD, b"\x01", "shard 'plant/line' (1): record of shard"),
        (Family.SEGMENTS, SECOND, None, "offsets 3 to 4 are in no segment and were never in memory"),
        (Family.SEGMENTS, b"odd", b"", "segments key"),
        (Family.CURSORS, SHARD + b"other", b"\x01", "cursor key"),
        (Family.CURSORS, SHARD + b"\xff", b"\x01" + bytes(16), "cursor key"),
        (Family.PRODUCERS, b"nbridge", None, "producers by name and by id differ"),
        (Family.PRODUCERS, b"x", b"", "of an unknown kind"),
        (Family.PRODUCERS, b"i" + bytes(8), bytes(4) + b"\xff", "not UTF-8"),
        (Family.PRODUCERS, b"i" + bytes(8), bytes(4) + b"other", "other names by id"),
        (Family.PRODUCERS, b"s" + bytes(16), b"\x01", "producer's state"),
        (Family.STATE, b"vother", b"\x01", "state key"),
        (Family.STATE, b"x" + (1 << 60).to_bytes(8, "big") + b"key", None, "is not in the index of expiries"),
        (Family.STATE, b"x" + (5).to_bytes(8, "big") + b"key", b"", "the value has not"),
        (Family.KEY_INDEX, SHARD + b"kab", b"", "malformed key"),
    ],
)
async def test_a_damaged_view_is_reported(family: Family, key: bytes, value: bytes | None, told: str) -> None:
    files = await directory()
    put(files, family, key, value)
    damages = check(files).damages
    assert [damage.path for damage in damages if told in damage.problem] == [STATE]


async def test_two_shards_of_one_name_are_reported() -> None:
    files = await directory()
    record = store_of(files).get(Family.CATALOGUE, SHARD)
    put(files, Family.CATALOGUE, (99).to_bytes(8, "big"), record)
    assert any("have the same name 'plant/line'" in damage.problem for damage in check(files).damages)


async def test_segments_that_overlap_are_reported() -> None:
    files = await directory()
    first = store_of(files).get(Family.SEGMENTS, SHARD + bytes(8))
    assert first is not None
    put(files, Family.SEGMENTS, SHARD + (2).to_bytes(8, "big"), first)
    assert any("begins before the end" in damage.problem for damage in check(files).damages)


async def test_views_that_cannot_be_opened_are_one_damage_and_the_journal_is_checked_all_the_same() -> None:
    files = await directory()
    change(files, f"{STATE}/content", 10)
    change(files, JOURNAL, 4136 + 60)
    report = check(files)
    assert [damage.path for damage in report.damages] == [JOURNAL, f"{STATE}/content"]
    assert any("log segments were not checked" in note.problem for note in report.notes)


async def test_a_torn_last_write_and_unknown_files_are_notes() -> None:
    files = await directory(crash=True)
    journal = files.open(JOURNAL)
    content = journal.pread(1 << 20, 0)
    # The last group's payload is torn: its last bytes never reached the disk.
    last = content.rindex(b"after the checkpoint")
    journal.pwritev([bytes(20)], last)
    for name in ("log/01/stranger", "log/odd", "odd", "journal/odd", "journal/damaged-0000000000000007.jnl"):
        files.open(f"{DATA}/{name}", create=True).close()
    report = check(files)
    assert report.damages == []
    problems = {note.path: note.problem for note in report.notes}
    assert "is torn; it was never acknowledged" in problems[JOURNAL]
    assert "set this damaged journal file aside" in problems[f"{DATA}/journal/damaged-0000000000000007.jnl"]
    assert {f"{DATA}/{name}" for name in ("log/01/stranger", "log/odd", "odd", "journal/odd")} <= set(problems)


async def test_a_missing_first_journal_file_is_reported() -> None:
    files = await directory()
    put(files, Family.META, b"checkpoint_lsn", bytes(8))
    header = files.open(JOURNAL).pread(48, 0)
    found = JournalFileHeader.decode(JOURNAL, header)
    files.open(JOURNAL).pwritev([JournalFileHeader(found.number, found.salt, found.size_bytes, 5).encode()], 0)
    assert any("a file is missing before it" in damage.problem for damage in check(files).damages)


async def test_a_recycled_journal_file_that_a_power_loss_brings_back_without_the_next_one_is_no_damage() -> None:
    """Two journal files were recycled, and a power loss undid that for the first alone: a start took that for what it
    was, and the check called it damage.
    """
    files = SimulatedFileSystem()
    async with open_simulated(files, config()) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        await append(engine, "plant/line", b"0" * 40_000)
        first = files.open(JOURNAL).pread(64 * 1024, 0)
        for number in range(3):
            await append(engine, "plant/line", b"%d" % number * 40_000)
        await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    assert not files.exists(JOURNAL)
    files.open(JOURNAL, create=True).pwritev([first], 0)
    assert check(files).damages == []
    files = files.crash(everything_survived)
    put(files, Family.META, b"checkpoint_lsn", bytes(8))
    assert ["and the views end with 0: a file is missing" in damage.problem for damage in check(files).damages] == [
        True
    ]
    with pytest.raises(CorruptionError, match="but the file before it ends with"):
        await open_simulated(files, config()).__aenter__()


async def test_empty_views_beside_a_used_journal_are_reported_as_a_start_reports_them() -> None:
    """Its first journal file alone, as before the first checkpoint, and an empty directory in place of ``state/``."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        await append(engine, "plant/line", b"v")
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, f"{path}/empty"))
    assert ["the store of the views (state/) is empty" in damage.problem for damage in report.damages] == [True]
    assert check(files).damages == []


async def test_a_directory_whose_first_start_was_killed_has_no_damage() -> None:
    """Whatever it had made by then: the next start makes the rest."""
    for made in range(1, 40):
        files = SimulatedFileSystem()
        files.fail_at(made, errno.EIO)
        with suppress(DataDirectoryError, OSError):
            open_directory(files, DATA).close()
        if files.exists(f"{DATA}/FORMAT"):
            report = check(files)
            assert (report.damages, len(report.notes)) == ([], 1), made
            assert "the next start completes it" in report.notes[0].problem
    # With anything in it, it is another matter.
    files.mkdir(f"{DATA}/log/01")
    assert "the directory of the views is missing" in check(files).damages[0].problem


async def test_nothing_is_changed_by_a_check() -> None:
    files = await directory()
    paths = [JOURNAL, LOG, NEXT_LOG, INDEX, f"{STATE}/content", f"{DATA}/FORMAT"]
    before = [files.open(path).pread(1 << 30, 0) for path in paths]
    check(files)
    assert [files.open(path).pread(1 << 30, 0) for path in paths] == before


async def test_windows_of_any_size_give_the_same_report(monkeypatch: pytest.MonkeyPatch) -> None:
    files = await directory()
    change(files, JOURNAL, 4096 + 9)
    change(files, LOG, 70)
    expected = check(files)
    for window_bytes in (100, 4096, 1 << 22):
        monkeypatch.setattr(window_module, "WINDOW_BYTES", window_bytes)
        report = check(files)
        assert (report.damages, report.notes) == (expected.damages, expected.notes)


async def test_progress_counts_bytes_up_to_all_that_were_read() -> None:
    files = await directory()
    seen: list[int] = []
    report = check_directory(DATA, seen.append, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= report.counts.bytes_read


async def test_a_directory_that_is_in_use_or_none_is_refused() -> None:
    files = SimulatedFileSystem()
    with pytest.raises(DataDirectoryError, match=f"there is no directory {DATA};"):
        check(files)
    files.mkdir(DATA)
    with pytest.raises(DataDirectoryError, match="neither a FORMAT file nor a journal"):
        check(files)
    async with open_simulated(files):
        with pytest.raises(DataDirectoryError, match="in use"):
            check(files)
    assert check(files).damages == []


async def test_a_directory_of_a_newer_program_is_refused() -> None:
    files = await directory()
    files.open(f"{DATA}/FORMAT").pwritev([b'{"version": 4, "node_id": "x"}'], 0)
    files.open(f"{DATA}/FORMAT").truncate(30)
    with pytest.raises(FormatVersionError, match="data layout 4"):
        check(files)


async def test_a_payload_that_holds_batches_of_its_shard_is_not_taken_for_them() -> None:
    """A copy of the log is in a record, and the batch that holds it is damaged."""
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 20)) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        await append(engine, "plant/line", b"a")
        copy = append_entry(2, 1, 0, b"a")[40:]
        await append(engine, "plant/line", copy * 3)
        await append(engine, "plant/line", b"b")
    change(files, LOG, files.open(LOG).size() - 300)
    report = check(files)
    assert len(report.damages) == 1
    assert report.counts.batches == 2


async def test_the_real_store_and_disk_are_checked_the_same_way(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with open_engine(data, config()) as engine:
        await engine.create_shard("plant/line", ShardConfig())
        await append(engine, "plant/line", b"a")
    assert check_directory(data).damages == []
    (log,) = tmp_path.rglob("data/log/*/*.log")
    content = bytearray(log.read_bytes())
    content[-5] ^= 1
    log.write_bytes(content)
    (damage,) = check_directory(data + "/").damages
    assert damage.path == str(log)
