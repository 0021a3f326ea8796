"""A shared file as it was when its format was frozen: reading it gives these records, for ever.

The file was written once, by `write_shared_files` from the logs below. If a test here fails, the code is wrong and not
the file. A newer pyarrow may write other bytes for the same rows, so what is written is compared by its content.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pyarrow.parquet as pq

from shards.format.record import Record
from shards.parquet.schema import SHARED_SCHEMA
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.parquet.shared_verification import verify_shared
from tests.shards.parquet.shared_files import Appended, Gathered, Log, as_stored, gather
from tests.shards.parquet.stamped_batches import decode_all, records_of
from tests.simulation.file_system import SimulatedFileSystem

GOLDEN = Path(__file__).parents[2] / "golden" / "v2" / "shared_file.parquet"
DIGEST = "2888ea7d7e58726ed0769d9dcb27eb65af3f2125cccf29ec88dca655eb7ea944"
PATH = "/sealed/date=2023-11-14/51e5000000000007.parquet"
TIME_US = 1_700_000_000_000_000

LINE_BATCHES = [
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
    [Record(value=b"hello", timestamp_us=TIME_US), Record(value=b"journal", timestamp_us=TIME_US)],
    [Record(timestamp_us=2**63 - 1)],
    [
        Record(value=b"\x00\xff", tags=("",), timestamp_us=1),
        Record(topic="plant/line-\u00fc", timestamp_us=TIME_US - 7),
        Record(expires_at_us=2**63 - 1, timestamp_us=TIME_US + 9001),
    ],
]

LINE, MACHINE, LATER = (
    Log("plant/line-\u00fc", 7, [Appended(records) for records in LINE_BATCHES], base_offset=1000, first_us=TIME_US),
    Log(
        "plant/machine",
        3,
        [
            Appended([Record(value=b"%d" % number, timestamp_us=TIME_US + number) for number in range(3)]),
            Appended([Record(value=b"own", topic="plant/machine", timestamp_us=TIME_US)]),
        ],
        first_lsn=4,
        first_us=TIME_US,
    ),
    Log("plant/machine", 21, [Appended([Record(value=b"again", timestamp_us=TIME_US)])], first_lsn=22),
)
PARTS = [PartOfFile(7, 1000, 1009, 0), PartOfFile(3, 0, 4, 9), PartOfFile(21, 0, 1, 13)]


def make() -> Gathered:
    return gather([LINE, MACHINE, LATER], row_group_bytes=500)


def golden_files() -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    files.mkdir("/sealed")
    files.mkdir(PATH.rpartition("/")[0])
    files.open(PATH, create=True).pwritev([GOLDEN.read_bytes()], 0)
    return files


def test_the_golden_file_is_the_one_that_was_frozen() -> None:
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == DIGEST
    assert verify_shared(golden_files(), PATH, PARTS, digest=bytes.fromhex(DIGEST)) == []


def test_the_parts_of_the_golden_file_hold_the_known_records() -> None:
    with SharedReader(golden_files(), PATH) as reader:
        assert len(reader.metadata.row_groups) > 1
        for part, log in zip(PARTS, (LINE, MACHINE, LATER), strict=True):
            found = b"".join(reader.batches(part, group).data for group in reader.groups_of(part))
            assert decode_all(found) == log.stored


def test_any_parquet_reader_finds_the_known_records_in_the_golden_file() -> None:
    table = pq.read_table(GOLDEN)
    assert table.schema.names == SHARED_SCHEMA.names
    assert table.column("shard").to_pylist() == ["plant/line-\u00fc"] * 9 + ["plant/machine"] * 5
    assert table.column("shard_id").to_pylist() == [7] * 9 + [3] * 4 + [21]
    stored = [*LINE.stored, *MACHINE.stored, *LATER.stored]
    assert table.column("own_topic").to_pylist() == [record.topic != "" for record in stored]
    assert table.column("topic").to_pylist() == [
        record.topic or name for record, name in zip(stored, table.column("shard").to_pylist(), strict=True)
    ]
    assert records_of(as_stored(table)) == stored


def test_the_known_records_are_gathered_to_the_same_rows() -> None:
    made = make()
    assert made.parts_in(0) == PARTS
    with made.open() as found, SharedReader(golden_files(), PATH) as golden:
        groups = range(len(golden.metadata.row_groups))
        assert [found.table(index) for index in groups] == [golden.table(index) for index in groups]
        assert {*found.footer.metadata} == {*golden.footer.metadata}


def test_readers_find_statistics_and_a_page_index_on_what_they_filter_by() -> None:
    footer = pq.read_metadata(GOLDEN)
    for name in ("shard", "shard_id", "offset", "lsn", "timestamp", "append_time", "topic", "key"):
        for index in range(footer.num_row_groups):
            column = footer.row_group(index).column(SHARED_SCHEMA.get_field_index(name))
            assert column.statistics.has_min_max, name
            assert column.has_column_index, name
            assert column.has_offset_index, name


def test_the_documentation_shows_the_golden_files_metadata() -> None:
    text = (GOLDEN.parents[3] / "docs" / "formats.md").read_text()
    section = text.split("## Shared file (Parquet)")[1].split("\n## ")[0]
    shown = dict(re.findall(r"^\| `(journal\.\w+)` \| [^|]* \| `([^`]+)` \|$", section, re.MULTILINE))
    with SharedReader(golden_files(), PATH) as reader:
        stored = {key.decode(): text.decode() for key, text in reader.footer.metadata.items()}
    assert shown == {key: text for key, text in stored.items() if key.startswith("journal.")}
