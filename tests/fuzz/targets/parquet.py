"""Parquet segments as a reader and `journal check` see them."""

from __future__ import annotations

import re
import struct
from functools import cache
from unittest.mock import patch

from shards.errors import CorruptionError, FormatVersionError
from shards.format.batch import iterate, verify
from shards.format.checksum import crc32c
from shards.format.record import Record
from shards.parquet import verification
from shards.parquet.reading import SealedReader
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, MAGIC, TAIL, WRITER_OPTIONS
from tests.fuzz.memory_files import memory_files
from tests.fuzz.target import Target
from tests.fuzz.targets import batches
from tests.shards.parquet.segments import convert, encode_all, stamp_all

_NUMBERS = re.compile(rb"\[" + rb"([0-9]{1,19})," * 7 + rb"( *[0-9]{1,19})\]")
_PATH = "/sealed/segment.parquet"


def run_parquet(data: bytes) -> None:
    """A file is read as a Parquet segment or refused by CorruptionError or FormatVersionError, and a check of it
    describes the problems in sentences.

    The batches of a row group that can be read are ones that pass their own checks.
    """
    files = memory_files({_PATH: data})
    try:
        reader = SealedReader(files, _PATH)
    except (CorruptionError, FormatVersionError):
        assert verification.verify(files, _PATH)
        return
    for group in reader.row_groups[:8]:
        try:
            encoded = reader.batches(group.index)
        except CorruptionError:
            continue
        whole = bytes(encoded.data)
        assert [at for at, _ in iterate(whole)] == encoded.positions
        for at in encoded.positions:
            verify(whole, at)
    if len(reader.row_groups) <= 8:
        assert all(verification.verify(files, _PATH))


def _repair(data: bytes) -> bytes:
    """Make the checksums of row groups, page index and footer right. That of a row group is a decimal number in the
    footer: it is only written where it has room."""
    fixed = bytearray(data)
    if len(fixed) < 4 + CHECKSUMS.size + TAIL.size:
        return data
    fixed[-4:] = MAGIC
    (footer_size,) = struct.unpack_from("<I", fixed, len(fixed) - TAIL.size)
    footer_at = len(fixed) - TAIL.size - footer_size
    checksums_at = footer_at - CHECKSUMS.size
    if checksums_at < 4:
        checksums_at = fixed.rfind(CHECKSUMS_MAGIC, 4, len(fixed) - CHECKSUMS.size - TAIL.size)
        if checksums_at < 0:
            return data
        footer_at = checksums_at + CHECKSUMS.size
        struct.pack_into("<I", fixed, len(fixed) - TAIL.size, max(0, len(fixed) - TAIL.size - footer_at))
    index_at = 4
    for found in _NUMBERS.finditer(fixed, footer_at):
        start, end = int(found[6]), int(found[7])
        width = len(found[8])
        crc = b"%d" % crc32c(bytes(fixed[start:end])) if end <= checksums_at else b""
        if crc and len(crc) <= width:
            fixed[found.start(8) : found.end(8)] = crc.rjust(width)
        if end <= checksums_at:
            index_at = max(index_at, end)
    footer_crc = crc32c(bytes(fixed[footer_at : len(fixed) - TAIL.size]))
    CHECKSUMS.pack_into(fixed, checksums_at, CHECKSUMS_MAGIC, footer_crc, crc32c(bytes(fixed[index_at:checksums_at])))
    return bytes(fixed)


@cache
def _seeds() -> tuple[bytes, ...]:
    made = []
    for records in (*batches.RECORDS, [Record(b"x" * 20, b"key", "t", 9, (("a", b"b"),), ("t",), 10)] * 40):
        for salt in range(60):
            # A row group whose checksum has ten digits leaves room for every other one.
            content = convert(stamp_all(encode_all([(records, 0), ([Record(b"%d" % salt)], 0)]))).content
            if all(len(found[8]) == 10 for found in _NUMBERS.finditer(content)):
                made.append(content)
                break
    several = stamp_all(encode_all([(batches.RECORDS[3], 0)] * 3))
    made.append(convert(several, row_group_bytes=100).content)
    # Where nothing is compressed, changed bytes are changed values.
    with patch.dict(WRITER_OPTIONS, compression="none", compression_level=None):
        made += [convert(stamp_all(encode_all([(records, 0)]))).content for records in batches.RECORDS]
        made.append(convert(several).content)
    assert len(made) > 3
    assert all(_repair(each) == each for each in made)
    return tuple(made)


TARGETS = (
    Target(
        "parquet",
        run_parquet,
        _seeds,
        _repair,
        (b"journal.row_groups", b"journal.", b"[[", b"]]", b"-1", b"99999999999999999999", CHECKSUMS_MAGIC, MAGIC),
        max_input_bytes=16_384,
        max_growth_bytes=64 << 20,
        is_slow=True,
    ),
)
