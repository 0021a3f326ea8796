"""What the golden files of the journal and its directory hold. The files were written once, by the makers here."""

from __future__ import annotations

from pathlib import Path

from journal.engine.wal.entry import encode_entry
from journal.engine.wal.entry_payloads import (
    KINDS,
    ConvertedFile,
    ConvertedPart,
    CursorCommitted,
    CursorDeleted,
    Decision,
    FilesConverted,
    LsnsReserved,
    OffsetsReserved,
    ProducerDeleted,
    ProducerOpened,
    ProducerUsed,
    Rolled,
    ShardConfigured,
    ShardCreated,
    ShardDeleted,
    StateDeleted,
    StatePut,
    Trimmed,
    encode_payload,
)
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader
from journal.engine.wal.journal_writer import JournalWriter
from shards.model import Mode, Retention, ShardConfig
from shards.segments.log_segment import LogHeader
from shards.segments.sparse_index import SparseIndex
from tests.journal.journals import append_entry
from tests.shards.batches import NOW_US
from tests.simulation.file_system import SimulatedFileSystem

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"
FILE_BYTES = 8192
SALT = 0xFEDC_BA98_7654_3210
SHARD_ID = 1

DECISIONS: tuple[Decision, ...] = (
    ShardCreated(
        "plant/line-\u00fc",
        ShardConfig(
            mode=Mode.MEMORY,
            retention=Retention(max_age_s=3600, max_bytes=1 << 40, max_records=7),
            segment_bytes=1 << 20,
            index_keys=True,
            index_tags=True,
        ),
        NOW_US,
    ),
    ShardConfigured(Retention(max_age_s=60), 1 << 16),
    Rolled(42, Mode.FILE, NOW_US + 1),
    Trimmed(17),
    OffsetsReserved(1 << 20),
    LsnsReserved(1 << 24),
    CursorCommitted("reader", 41),
    CursorDeleted("reader"),
    StatePut(b"session/\xff", b"\x00value", NOW_US + 2),
    StateDeleted(b"session/\xff"),
    ProducerOpened("bridge", 12, 3),
    ShardDeleted("plant/line-\u00fc"),
)
GATHERED = FilesConverted(
    files=(
        ConvertedFile(NOW_US // 86_400_000_000, 0x51E5_0000_0000_0007, 4096, 40, bytes(range(32))),
        ConvertedFile(NOW_US // 86_400_000_000 + 1, 0x51E5_0000_0000_0007, 2048, 2, bytes(range(1, 33))),
    ),
    parts=(
        ConvertedPart(SHARD_ID, 42, 61, 0, 21, 1800, NOW_US, NOW_US + 7, 33, NOW_US + 5),
        ConvertedPart(SHARD_ID, 61, 63, 1, 0, 2000, NOW_US, NOW_US + 9, 34, NOW_US + 8),
        ConvertedPart(SHARD_ID + 1, 0, 21, 0, 0, 2100, NOW_US + 1, NOW_US + 2, 30, 2**63 - 1),
    ),
)
"""Has a file of its own: the kind is younger than the others."""
OF_PRODUCERS = (ProducerUsed("anna:bridge", 12, 3, NOW_US), ProducerDeleted("anna:bridge", 12))
"""Likewise."""
NODE_WIDE = (LsnsReserved, StatePut, StateDeleted, ProducerOpened)
VALUES = (b"hello", b"journal")

LOG_HEADER = LogHeader(SHARD_ID, 42, NOW_US, "plant/line-\u00fc")
INDEX = ((42, 64, 14, 0), (50, 65_600, 20, NOW_US), (61, 131_200, 33, NOW_US + 5))


def entries() -> list[bytes]:
    """An entry of every kind: the decisions with lsns from 1, then two appends."""
    decided = [
        encode_entry(KINDS[type(each)], lsn, 0 if isinstance(each, NODE_WIDE) else SHARD_ID, encode_payload(each))
        for lsn, each in enumerate(DECISIONS, 1)
    ]
    appended = [
        append_entry(len(DECISIONS) + 1 + number, SHARD_ID, 42 + number, value) for number, value in enumerate(VALUES)
    ]
    return decided + appended


def convert_files_entry() -> bytes:
    return encode_entry(KINDS[FilesConverted], 37, 0, encode_payload(GATHERED))


def producer_entries() -> bytes:
    decided = (
        encode_entry(KINDS[type(each)], lsn, 0, encode_payload(each)) for lsn, each in enumerate(OF_PRODUCERS, 35)
    )
    return b"".join(decided)


def journal_file() -> bytes:
    """A journal file with two groups and a mark behind each: the first skips lsns of memory-mode batches."""
    files = SimulatedFileSystem()
    files.mkdir("/journal")
    writer = JournalWriter(files, "/journal", FILE_BYTES, lambda: SALT, [])
    writer.begin(1)
    whole = entries()
    for some, first_lsn, next_lsn in ((whole[:-1], 1, 14), (whole[-1:], 14, 30)):
        writer.write_group(some, sum(map(len, some)), first_lsn, next_lsn)
        writer.write_mark()
    file = files.open("/journal/journal-0000000000000001.jnl")
    return file.pread(file.size(), 0)


def journal_header() -> JournalFileHeader:
    return JournalFileHeader(1, SALT, FILE_BYTES, 1)


def log_segment() -> bytes:
    """A log file with the batches of the two appends."""
    return LOG_HEADER.encode() + b"".join(entry[40:] for entry in entries()[-2:])


def index_file() -> bytes:
    index = SparseIndex()
    for entry in INDEX:
        index.add(*entry)
    return index.encode(0, len(INDEX))


FILES = {
    "../v2/journal_file.jnl": journal_file,
    "entries.bin": lambda: b"".join(entries()),
    "../v2/convert_files_entry.bin": convert_files_entry,
    "producer_entries.bin": producer_entries,
    "log_segment.log": log_segment,
    "log_segment.index": index_file,
}

assert FIRST_GROUP_POSITION < FILE_BYTES
