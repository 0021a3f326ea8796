"""A sealed segment of format version 1 as it was when that was frozen: reading it gives these records, for ever.

The file was written once, by `convert_log` from the log below. If a test here fails, the code is wrong and not the
file. A newer pyarrow may write other bytes for the same rows, so what is written is compared by its content.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shards.format.batch import Codec, decode, encode, iterate, stamp
from shards.format.record import Record, StoredRecord
from shards.parquet.reading import SealedReader
from shards.parquet.schema import SCHEMA
from shards.parquet.verification import verify
from tests.shards.parquet.segments import Sealed, convert, records_of
from tests.simulation.file_system import SimulatedFileSystem

GOLDEN = Path(__file__).parents[2] / "golden" / "v1" / "sealed_segment.parquet"
DIGEST = "03ef458689f391bde0a0f2946ad4b4e1a5216b2914d6ced1f1d34a8dfe5e6575"
PATH = "/sealed/shard=plant%2Fline-%C3%BC/00000000000000001000-00000000000000001009-0000000000000007.parquet"
TIME_US = 1_700_000_000_000_000

# Each batch: its lsn, its append time, its records.
BATCHES: list[tuple[int, int, list[Record]]] = [
    (
        77,
        TIME_US + 250,
        [
            Record(
                value=b'{"celsius": 21.5}',
                key=b"sensor-1",
                topic="house/kitchen/temperature",
                timestamp_us=TIME_US,
                headers=(("content-type", b"application/json"), ("trace", bytes(range(8)))),
                tags=("kitchen", "r\u00e9sum\u00e9"),
                expires_at_us=TIME_US + 60_000_000,
            ),
            Record(timestamp_us=TIME_US),
            Record(
                value=b'{"celsius": 19.25}' * 8,
                key=b"sensor-\xff",
                topic="house/\u00fc\U0001f321/temperature",
                timestamp_us=TIME_US + 5,
                headers=(("", b""), ("again", b"1"), ("again", b"2")),
            ),
        ],
    ),
    (78, TIME_US + 250, [Record(value=b"hello", timestamp_us=TIME_US), Record(value=b"journal", timestamp_us=TIME_US)]),
    (90, TIME_US + 9000, [Record(timestamp_us=2**63 - 1)]),
    (
        91,
        TIME_US + 9001,
        [
            Record(value=b"\x00\xff", tags=("",), timestamp_us=1),
            Record(topic="plant/line-\u00fc", timestamp_us=TIME_US - 7),
            Record(expires_at_us=2**63 - 1, timestamp_us=TIME_US + 9001),
        ],
    ),
]


def make_log() -> bytes:
    log, offset = bytearray(), 1000
    for (lsn, append_time_us, records), codec in zip(BATCHES, (*Codec, Codec.NONE), strict=True):
        at = len(log)
        log += encode(records, now_us=TIME_US, codec=codec, producer_id=5, sequence=offset)
        stamp(log, at, offset, lsn, append_time_us)
        offset += len(records)
    return bytes(log)


def make() -> Sealed:
    return convert(make_log(), row_group_bytes=300)


def known_records() -> list[StoredRecord]:
    """Return what readers must find, put together without any of the code under test."""
    placed = [(lsn, append_time_us, record) for lsn, append_time_us, records in BATCHES for record in records]
    return [
        StoredRecord(
            1000 + index,
            lsn,
            append_time_us,
            record.value,
            record.key,
            record.topic,
            record.timestamp_us,
            record.headers,
            record.tags,
            record.expires_at_us,
        )
        for index, (lsn, append_time_us, record) in enumerate(placed)
    ]


def golden_files() -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    files.mkdir(PATH.rpartition("/")[0])
    files.open(PATH, create=True).pwritev([GOLDEN.read_bytes()], 0)
    return files


def test_the_golden_segment_is_the_file_that_was_frozen() -> None:
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == DIGEST
    assert verify(golden_files(), PATH, digest=bytes.fromhex(DIGEST)) == []


def test_the_golden_segment_says_of_itself_what_it_always_said() -> None:
    with SealedReader(golden_files(), PATH) as reader:
        metadata = reader.metadata
        assert (metadata.format, metadata.shard, metadata.shard_id) == (1, "plant/line-\u00fc", 7)
        assert (metadata.base_offset, metadata.next_offset, metadata.created_us) == (1000, 1009, TIME_US)
        assert [(group.first_offset, group.next_offset, group.last_lsn) for group in reader.row_groups] == [
            (1000, 1003, 77),
            (1003, 1009, 91),
        ]
        assert [group.newest_us for group in reader.row_groups] == [TIME_US + 5, 2**63 - 1]


def test_the_golden_segment_holds_the_known_records() -> None:
    with SealedReader(golden_files(), PATH) as reader:
        tables = [reader.table(group.index) for group in reader.row_groups]
        batches = [reader.batches(group.index).data for group in reader.row_groups]
    assert records_of(pa.Table.from_batches(tables)) == known_records()
    found = [record for data in batches for at, _ in iterate(data) for record in decode(data, at)]
    assert found == known_records()
    assert [header.lsn for data in batches for _, header in iterate(data)] == [77, 78, 90, 91]


def test_any_parquet_reader_finds_the_known_records_in_the_golden_segment() -> None:
    table = pq.read_table(GOLDEN)
    assert table.schema.names == SCHEMA.names
    assert records_of(table) == known_records()


def test_the_known_records_are_sealed_to_the_same_rows() -> None:
    with make().open() as sealed, SealedReader(golden_files(), PATH) as golden:
        assert sealed.path == PATH
        assert [sealed.table(group.index) for group in sealed.row_groups] == [
            golden.table(group.index) for group in golden.row_groups
        ]
        assert {*sealed.footer.metadata} == {*golden.footer.metadata}


def test_the_documentation_shows_the_golden_segments_metadata() -> None:
    text = (GOLDEN.parents[3] / "docs" / "formats.md").read_text()
    section = text.split("## Sealed segment (Parquet)")[1].split("\n## ")[0]
    shown = dict(re.findall(r"^\| `(journal\.\w+)` \| [^|]* \| `([^`]+)` \|$", section, re.MULTILINE))
    with SealedReader(golden_files(), PATH) as reader:
        stored = {key.decode(): text.decode() for key, text in reader.footer.metadata.items()}
    assert shown == {key: text for key, text in stored.items() if key.startswith("journal.")}
