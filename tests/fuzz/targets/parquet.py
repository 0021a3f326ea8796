"""Shared files as a reader and `journal check` see them."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from unittest.mock import patch

from shards.errors import CorruptionError, FormatVersionError
from shards.format.batch import verify
from shards.format.checksum import crc32c
from shards.format.record import Record
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, MAGIC, TAIL, WRITER_OPTIONS
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.parquet.shared_verification import verify_shared
from tests.fuzz.memory_files import memory_files
from tests.fuzz.target import Target
from tests.fuzz.targets import batches
from tests.shards.parquet.shared_files import Appended, Log, gather

# The last three of the numbers of a row group are position, end position and checksum.
_NUMBERS = re.compile(rb"\[(?:[0-9]{1,19},){4}([0-9]{1,19}),([0-9]{1,19}),( *[0-9]{1,19})\]")
_PATH = "/sealed/date=2023-11-14/51e5000000000007.parquet"


def run_shared_file(data: bytes) -> None:
    """A file is read as a shared file or refused by CorruptionError or FormatVersionError, and a check of it describes
    the problems in sentences.

    The batches of a part that can be read are ones that pass their own checks, and have the offsets of the part.
    """
    files = memory_files({_PATH: data})
    try:
        reader = SharedReader(files, _PATH)
    except (CorruptionError, FormatVersionError):
        assert verify_shared(files, _PATH)
        return
    for part in _PARTS:
        try:
            groups = reader.groups_of(part)
        except ValueError:
            continue
        for group in groups[:8]:
            try:
                encoded = reader.batches(part, group)
            except CorruptionError:
                continue
            found = [verify(bytes(encoded.data), at) for at in encoded.positions]
            assert [header.base_offset for header in found] == encoded.base_offsets
            assert (found[0].base_offset, found[-1].next_offset) == (group.first_offset, group.next_offset)
    if len(reader.metadata.row_groups) <= 8:
        assert all(verify_shared(files, _PATH, _PARTS))


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
        start, end = int(found[1]), int(found[2])
        width = len(found[3])
        crc = b"%d" % crc32c(bytes(fixed[start:end])) if end <= checksums_at else b""
        if crc and len(crc) <= width:
            fixed[found.start(3) : found.end(3)] = crc.rjust(width)
        if end <= checksums_at:
            index_at = max(index_at, end)
    footer_crc = crc32c(bytes(fixed[footer_at : len(fixed) - TAIL.size]))
    CHECKSUMS.pack_into(fixed, checksums_at, CHECKSUMS_MAGIC, footer_crc, crc32c(bytes(fixed[index_at:checksums_at])))
    return bytes(fixed)


_LOGS = (
    Log("plant/line", 7, [Appended(batches.RECORDS[0]), Appended(batches.RECORDS[1])], base_offset=10),
    Log("plant/machine", 3, [Appended(records) for records in batches.RECORDS[2:4]]),
)
_PARTS = (PartOfFile(7, 10, 10 + sum(map(len, batches.RECORDS[:2])), 0), PartOfFile(3, 0, 1, 2))


def _with_long_checksums(written: Sequence[Log]) -> bytes:
    """A file of these logs and a small one; a row group's checksum of ten digits leaves room for every other one."""
    for salt in range(60):
        content = gather([*written, Log("salt", 9, [Appended([Record(b"%d" % salt)])])]).content()
        if all(len(found[3]) == 10 for found in _NUMBERS.finditer(content)):
            return content
    raise AssertionError("no checksum has ten digits")


@cache
def _seeds() -> tuple[bytes, ...]:
    many = Log("many", 8, [Appended([Record(b"x" * 20, b"key", "t", 9, (("a", b"b"),), ("t",), 10)] * 40)])
    made = [gather(_LOGS).content(), _with_long_checksums(_LOGS), _with_long_checksums([many])]
    # Where nothing is compressed, changed bytes are changed values.
    with patch.dict(WRITER_OPTIONS, compression="none", compression_level=None):
        made += [gather(_LOGS).content(), gather(_LOGS, row_group_bytes=100).content(), gather(_LOGS[:1]).content()]
        made.append(_with_long_checksums(_LOGS))
    for each in made:
        assert verify_shared(memory_files({_PATH: each}), _PATH) == []
        assert _repair(each) == each
    return tuple(made)


TARGETS = (
    Target(
        "shared_file",
        run_shared_file,
        _seeds,
        _repair,
        (
            b"journal.row_groups",
            b"journal.",
            b"journal.date",
            b"[[",
            b"]]",
            b"-1",
            b"99999999999999999999",
            CHECKSUMS_MAGIC,
            MAGIC,
        ),
        max_input_bytes=16_384,
        max_growth_bytes=64 << 20,
        is_slow=True,
    ),
)
