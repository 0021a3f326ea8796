"""Bytes of batch format version 1 as they were when it was frozen. The files under tests/golden/v1 never change.

They were written once, by ``encode`` (or ``gap_batch``) and ``stamp`` with the records, codec and stamp of the table
below. If a test here fails, the code is wrong and not the file: stored data would be read wrongly. Compressed files are
only decoded, since a newer compressor may find other bytes for the same content.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shards.format.batch import Codec, decode, encode, encode_values, gap_batch, read_records, stamp, verify
from shards.format.record import Gap, Record, StoredRecord

pytestmark = pytest.mark.usefixtures("form_of_record_decoder")
GOLDEN = Path(__file__).parent.parent / "golden" / "v1"
TIME_US = 1_700_000_000_000_000
BASE_OFFSET, LSN, APPEND_TIME_US = 1000, 77, TIME_US + 250

FULL = [
    Record(
        value=b'{"celsius": 21.5}',
        key=b"sensor-1",
        topic="house/kitchen/temperature",
        timestamp_us=TIME_US,
        headers=(("content-type", b"application/json"), ("trace", bytes(range(8)))),
        tags=("kitchen", "r\u00e9sum\u00e9"),
        expires_at_us=TIME_US + 60_000_000,
    ),
    Record(),
    Record(
        value=b'{"celsius": 19.25}' * 8,
        key=b"sensor-\xff",
        topic="house/\u00fc\U0001f321/temperature",
        timestamp_us=TIME_US + 5,
        headers=(("", b""), ("again", b"1"), ("again", b"2")),
    ),
]
VALUES = [Record(value=b"hello"), Record(value=b"journal")]
PRODUCER = {"producer_id": 0x0102030405060708, "producer_epoch": 3, "sequence": 41}

FILES: dict[str, tuple[list[Record], Codec, dict[str, int]]] = {
    "batch_values.bin": (VALUES, Codec.NONE, {}),
    "batch_full.bin": (FULL, Codec.NONE, PRODUCER),
    "batch_empty_record.bin": ([Record()], Codec.NONE, {}),
    "batch_zstd.bin": (FULL, Codec.ZSTD, PRODUCER),
    "batch_lz4.bin": (FULL, Codec.LZ4, PRODUCER),
}


def make(records: list[Record], codec: Codec, producer: dict[str, int]) -> bytes:
    batch = bytearray(encode(records, now_us=TIME_US, codec=codec, **producer))
    stamp(batch, 0, BASE_OFFSET, LSN, APPEND_TIME_US)
    return bytes(batch)


@pytest.mark.parametrize("name", FILES)
def test_golden_batch_decodes_to_the_known_records(name: str) -> None:
    records, codec, producer = FILES[name]
    stored = (GOLDEN / name).read_bytes()
    header = verify(stored)
    assert header.codec == codec
    assert {field: getattr(header, field) for field in PRODUCER} == (producer or dict.fromkeys(PRODUCER, 0))
    assert decode(stored) == [
        StoredRecord(
            BASE_OFFSET + index,
            LSN,
            APPEND_TIME_US,
            record.value,
            record.key,
            record.topic,
            record.timestamp_us or TIME_US,
            record.headers,
            record.tags,
            record.expires_at_us,
        )
        for index, record in enumerate(records)
    ]


@pytest.mark.parametrize("name", [name for name, (_, codec, _) in FILES.items() if codec == Codec.NONE])
def test_golden_records_encode_to_the_same_bytes(name: str) -> None:
    assert make(*FILES[name]) == (GOLDEN / name).read_bytes()


def test_golden_values_encode_to_the_same_bytes_without_records() -> None:
    batch = encode_values([record.value for record in VALUES], timestamp_us=TIME_US)
    assert batch[32:] == (GOLDEN / "batch_values.bin").read_bytes()[32:]


def test_golden_gap_stands_for_the_known_offsets() -> None:
    stored = (GOLDEN / "batch_gap.bin").read_bytes()
    assert read_records(stored) == [Gap(BASE_OFFSET, BASE_OFFSET + 4096)]
    assert gap_batch(BASE_OFFSET, BASE_OFFSET + 4096, LSN, APPEND_TIME_US) == stored


def test_the_worked_example_of_the_documentation_is_the_golden_file() -> None:
    text = (GOLDEN.parents[2] / "docs" / "formats.md").read_text()
    example = text.split("### Worked example")[1].split("```")[1]
    lines = [re.fullmatch(r"([0-9a-f]{2})  ((?:[0-9a-f]{2,} )+) *\S.*", line) for line in example.split("\n")[1:-1]]
    assert all(lines)
    shown = [(int(line[1], 16), bytes.fromhex(line[2])) for line in lines if line]
    stored = (GOLDEN / "batch_values.bin").read_bytes()
    assert b"".join(part for _, part in shown) == stored
    assert all(stored[at : at + len(part)] == part for at, part in shown)
