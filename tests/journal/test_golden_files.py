"""Files of version 1 of the journal, of log segments and of a whole directory, as they were when it was frozen.

The files under tests/golden/v1 were written once and never change. If a test here fails, the code is wrong and not the
file: stored data of users would be read wrongly.
"""

from __future__ import annotations

import itertools
import tarfile
from pathlib import Path

import attrs
import pytest

from journal.check import check_directory
from journal.engine import open_engine
from journal.engine.wal.entry import Entry, Kind, decode_entries
from journal.engine.wal.entry_payloads import KINDS, decode_payload
from journal.engine.wal.journal_file import JournalFileHeader, journal_path
from journal.engine.wal.recovery import Recovered, check_payload, judge, read_journal
from shards.format.batch import decode, encode_values, iterate
from shards.model import AckLevel, Appended, Cursor, Mode, ProducerIdentity, Retention, ShardConfig, StateValue
from shards.segments.log_segment import LogHeader
from shards.segments.sparse_index import SparseIndex
from tests.journal.engines import append, config, values_of
from tests.journal.golden import (
    DECISIONS,
    FILES,
    GATHERED,
    GOLDEN,
    INDEX,
    LOG_HEADER,
    NODE_WIDE,
    OF_PRODUCERS,
    SHARD_ID,
    VALUES,
    journal_header,
)
from tests.simulation.file_system import SimulatedFileSystem


@pytest.mark.parametrize("name", FILES)
def test_the_golden_bytes_are_what_is_written_today(name: str) -> None:
    assert FILES[name]() == (GOLDEN / name).read_bytes()


def test_golden_entries_of_every_kind_are_read() -> None:
    data = memoryview((GOLDEN / "entries.bin").read_bytes())
    entries = [entry for entry in decode_entries(data, 0, len(data)) if isinstance(entry, Entry)]
    assert {entry.kind for entry in entries} == set(Kind) - {
        Kind.USE_PRODUCER,
        Kind.DELETE_PRODUCER,
        Kind.CONVERT_FILES,
    }
    assert [entry.lsn for entry in entries] == list(range(1, len(DECISIONS) + len(VALUES) + 1))
    assert all(check_payload(entry) == "" for entry in entries)
    decided = entries[: len(DECISIONS)]
    assert tuple(decode_payload(entry.kind, entry.payload) for entry in decided) == DECISIONS
    assert [entry.shard_id for entry in decided] == [
        0 if isinstance(each, NODE_WIDE) else SHARD_ID for each in DECISIONS
    ]
    assert [record.value for entry in entries[len(DECISIONS) :] for record in decode(entry.payload)] == list(VALUES)


def test_the_golden_entries_of_producers_are_read() -> None:
    data = memoryview((GOLDEN / "producer_entries.bin").read_bytes())
    entries = [entry for entry in decode_entries(data, 0, len(data)) if isinstance(entry, Entry)]
    assert [(entry.kind, entry.lsn) for entry in entries] == [(Kind.USE_PRODUCER, 35), (Kind.DELETE_PRODUCER, 36)]
    assert tuple(decode_payload(entry.kind, entry.payload) for entry in entries) == OF_PRODUCERS


def test_the_golden_conversion_to_shared_files_is_read() -> None:
    data = memoryview((GOLDEN / "../v2/convert_files_entry.bin").read_bytes())
    (entry,) = decode_entries(data, 0, len(data))
    assert isinstance(entry, Entry)
    assert (entry.kind, entry.lsn, entry.shard_id) == (Kind.CONVERT_FILES, 37, 0)
    assert check_payload(entry) == ""
    assert decode_payload(entry.kind, entry.payload) == GATHERED


@pytest.mark.parametrize("name", ["journal_file.jnl", "../v2/journal_file.jnl"])
def test_the_golden_journal_files_are_recovered(name: str) -> None:
    stored = (GOLDEN / name).read_bytes()
    files = SimulatedFileSystem()
    files.mkdir("/journal")
    path = journal_path("/journal", 1)
    files.open(path, create=True).pwritev([stored], 0)
    assert JournalFileHeader.decode(path, stored) == journal_header()
    found = Recovered()
    groups = list(read_journal(files, "/journal", found))
    assert [[entry.lsn for entry in group.entries] for group in groups if group.entries] == [list(range(1, 14)), [14]]
    assert (found.next_lsn, found.truncated_bytes, found.damages) == (30, 0, [])


def test_the_golden_log_segment_holds_the_known_batches() -> None:
    stored = (GOLDEN / "log_segment.log").read_bytes()
    header, position = LogHeader.decode("log_segment.log", stored)
    assert header == LOG_HEADER
    assert [(at, batch.base_offset, batch.lsn) for at, batch in iterate(stored, position)] == [
        (56, 42, 13),
        (160, 43, 14),
    ]
    assert [decode(stored, at)[0].value for at, _ in iterate(stored, position)] == list(VALUES)


def test_the_golden_index_holds_the_known_entries() -> None:
    index = SparseIndex.decode((GOLDEN / "log_segment.index").read_bytes(), len(INDEX))
    assert index is not None
    assert tuple(zip(index.offsets, index.positions, index.lsns, index.times, strict=True)) == INDEX


@pytest.fixture
def data_directory(tmp_path: Path) -> str:
    """A directory as a power loss left it: a checkpoint, and a journal that goes on behind it."""
    with tarfile.open(GOLDEN / "data_directory.tar.xz") as archive:
        # A file of this repository; Python before 3.11.4 has no filters for what an archive may hold.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return str(tmp_path / "data")


def test_the_golden_directory_is_small() -> None:
    assert (GOLDEN / "data_directory.tar.xz").stat().st_size < 200 * 1024


async def test_the_golden_directory_opens_and_gives_the_known_records(data_directory: str) -> None:
    report = check_directory(data_directory)
    assert report.damages == []
    assert report.counts.index_entries > 0
    async with open_engine(data_directory, config()) as engine:
        assert engine.node_id == "0123456789abcdef"
        assert engine.recovery.entries > 0
        assert (engine.recovery.truncated_bytes, engine.recovery.damages) == (0, ())
        assert engine.parts.table.catalogue.matching("#") == ["numbered", "plant/line-\u00fc", "switched", "volatile"]
        large = [b"%d" % number * 20_000 for number in range(6)]
        later = [b"behind the checkpoint", b"and the last one"]
        assert await values_of(engine, "plant/line-\u00fc") == [*large[2:], b"second", b"segment", *later]
        assert await values_of(engine, "switched") == [b"in a file", b"in a file again"]
        assert await values_of(engine, "volatile") == []

        plant = engine.parts.table.by_name("plant/line-\u00fc").info(with_segments=True)
        assert plant.config == ShardConfig(
            retention=Retention(max_records=1000), segment_bytes=1 << 20, index_keys=True, index_tags=True
        )
        assert (plant.start_offset, plant.next_offset) == (2, 10)
        assert [(segment.base_offset, segment.next_offset) for segment in plant.segments] == [(0, 6), (6, 10)]
        found = await engine.parts.reader.read_indexed(
            engine.parts.table.by_name("plant/line-\u00fc"), "key", b"k", 0, 1 << 20, latest=True
        )
        assert decode(b"".join(map(bytes, found.buffers)))[0].value == b"and the last one"

        switched = engine.parts.table.by_name("switched").info(with_segments=True)
        assert [(segment.base_offset, segment.next_offset) for segment in switched.segments] == [(0, 1), (2, 3)]
        volatile = engine.parts.table.by_name("volatile")
        assert volatile.config.mode is Mode.MEMORY
        assert volatile.published_offset >= 3

        assert engine.list_cursors("plant/line-\u00fc") == [Cursor("later", 8, 40), Cursor("reader", 3, 21)]
        assert (await engine.scan_state(b"", None, 10))[0] == [
            StateValue(b"kept", b"for ever", 26, 0),
            StateValue(b"later", b"behind the checkpoint", 41, 0),
            StateValue(b"leased", b"till 2100", 27, 4_102_444_800_000_000),
        ]
        producers = engine.parts.views.producers
        assert producers.get("bridge") == ProducerIdentity(30, 2)
        assert engine.parts.committer.next_lsn > 41

        # A batch that the producer sent before and after the checkpoint is known, sent again; its next one is taken.
        numbered = engine.parts.table.by_name("numbered")
        for values, sequence, expected in (
            ([b"zero", b"one"], 0, Appended(0, AckLevel.DURABLE, duplicate=True)),
            ([b"two"], 2, Appended(2, AckLevel.DURABLE, duplicate=True)),
            ([b"three"], 3, Appended(3, AckLevel.DURABLE)),
        ):
            batch = encode_values(values, timestamp_us=1, producer_id=30, producer_epoch=2, sequence=sequence)
            assert await engine.append(numbered, batch) == expected
        assert await values_of(engine, "numbered") == [b"zero", b"one", b"two", b"three"]

        await append(engine, "plant/line-\u00fc", b"today")
        await append(engine, "volatile", b"today")
    async with open_engine(data_directory, config()) as engine:
        assert (await values_of(engine, "plant/line-\u00fc"))[-1] == b"today"
    assert check_directory(data_directory).damages == []


FORMATS = (GOLDEN.parents[2] / "docs" / "formats.md").read_text()


def rows(section: str) -> list[list[str]]:
    """Cells of the first table of a section, without its head."""
    lines = FORMATS.split(f"### {section}\n")[1].split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_documented_kinds_are_those_of_the_code() -> None:
    fields = {kind.name: ", ".join(each.name for each in attrs.fields(decision)) for decision, kind in KINDS.items()}
    documented = [(int(number), name, names) for number, name, names, _ in rows("Kinds and payloads")]
    assert documented == [(kind, kind.name, fields.get(kind.name, "(a record batch)")) for kind in Kind]


def test_the_documented_recovery_table_is_the_one_of_the_code() -> None:
    meanings = {"ok": (True,), "bad": (False,), "yes": (True,), "no": (False,), "any": (True, False)}
    documented = {
        case: verdict
        for *cells, verdict in rows("Recovery")
        for case in itertools.product(*(meanings[cell] for cell in cells))
    }
    assert len(documented) == 16
    for (group, headers, payloads, last), verdict in documented.items():
        found = judge(group_header_ok=group, entry_headers_ok=headers, payloads_ok=payloads, is_tail=last)
        assert found.value == verdict
