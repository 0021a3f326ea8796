"""Damage to a sealed segment is an error that names the file, or it is outside of what is read; never other records."""

from __future__ import annotations

import hashlib
import re

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.errors import CorruptionError, FormatVersionError
from shards.format.batch import Codec, encode
from shards.format.checksum import crc32c
from shards.format.record import Record
from shards.parquet.reading import SealedReader
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, SCHEMA, TAIL
from shards.parquet.verification import verify
from tests.shards.batches import NOW_US
from tests.shards.parquet.segments import Sealed, convert, decode_all, records_of, stamp_all
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
LOG = stamp_all([encode(RECORDS[at : at + 2], now_us=NOW_US, codec=Codec.NONE) for at in range(0, 6, 2)])
SEALED = convert(LOG, row_group_bytes=200)
CONTENT = SEALED.content
DIGEST = SEALED.file.digest


def with_content(content: bytes, sealed: Sealed = SEALED) -> SimulatedFileSystem:
    """Return files of which the sealed segment has this content."""
    files = SimulatedFileSystem()
    files.mkdir(sealed.path.rpartition("/")[0])
    files.open(sealed.path, create=True).pwritev([content], 0)
    return files


def read_all(files: SimulatedFileSystem) -> list[object]:
    """Return all that the file's records are, read in both ways."""
    with SealedReader(files, SEALED.path) as reader:
        tables = [reader.table(group.index) for group in reader.row_groups]
        batches = b"".join(reader.batches(group.index).data for group in reader.row_groups)
    return [records_of(pa.Table.from_batches(tables, SCHEMA)), decode_all(batches)]


WHOLE = read_all(SEALED.files)


def test_the_segment_is_whole_before_it_is_damaged() -> None:
    assert [decode_all(LOG)] * 2 == WHOLE
    assert SEALED.file.row_groups == 3
    assert verify(SEALED.files, SEALED.path, size_bytes=len(CONTENT), digest=DIGEST) == []


@pytest.mark.slow("damages a file at many bytes")
@pytest.mark.parametrize("first", range(8))
def test_a_flipped_byte_is_refused_or_changes_nothing(first: int) -> None:
    for at in range(first, len(CONTENT), 8):
        damaged = bytearray(CONTENT)
        damaged[at] ^= 1 << at % 7
        files = with_content(damaged)
        try:
            assert read_all(files) == WHOLE, at
        except CorruptionError as error:
            assert error.path == SEALED.path


@pytest.mark.slow("damages a file at many bytes")
def test_verify_finds_flipped_bytes() -> None:
    for at in range(0, len(CONTENT), 5):
        damaged = bytearray(CONTENT)
        damaged[at] ^= 1 << at % 7
        problems = verify(with_content(damaged), SEALED.path, digest=DIGEST)
        assert SEALED.path in problems[0], at
        assert verify(with_content(damaged), SEALED.path), at


@pytest.mark.parametrize("first", range(4))
def test_a_truncated_file_is_refused(first: int) -> None:
    for size in range(first, len(CONTENT), 4):
        files = with_content(CONTENT[:size])
        with pytest.raises(CorruptionError, match=re.escape(SEALED.path)):
            SealedReader(files, SEALED.path)
        assert len(verify(files, SEALED.path)) == 1


def test_damage_to_a_row_group_names_its_number_and_offsets_and_spares_the_others() -> None:
    entry = SEALED.open().metadata.row_groups[1]
    damaged = bytearray(CONTENT)
    damaged[entry.start + 30] ^= 4
    files = with_content(damaged)
    with SealedReader(files, SEALED.path) as reader:
        message = r"row group 1 \(offsets 1002 to 1004\): checksum .* expected 0x.* found 0x"
        with pytest.raises(CorruptionError, match=message) as caught:
            reader.batches(1)
        assert caught.value.position == entry.start
        assert reader.table(0).num_rows == 2
    problems = verify(files, SEALED.path, digest=DIGEST)
    assert re.search(message, problems[0])
    assert "SHA-256 of the first" in problems[1]
    assert f"SHA-256 of the file: expected {DIGEST.hex()}" in problems[2]


def test_damage_to_the_page_index_is_found_by_verify() -> None:
    damaged = bytearray(CONTENT)
    damaged[SEALED.open().metadata.data_bytes + 5] ^= 1
    (problem,) = verify(with_content(damaged), SEALED.path)
    assert "checksum of the page index: expected" in problem


def test_another_size_is_found_by_verify() -> None:
    (problem,) = verify(SEALED.files, SEALED.path, size_bytes=5)
    assert f"expected 5 bytes, found {len(CONTENT)}" in problem


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sealed/shard=other/{name}", "expected shard 'other' by its directory, found 'plant/line-\u00fc'"),
        ("/sealed/shard=a+b/{name}", "shard name 'a\\+b' has"),
        (SEALED.path.replace("1000-", "1001-"), "is that of"),
        (SEALED.path.replace("7.parquet", "8.parquet"), "is that of"),
    ],
)
def test_a_file_in_the_wrong_place_is_found_by_verify(path: str, message: str) -> None:
    path = path.format(name=SEALED.path.rpartition("/")[2])
    files = SimulatedFileSystem()
    files.mkdir(path.rpartition("/")[0])
    files.open(path, create=True).pwritev([CONTENT], 0)
    (problem,) = verify(files, path, digest=DIGEST)
    assert re.search(message, problem)
    assert problem.startswith(path)


def rewritten(change: dict[bytes, bytes], table: pa.Table | None = None) -> bytes:
    """Return a file with other rows or metadata, and checksums that are right for it."""
    reader = SEALED.open()
    if table is None:
        table = pa.Table.from_batches([reader.table(group.index) for group in reader.row_groups])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False, compression="none", use_dictionary=False) as writer:
        for group in reader.row_groups:
            writer.write_table(table.slice(group.first_offset - 1000, group.next_offset - group.first_offset))
        writer.add_key_value_metadata({**reader.footer.metadata, **change})
    return with_seals(sink.getvalue().to_pybytes())


def with_seals(content: bytes) -> bytes:
    size, _ = TAIL.unpack_from(content, len(content) - TAIL.size)
    at = len(content) - TAIL.size - size
    return content[:at] + CHECKSUMS.pack(CHECKSUMS_MAGIC, crc32c(content[at : -TAIL.size]), crc32c(b"")) + content[at:]


def test_a_newer_format_is_refused_as_such() -> None:
    files = with_content(rewritten({b"journal.format": b"2"}))
    message = f"{SEALED.path} has sealed format 2, this program knows up to 1; use a newer one"
    with pytest.raises(FormatVersionError, match=re.escape(message)):
        SealedReader(files, SEALED.path)
    assert verify(files, SEALED.path) == [message]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (b"journal.base_offset", b"x", "the footer cannot be read: invalid literal"),
        (b"journal.row_groups", b"[]", "expected 0 row groups, found 3"),
        (b"journal.row_groups", b"{", "the footer cannot be read"),
        (b"journal.shard", b"\xff", "the footer cannot be read"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(key: bytes, text: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        SealedReader(with_content(rewritten({key: text})), SEALED.path)


def test_a_parquet_file_of_another_program_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    foreign = sink.getvalue().to_pybytes()
    with pytest.raises(CorruptionError, match="expected b'JSEG', which sealed segments have before the footer"):
        SealedReader(with_content(foreign), SEALED.path)
    with pytest.raises(CorruptionError, match=r"the metadata has no journal\.format"):
        SealedReader(with_content(with_seals(foreign)), SEALED.path)
    table = pa.Table.from_batches([SEALED.open().table(0)]).drop_columns(["tags"])
    with pytest.raises(CorruptionError, match="expected the columns"):
        SealedReader(with_content(rewritten({}, table)), SEALED.path)


def test_rows_that_contradict_the_metadata_are_found_by_verify() -> None:
    reader = SEALED.open()
    table = pa.Table.from_batches([reader.table(group.index) for group in reader.row_groups])
    rows = table.to_pylist()
    rows[1]["offset"] = 1005
    rows[1]["timestamp"] = rows[5]["timestamp"]
    rows[2]["append_time"] = rows[0]["append_time"].replace(year=2001)
    rows[3]["value"] = b""
    rows[4]["lsn"] = 1
    problems = problems_of_rows(pa.Table.from_pylist(rows, SCHEMA))
    for message in (
        r"row group 0 \(offsets 1000 to 1002\): offsets: expected True, found False",
        r"row group 0 \(offsets 1000 to 1002\): newest timestamp: expected 1700000000000001, found 1700000000000005",
        r"row group 1 \(offsets 1002 to 1004\): rising append times: expected True, found False",
        r"row group 1 \(offsets 1002 to 1004\): bytes of values: expected 28, found 14",
        r"row group 2 \(offsets 1004 to 1006\): rising lsns: expected True, found False",
    ):
        assert re.search(message, problems), problems


def problems_of_rows(table: pa.Table, statistics_of: pa.Table | None = None) -> str:
    """Return what `verify` finds in a segment with these rows, of which all checksums are right.

    The statistics can be those of other rows, if these are of the same sizes.
    """
    first = rewritten({}, table)
    footer = pq.read_metadata(pa.BufferReader(first))
    entries = msgspec.json.decode(footer.metadata[b"journal.row_groups"])
    position = 4
    for index, entry in enumerate(entries):
        group = footer.row_group(index)
        size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
        entry[5:] = [position, position + size, crc32c(first[position : position + size])]
        position += size
    changes = {
        b"journal.row_groups": msgspec.json.encode(entries),
        b"journal.data_bytes": b"%d" % position,
        b"journal.data_sha256": hashlib.sha256(first[:position]).hexdigest().encode(),
    }
    end = rewritten(changes, statistics_of or table)[position:]
    return "\n".join(verify(with_content(rewritten(changes, table)[:position] + end), SEALED.path))


def test_statistics_that_are_not_those_of_the_rows_are_found_by_verify() -> None:
    reader = SEALED.open()
    table = pa.Table.from_batches([reader.table(group.index) for group in reader.row_groups])
    rows = table.to_pylist()
    rows[2]["key"] = b"sensor-0"
    rows[5]["lsn"] = 12
    problems = problems_of_rows(pa.Table.from_pylist(rows, SCHEMA), statistics_of=table)
    assert "row group 1 (offsets 1002 to 1004): statistics of key: expected (b'sensor-0', b'sensor-0')" in problems
    assert "row group 2 (offsets 1004 to 1006): last lsn: expected 11, found 12" in problems
    assert "row group 2 (offsets 1004 to 1006): statistics of lsn: expected (11, 12), found (11, 11)" in problems


def test_right_checksums_are_made_for_the_test_above() -> None:
    reader = SEALED.open()
    assert problems_of_rows(pa.Table.from_batches([reader.table(group.index) for group in reader.row_groups])) == ""
