"""The body of an uncompressed batch is Arrow's: pyarrow reads its columns from the bytes as they lie."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
from hypothesis import given

from shards.format.batch import HEADER_SIZE, BatchHeader
from shards.format.record import Record
from tests.shards.batches import encode_stamped, record_lists, stored


class BufferReader:
    """Takes buffers from a batch, one after the other, as slices of the one Arrow buffer over it."""

    def __init__(self, batch: bytes) -> None:
        self.batch = batch
        self.buffer = pa.py_buffer(batch)
        self.at = HEADER_SIZE

    def take(self, size_bytes: int) -> pa.Buffer:
        taken = self.buffer.slice(self.at, size_bytes)
        assert self.at % 8 == 0
        self.at += size_bytes + 7 & -8
        return taken

    def times(self, count: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), count, [None, self.take(8 * count)])

    def variable(self, arrow_type: pa.DataType, count: int) -> pa.Array:
        offsets = self.take(4 * count + 4)
        return pa.Array.from_buffers(arrow_type, count, [None, offsets, self.take(self.last(offsets))])

    def text(self, count: int) -> pa.Array:
        return self.variable(pa.utf8(), count)

    def binary(self, count: int) -> pa.Array:
        return self.variable(pa.binary(), count)

    def headers(self, count: int) -> pa.Array:
        offsets = self.take(4 * count + 4)
        pair_count = self.last(offsets)
        pair = pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())])
        children = [self.text(pair_count), self.binary(pair_count)]
        pairs = pa.Array.from_buffers(pair, pair_count, [None], children=children)
        return pa.Array.from_buffers(pa.list_(pair), count, [None, offsets], children=[pairs])

    def tags(self, count: int) -> pa.Array:
        offsets = self.take(4 * count + 4)
        words = self.text(self.last(offsets))
        return pa.Array.from_buffers(pa.list_(pa.utf8()), count, [None, offsets], children=[words])

    @staticmethod
    def last(offsets: pa.Buffer) -> int:
        return int(struct.unpack_from("<i", offsets, offsets.size - 4)[0])


COLUMNS: list[tuple[str, Callable[[BufferReader, int], pa.Array], object]] = [
    ("timestamp_us", BufferReader.times, None),
    ("topic", BufferReader.text, ""),
    ("key", BufferReader.binary, b""),
    ("value", BufferReader.binary, b""),
    ("headers", BufferReader.headers, ()),
    ("tags", BufferReader.tags, ()),
    ("expires_at_us", BufferReader.times, 0),
]


@given(record_lists)
def test_arrow_finds_the_same_columns_in_the_bytes(records: list[Record]) -> None:
    batch = encode_stamped(records)
    header = BatchHeader.unpack(batch)
    reader = BufferReader(batch)
    for bit, (field, read, default) in enumerate(COLUMNS):
        expected = [getattr(record, field) for record in stored(records)]
        if header.columns >> bit & 1:
            array = read(reader, header.record_count)
            array.validate(full=True)
            assert plain(field, array.to_pylist()) == expected
        else:
            absent = header.min_timestamp_us if field == "timestamp_us" else default
            assert expected == [absent] * header.record_count
    assert reader.at == len(batch)


def plain(field: str, items: list[object]) -> list[object]:
    """Return Arrow's lists and dictionaries as the tuples that records have."""
    if field == "headers":
        return [tuple((pair["key"], pair["value"]) for pair in pairs) for pairs in items]  # type: ignore[attr-defined]
    return [tuple(words) for words in items] if field == "tags" else items  # type: ignore[arg-type]
