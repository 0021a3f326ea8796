"""The journal: entries, commit groups, whole files as a start reads them, payloads of decisions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from journal.check.journal_files import check_journal
from journal.check.report import Report
from journal.engine.wal.entry import (
    ENTRY_HEADER_SIZE,
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    BadEntryHeader,
    Entry,
    Kind,
    decode_entries,
    encode_group_header,
)
from journal.engine.wal.entry_payloads import KINDS, decode_payload, encode_payload
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader, journal_path
from journal.engine.wal.recovery import Expected, Recovered, check_payload, read_journal
from shards.errors import CorruptionError, FormatVersionError
from shards.format.batch import HEADER_SIZE
from shards.format.checksum import crc32c
from tests.fuzz.memory_files import memory_files
from tests.fuzz.target import Target
from tests.fuzz.targets.batches import repair_one
from tests.journal.golden import DECISIONS, GATHERED
from tests.journal.journals import append_entry, cursor_entry

_GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
_SALT = 0x1234_5678
_OF_VIEWS = ("but the views end", "but the views hold")
"""What a start refuses by the views alone, a check of the journal alone does not see."""
_LIE_BYTES = 1 << 40
"""A repair leaves a larger size of a file as it is."""
_CREATE = 2


def run_entries(data: bytes) -> None:
    """Entries that are back to back are walked to the first bad header; nothing is raised, and no entry overlaps.

    An entry whose payload is said to be whole is one: a batch that its readers take, or a payload of a decision that
    decodes or is refused by the documented error.
    """
    end = 0
    for entry in decode_entries(memoryview(data), 0, len(data)):
        if isinstance(entry, BadEntryHeader):
            assert end <= entry.position
            break
        assert entry.position == end
        end += ENTRY_HEADER_SIZE + len(entry.payload) + 7 & -8
        _check_entry(entry)


def _check_entry(entry: Entry) -> None:
    if check_payload(entry):
        return
    if entry.kind == Kind.APPEND:
        assert len(entry.payload) >= HEADER_SIZE
    elif entry.kind in frozenset(Kind):
        _check_decision(entry.kind, entry.payload)


def repair_entries(data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """Make sizes and checksums of entries right, and those of the batches in them."""
    fixed = bytearray(data)
    at, end = start, len(fixed) if end is None else end
    while end - at >= ENTRY_HEADER_SIZE:
        (size,) = struct.unpack_from("<I", fixed, at)
        if not ENTRY_HEADER_SIZE <= size <= end - at:
            size = min(end - at, max(ENTRY_HEADER_SIZE, size & 0x3FF))
            struct.pack_into("<I", fixed, at, size)
        payload_at, payload_end = at + ENTRY_HEADER_SIZE, at + size
        if fixed[at + 14] == Kind.APPEND and payload_end - payload_at >= HEADER_SIZE:
            fixed[payload_at + 16 : payload_at + 24] = fixed[at + 24 : at + 32]
            batch = bytearray(fixed[payload_at:payload_end])
            repair_one(batch, 0, len(batch))
            fixed[payload_at:payload_end] = batch
            fixed[at + 8 : at + 12] = batch[32:36]
        else:
            struct.pack_into("<I", fixed, at + 8, crc32c(fixed[payload_at:payload_end]))
        struct.pack_into("<I", fixed, at + 4, crc32c(fixed[at + 8 : at + ENTRY_HEADER_SIZE], size))
        at += size + 7 & -8
    return bytes(fixed)


def _entry_seeds() -> list[bytes]:
    golden = [(_GOLDEN / name).read_bytes() for name in ("entries.bin", "../v2/convert_files_entry.bin")]
    appends = b"".join(append_entry(5 + number, 1, number, b"value") for number in range(3))
    return [*golden, appends, cursor_entry(9, 2) + appends]


_DIRECTORY = "/journal"
_PIECE = struct.Struct("<H")


def files_of(data: bytes) -> dict[str, bytes]:
    """Journal files of the pieces, each behind its length; the size in their headers is theirs unless it is wrong."""
    contents = {}
    for number, piece in enumerate(_pieces_of(data), 1):
        header = piece[:64]
        body = piece[64:]
        contents[journal_path(_DIRECTORY, number)] = header.ljust(FIRST_GROUP_POSITION, b"\0") + body
    return contents


def _pieces_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while len(data) - at >= _PIECE.size:
        (size,) = _PIECE.unpack_from(data, at)
        yield data[at + _PIECE.size : at + _PIECE.size + size]
        at += _PIECE.size + size


_EXPECTED = (
    Expected(),
    Expected(checkpoint=3),
    Expected(checkpoint=1, folded_lsn=4, newest_number=2),
    Expected(is_unused=True),
)


def run_journal_files(data: bytes) -> None:
    """Journal files are read or refused by CorruptionError or FormatVersionError, twice in the same way.

    What is given is in rising lsns within the bounds of its group and is whole, and only the last group is unproven.
    A check finds a damage in every journal that a start refuses.
    """
    contents = files_of(data)
    outcomes = [_read(contents, expected) for expected in _EXPECTED]
    assert _read(contents, Expected()) == outcomes[0]
    report = Report(_DIRECTORY)
    checked = check_journal(memory_files(contents), _DIRECTORY, report, None)
    checked.report_missing_files(_DIRECTORY, report, 0, is_copy=False)
    refusal = outcomes[0][1]
    assert report.damages or not refusal or any(each in refusal for each in _OF_VIEWS)


def _read(contents: dict[str, bytes], expected: Expected) -> tuple[list[tuple[int, int, int, bytes]], str, int]:
    found = Recovered()
    seen: list[tuple[int, int, int, bytes]] = []
    problem, last_lsn, is_proven = "", 0, True
    try:
        for group in read_journal(memory_files(contents), _DIRECTORY, found, expected):
            assert is_proven
            assert group.first_lsn <= group.next_lsn == found.next_lsn
            is_proven = group.unproven is None
            for entry in group.entries:
                assert check_payload(entry) == ""
                assert max(last_lsn + 1, group.first_lsn) <= entry.lsn < group.next_lsn
                last_lsn = entry.lsn
                seen.append((entry.kind, entry.lsn, entry.shard_id, bytes(entry.payload)))
            for damage in group.damages:
                assert damage.problem
    except (CorruptionError, FormatVersionError) as error:
        problem = str(error)
    else:
        assert found.next_lsn > last_lsn
        assert [used.path for used in found.used] == list(contents)
    return seen, problem, found.next_lsn


def _repair_files(data: bytes) -> bytes:
    pieces = []
    for number, piece in enumerate(_pieces_of(data), 1):
        size = FIRST_GROUP_POSITION + max(0, len(piece) - 64)
        header = bytearray(piece[:64].ljust(64, b"\0"))
        header[:4], header[8:10] = b"JRNL", (b"\1\0" if header[8] == 1 else b"\2\0")
        struct.pack_into("<QQ", header, 16, number, _SALT)
        if struct.unpack_from("<Q", header, 32)[0] < _LIE_BYTES:
            struct.pack_into("<Q", header, 32, size)
        struct.pack_into("<I", header, 4, crc32c(bytes(header[8:48])))
        pieces.append(bytes(header) + _repair_groups(piece[64:]))
    return b"".join(_PIECE.pack(len(piece) & 0xFFFF) + piece for piece in pieces)


def _repair_groups(data: bytes) -> bytes:
    fixed = bytearray(data)
    at = 0
    while len(fixed) - at >= GROUP_HEADER_SIZE and fixed[at : at + 4] == GROUP_MAGIC:
        (size,) = struct.unpack_from("<Q", fixed, at + 8)
        left = len(fixed) - at - GROUP_HEADER_SIZE
        if size > left:
            size = left & -8
            struct.pack_into("<Q", fixed, at + 8, size)
        start = at + GROUP_HEADER_SIZE
        fixed[start : start + size] = repair_entries(bytes(fixed[start : start + size]))
        struct.pack_into("<I", fixed, at + 4, crc32c(bytes(fixed[at + 8 : start]), _SALT))
        at = start + size
    return bytes(fixed)


def _file_seeds() -> list[bytes]:
    def group(first_lsn: int, *entries: bytes) -> bytes:
        body = b"".join(entries)
        return encode_group_header(_SALT, len(body), first_lsn, first_lsn + max(1, len(entries))) + body

    def file(number: int, first_lsn: int, *groups: bytes) -> bytes:
        body = b"".join(groups) + bytes(200)
        header = JournalFileHeader(number, _SALT, FIRST_GROUP_POSITION + len(body), first_lsn).encode()[:64]
        return _PIECE.pack(64 + len(body)) + header + body

    first = [group(1, append_entry(1, 1, 0, b"a"), cursor_entry(2, 1)), group(3, append_entry(3, 1, 1, b"b"))]
    second = [group(4, append_entry(4, 2, 0, b"c"), append_entry(5, 3, 0, b"dd"))]
    return [
        file(1, 1, *first),
        file(1, 1, *first) + file(2, 4, *second),
        file(1, 1, *first, *second),
        file(1, 1, *first) + file(2, 4, *second) + file(3, 6),
        # A mark at the end, one that the journal goes on, and a file that begins with a copy of the last group.
        file(1, 1, *first, encode_group_header(_SALT, 0, 4, 4)),
        file(1, 1, *first, encode_group_header(_SALT, 0, 4, 4, 2)) + file(2, 4, *second),
        file(1, 1, *first) + file(2, 3, first[1], *second),
    ]


def run_decisions(data: bytes) -> None:
    """The payload of a decision decodes, or is refused by ValueError; what decodes encodes to the same again."""
    if data:
        _check_decision(data[0] % 20, memoryview(data)[1:])


def _check_decision(kind: int, payload: memoryview) -> None:
    try:
        decision = decode_payload(kind, payload)
    except ValueError:
        return
    assert decode_payload(kind, memoryview(encode_payload(decision))) == decision


def _decision_seeds() -> list[bytes]:
    return [bytes([KINDS[type(each)]]) + encode_payload(each) for each in (*DECISIONS, GATHERED)]


TARGETS = (
    Target("entries", run_entries, _entry_seeds, partial(repair_entries, start=0)),
    Target("journal_files", run_journal_files, _file_seeds, _repair_files, (GROUP_MAGIC,), is_slow=True),
    Target(
        "decisions",
        run_decisions,
        _decision_seeds,
        tokens=(b"\xc1", b"\x91" * 1200, b"\xa1\xff", b"\xdf\xff\xff\xff\xff"),
    ),
)
