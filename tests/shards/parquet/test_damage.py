"""Damage to a shared file is an error that names the file, or it is outside of what is read; never other records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.errors import CorruptionError, FormatVersionError
from shards.format.checksum import crc32c
from shards.format.record import Record
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, SHARED_SCHEMA, TAIL
from shards.parquet.shared_reading import SharedReader
from shards.parquet.shared_verification import verify_shared
from shards.segments.segment_paths import shared_path
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import DAY_US, FILE_ID, Appended, Log, gather
from tests.shards.parquet.stamped_batches import decode_all
from tests.simulation.file_system import SimulatedFileSystem

RECORDS = [
    Record(
        value=b'{"celsius": %d}' % number,
        key=b"sensor-%d" % (number % 3),
        topic="plant/\u00fc" if number % 2 else "",
        timestamp_us=NOW_US + number,
        headers=(("type", b"json"),) * (number % 2),
        tags=("a", "b")[: number % 3],
        expires_at_us=NOW_US * (number % 2),
    )
    for number in range(6)
]
LOGS = [
    Log("plant/line-1", 7, [Appended(RECORDS[:2]), Appended(RECORDS[2:3])], base_offset=1000),
    Log("plant/line-2", 4, [Appended(RECORDS[3:4])], base_offset=10),
    Log("plant/line-\u00fc", 9, [Appended(RECORDS[4:]), Appended(RECORDS[:2])], base_offset=50),
]
GATHERED = gather(LOGS, row_group_bytes=300)
MADE = GATHERED.made.files[0]
CONTENT = GATHERED.content()
PARTS = GATHERED.parts_in(0)
PATH = shared_path("/sealed", NOW_US // DAY_US, FILE_ID)


def with_content(content: bytes, path: str = PATH) -> SimulatedFileSystem:
    """Return files of which the shared file has this content."""
    files = SimulatedFileSystem()
    files.mkdir("/sealed")
    files.mkdir(path.rpartition("/")[0])
    files.open(path, create=True).pwritev([content], 0)
    return files


def read_all(files: SimulatedFileSystem) -> list[object]:
    """Return the records of each part, read as the server does."""
    with SharedReader(files, PATH) as reader:
        return [
            decode_all(b"".join(reader.batches(part, group).data for group in reader.groups_of(part))) for part in PARTS
        ]


def test_the_file_is_whole_before_it_is_damaged() -> None:
    assert read_all(with_content(CONTENT)) == [log.stored for log in LOGS]
    assert MADE.row_groups == 3
    assert verify_shared(with_content(CONTENT), PATH, PARTS, size_bytes=len(CONTENT), digest=MADE.digest) == []


@pytest.mark.slow("damages a file at many bytes")
@pytest.mark.parametrize("first", range(4))
def test_a_flipped_byte_is_refused_or_changes_nothing(first: int) -> None:
    for at in range(first, len(CONTENT), 11):
        damaged = bytearray(CONTENT)
        damaged[at] ^= 1 << at % 7
        files = with_content(damaged)
        try:
            assert read_all(files) == [log.stored for log in LOGS], at
        except CorruptionError as error:
            assert error.path == PATH
        assert PATH in verify_shared(files, PATH, digest=MADE.digest)[0], at
        assert verify_shared(files, PATH), at


@pytest.mark.parametrize("first", range(2))
def test_a_truncated_file_is_refused(first: int) -> None:
    for size in range(first, len(CONTENT), 37):
        files = with_content(CONTENT[:size])
        with pytest.raises(CorruptionError, match=re.escape(PATH)):
            SharedReader(files, PATH)
        assert len(verify_shared(files, PATH)) == 1


def test_damage_to_a_row_group_names_its_rows_and_spares_the_others() -> None:
    with SharedReader(with_content(CONTENT), PATH) as reader:
        entry = reader.metadata.row_groups[1]
    damaged = bytearray(CONTENT)
    damaged[entry.start + 30] ^= 4
    with SharedReader(with_content(damaged), PATH) as reader:
        message = r"row group 1 \(rows 3 to 6\): checksum .* expected 0x.* found 0x"
        (first,), (second,) = reader.groups_of(PARTS[0]), reader.groups_of(PARTS[1])
        with pytest.raises(CorruptionError, match=message) as caught:
            reader.batches(PARTS[1], second)
        assert caught.value.position == entry.start
        assert decode_all(reader.batches(PARTS[0], first).data) == LOGS[0].stored
    problems = verify_shared(with_content(damaged), PATH, digest=MADE.digest)
    assert re.search(message, problems[0])
    assert "SHA-256 of the first" in problems[1]
    assert f"SHA-256 of the file: expected {MADE.digest.hex()}" in problems[2]


def test_damage_to_the_page_index_is_found_by_verify() -> None:
    damaged = bytearray(CONTENT)
    with GATHERED.open() as reader:
        damaged[reader.metadata.data_bytes + 5] ^= 1
    (problem,) = verify_shared(with_content(damaged), PATH)
    assert "checksum of the page index: expected" in problem


def test_another_size_is_found_by_verify() -> None:
    (problem,) = verify_shared(with_content(CONTENT), PATH, size_bytes=5)
    assert f"expected 5 bytes, found {len(CONTENT)}" in problem


@pytest.mark.parametrize(
    "path", [shared_path("/sealed", NOW_US // DAY_US + 1, FILE_ID), shared_path("/sealed", NOW_US // DAY_US, 1)]
)
def test_a_file_in_the_wrong_place_is_found_by_verify(path: str) -> None:
    (problem,) = verify_shared(with_content(CONTENT, path), path, PARTS)
    assert problem == f"{path}: according to its metadata, the file is {PATH.removeprefix('/sealed/')}"


def test_parts_that_the_file_does_not_have_are_found_by_verify() -> None:
    wrong = [attrs.evolve(PARTS[0], shard_id=8), attrs.evolve(PARTS[2], first_row=99)]
    first, second = verify_shared(with_content(CONTENT), PATH, wrong)
    assert "row group 0 (rows 0 to 3): expected offsets 1000 to 1003 of shard 8" in first
    assert "expected rows 99 to 103 for offsets 50 to 54 of shard 9" in second


def rows_of_file() -> list[dict[str, Any]]:
    with GATHERED.open() as reader:
        return pa.Table.from_batches([reader.table(index) for index in range(3)]).to_pylist()


def with_seals(content: bytes) -> bytes:
    """Return a Parquet file with the checksums that shared files have before their footer."""
    size, _ = TAIL.unpack_from(content, len(content) - TAIL.size)
    at = len(content) - TAIL.size - size
    return content[:at] + CHECKSUMS.pack(CHECKSUMS_MAGIC, crc32c(content[at : -TAIL.size]), crc32c(b"")) + content[at:]


def parquet(rows: list[dict[str, Any]], counts: Sequence[int], schema: Any, metadata: dict[bytes, bytes]) -> bytes:
    """Return a Parquet file with row groups of so many rows."""
    table = pa.Table.from_pylist(rows, schema)
    sink = pa.BufferOutputStream()
    # Without dictionary and compression, rows of the same sizes have pages of the same sizes.
    with pq.ParquetWriter(sink, schema, store_schema=False, compression="none", use_dictionary=False) as writer:
        for at, count in zip(accumulate(counts, initial=0), counts, strict=False):
            writer.write_table(table.slice(at, count))
        writer.add_key_value_metadata(metadata)
    return sink.getvalue().to_pybytes()


def rewritten(
    rows: list[dict[str, Any]],
    change: dict[bytes, bytes] | None = None,
    *,
    schema: Any = SHARED_SCHEMA,
    statistics_of: list[dict[str, Any]] | None = None,
) -> bytes:
    """Return a file with these rows, and checksums and places that are right for it.

    The statistics can be those of other rows, if these are of the same sizes.
    """
    with GATHERED.open() as reader:
        metadata = dict(reader.footer.metadata)
        entries = [list(attrs.astuple(entry)) for entry in reader.metadata.row_groups]
    counts = [entry[0] for entry in entries]
    content = parquet(rows, counts, schema, metadata)
    footer, position = pq.read_metadata(pa.BufferReader(content)), 4
    for index, entry in enumerate(entries):
        group = footer.row_group(index)
        size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
        entry[4:] = [position, position + size, crc32c(content[position : position + size])]
        position += size
    metadata |= {
        b"journal.row_groups": msgspec.json.encode(entries),
        b"journal.data_bytes": b"%d" % position,
        b"journal.data_sha256": hashlib.sha256(content[:position]).hexdigest().encode(),
        **(change or {}),
    }
    return with_seals(content[:position] + parquet(statistics_of or rows, counts, schema, metadata)[position:])


def test_right_checksums_are_made_for_the_tests_below() -> None:
    assert verify_shared(with_content(rewritten(rows_of_file())), PATH, PARTS) == []


def swap_shards(rows: list[dict[str, Any]]) -> None:
    rows[:4] = [rows[3], *rows[:3]]


def set_field(at: int, name: str, value: object) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[at][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_shards, r"found offset 1000 \(lsn 5\) of shard 7 after offset 10 \(lsn 5\) of shard 4"),
        (set_field(1, "offset", 1000), r"rows are sorted .* found offset 1000 \(lsn 5\) of shard 7 after offset 1000"),
        (set_field(2, "lsn", 4), r"found offset 1002 \(lsn 4\) of shard 7 after offset 1001 \(lsn 5\) of shard 7"),
        (set_field(1, "shard", "plant/line-0"), "rows are sorted by shard"),
        (set_field(1, "topic", "plant/line-9"), None),
        (set_field(0, "topic", "plant/line-9"), "topics that are the name of the shard: expected True, found False"),
        (set_field(2, "value", b""), r"bytes of values: expected \d+, found \d+"),
        (set_field(2, "lsn", 99), "highest lsn: expected 8, found 99"),
        (
            set_field(0, "timestamp", datetime.fromtimestamp(NOW_US // 10**6 + 9, UTC)),
            rf"newest timestamp: expected {NOW_US + 2}, found {NOW_US + 9_000_000}",
        ),
        (
            set_field(1, "append_time", datetime.fromtimestamp(NOW_US // 10**6 + 9, UTC)),
            r"append times rise with the offset; found offset 1002 \(lsn 8\) of shard 7 after offset 1001 \(lsn 5\)",
        ),
    ],
)
def test_rows_that_contradict_the_rules_are_found_by_verify(
    change: Callable[[list[dict[str, Any]]], None], message: str | None
) -> None:
    rows = rows_of_file()
    change(rows)
    problems = verify_shared(with_content(rewritten(rows)), PATH)
    if message is None:
        assert problems == []
    else:
        assert re.search(message, "\n".join(problems)), problems


def test_rows_of_another_day_are_found_by_verify() -> None:
    rows = rows_of_file()
    rows[-1]["append_time"] = rows[-1]["append_time"].replace(day=15)
    assert "days of the appends: expected [19675], found [19675, 19676]" in "\n".join(
        verify_shared(with_content(rewritten(rows)), PATH)
    )


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (b"journal.file_id", b"x", "the footer cannot be read: invalid literal"),
        (b"journal.date", b"2023-11-31", "the footer cannot be read"),
        (b"journal.record_count", b"11", "the metadata has 11 records, its row groups 8"),
        (b"journal.row_groups", b"[]", "the metadata has 8 records, its row groups 0"),
        (b"journal.row_groups", b"{", "the footer cannot be read"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(key: bytes, text: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        SharedReader(with_content(rewritten(rows_of_file(), {key: text})), PATH)


def test_other_versions_of_the_format_are_refused_as_such() -> None:
    newer = with_content(rewritten(rows_of_file(), {b"journal.format": b"3"}))
    message = f"{PATH} has sealed format 3, this program knows up to 2; use a newer one"
    with pytest.raises(FormatVersionError, match=re.escape(message)):
        SharedReader(newer, PATH)
    assert verify_shared(newer, PATH) == [message]
    older = with_content(rewritten(rows_of_file(), {b"journal.format": b"1"}))
    with pytest.raises(CorruptionError, match="the file has sealed format 1, this program reads only 2"):
        SharedReader(older, PATH)


def test_a_parquet_file_of_another_program_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    foreign = sink.getvalue().to_pybytes()
    with pytest.raises(CorruptionError, match="expected b'JSEG', which shared files have before the footer"):
        SharedReader(with_content(foreign), PATH)
    with pytest.raises(CorruptionError, match=r"the metadata has no journal\.format"):
        SharedReader(with_content(with_seals(foreign)), PATH)
    fewer = pa.schema([field for field in SHARED_SCHEMA if field.name != "tags"])
    with pytest.raises(CorruptionError, match="expected the columns"):
        SharedReader(with_content(rewritten(rows_of_file(), schema=fewer)), PATH)


def test_statistics_that_are_not_those_of_the_rows_are_found_by_verify() -> None:
    rows = rows_of_file()
    rows[2]["key"] = b"sensor-0"
    rows[-1]["lsn"] = 12
    problems = "\n".join(verify_shared(with_content(rewritten(rows, statistics_of=rows_of_file())), PATH))
    assert "row group 0 (rows 0 to 3): statistics of key: expected (b'sensor-0', b'sensor-1'), found" in problems
    assert "row group 2 (rows 6 to 8): highest lsn: expected 8, found 12" in problems
    assert "row group 2 (rows 6 to 8): statistics of lsn: expected (8, 12), found (8, 8)" in problems
