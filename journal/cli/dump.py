"""`journal dump`: the content of one file of a data directory. Reads the bytes directly, without a server.

Log files are shown batch by batch, journal and index files entry by entry; `journal.cli.parquet_dump` shows Parquet
files. The layouts are in the format modules; none is defined here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import CommandError
from command_line.output import write_json, write_lines, write_text
from journal.cli.parquet_dump import Wanted, dump_parquet
from shards.quantities import counted

if TYPE_CHECKING:
    from journal.engine.wal.entry import Entry
    from journal.engine.wal.entry_payloads import Decision
    from shards.format.batch import BatchHeader

_PARQUET_MAGIC = b"PAR1"
_HEADER_BYTES = 4096
"""Enough for the header of every kind of file."""


def dump(
    file: str,
    /,
    *,
    records: Annotated[bool, Parameter(negative="")] = False,
    shard: str = "",
    json: JsonOption = False,
) -> None:
    """Print the content of a log, index, journal or sealed Parquet file, an item a line, and check its checksums.

    Args:
        file: The file.
        records: Print the records of each batch or row group as well, a JSON object a line.
        shard: Print only the rows of this shard, of a shared Parquet file.
        json: Print JSON, an object a line.
    """
    if os.path.isdir(file):
        raise CommandError(
            f"{file} is a directory; name a file below it (*.log, *.jnl, *.index, *.parquet), or read a whole data "
            "directory with `journal check`"
        )
    with open(file, "rb") as opened:
        if opened.seek(0, 2) == 0:
            raise CommandError(f"{file} is empty")
        # Not closed explicitly: a raised error still holds views of it, and the close would fail and hide that error.
        content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    show = _kind_of(file, bytes(content[:4]))
    if shard and show is not dump_parquet:
        raise CommandError(f"--shard is for Parquet files that several shards share, and {file} is none; leave it out")
    show(file, content, Wanted(records, json, shard))


def _kind_of(file: str, magic: bytes) -> Callable[[str, memoryview, Wanted], None]:
    """The function that shows a file with this magic; an index file has no magic and is recognised by its name."""
    from journal.engine.wal.journal_file import MAGIC as JOURNAL_MAGIC
    from shards.segments.log_segment import MAGIC as LOG_MAGIC

    kinds = {LOG_MAGIC: _dump_log, JOURNAL_MAGIC: _dump_journal, _PARQUET_MAGIC: dump_parquet}
    if magic not in kinds and file.endswith(".index"):
        return _dump_index
    if magic not in kinds:
        known = ", ".join(each.decode() for each in kinds)
        raise CommandError(
            f"{file} begins with {magic!r}: log, journal and Parquet files begin with {known}, and names of "
            "index files end in .index"
        )
    return kinds[magic]


def _dump_log(path: str, content: memoryview, wanted: Wanted) -> None:
    from shards.errors import BatchError, CorruptionError
    from shards.format.batch import verify
    from shards.segments.log_segment import LogHeader

    header, position = LogHeader.decode(path, bytes(content[:_HEADER_BYTES]))
    if wanted.as_json:
        write_json({"kind": "log", "size_bytes": len(content), "header": header})
    else:
        write_text(f"log file of shard {header.name!r} (number {header.shard_id}), {len(content):,} bytes")
    while position < len(content):
        try:
            batch = verify(content, position)
        except BatchError as error:
            raise CorruptionError(path, position, str(error)) from error
        _print_batch(position, batch, wanted)
        if wanted.records:
            _print_records(header.name, content, position)
        position += batch.size_bytes


def _dump_journal(path: str, content: memoryview, wanted: Wanted) -> None:
    from journal.engine.wal.entry import GROUP_HEADER_SIZE, BadEntryHeader, decode_entries, decode_group_header
    from journal.engine.wal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader
    from shards.errors import CorruptionError

    header = JournalFileHeader.decode(path, bytes(content[:_HEADER_BYTES]))
    if wanted.as_json:
        write_json({"kind": "journal", "size_bytes": len(content), "header": header})
    else:
        write_text(f"journal file {header.number}, first lsn {header.first_lsn}, {len(content):,} bytes")
    position = FIRST_GROUP_POSITION
    while (group := decode_group_header(content, position, header.salt & 0xFFFFFFFF)) is not None:
        start = position + GROUP_HEADER_SIZE
        position = start + group.size_bytes
        if position > len(content):
            raise CorruptionError(path, start, f"the group here takes {group.size_bytes} bytes, the file ends before")
        for entry in decode_entries(content, start, position):
            if isinstance(entry, BadEntryHeader):
                raise CorruptionError(path, entry.position, entry.problem)
            _check_payload(path, entry)
            _print_entry(path, entry, wanted)
    if not wanted.as_json:
        write_text(f"byte {position}: the written part of the file ends here")


def _dump_index(path: str, content: memoryview, wanted: Wanted) -> None:
    from shards.errors import CorruptionError
    from shards.segments.sparse_index import STORED_SIZE, SparseIndex

    if wanted.as_json:
        write_json({"kind": "index", "size_bytes": len(content), "entries": len(content) // STORED_SIZE})
    else:
        write_text(
            f"index file with {counted(len(content) // STORED_SIZE, 'entry', 'entries')}, {len(content):,} bytes"
        )
    for position in range(0, len(content), STORED_SIZE):
        entry = SparseIndex.decode(bytes(content[position : position + STORED_SIZE]), 1)
        if entry is None:
            raise CorruptionError(path, position, "index entry is cut short or does not match its checksum")
        fields = {
            "position": position,
            "base_offset": entry.offsets[0],
            "log_position": entry.positions[0],
            "lsn": entry.lsns[0],
            "newest_before_us": entry.times[0],
        }
        if wanted.as_json:
            write_json(fields)
        else:
            write_text(
                f"byte {position}: offset {entry.offsets[0]} is at byte {entry.positions[0]} of the log, "
                f"lsn {entry.lsns[0]}, newest record before it {entry.times[0]} us"
            )


def _check_payload(path: str, entry: Entry) -> None:
    """Raise an error for a payload that does not match its checksums."""
    from journal.engine.wal.entry import ENTRY_HEADER_SIZE
    from journal.engine.wal.recovery import check_payload
    from shards.errors import CorruptionError

    if problem := check_payload(entry):
        raise CorruptionError(path, entry.position + ENTRY_HEADER_SIZE, problem)


def _print_entry(path: str, entry: Entry, wanted: Wanted) -> None:
    from journal.engine.wal.entry import Kind

    kind = Kind(entry.kind).name.lower() if entry.kind in set(Kind) else f"kind {entry.kind}"
    payload_bytes = len(entry.payload)
    decision = _decision_in(path, entry)
    if wanted.as_json:
        fields = {"position": entry.position, "lsn": entry.lsn, "entry": kind, "shard_id": entry.shard_id}
        write_json({**fields, "payload_bytes": payload_bytes, **({"decision": decision} if decision else {})})
    else:
        shown = f": {decision}" if decision else ""
        place = f"byte {entry.position}: lsn {entry.lsn}, {kind}, shard {entry.shard_id}"
        write_text(f"{place}, {payload_bytes} bytes{shown}")
    if entry.kind == Kind.APPEND and wanted.records:
        _print_records(f"#{entry.shard_id}", entry.payload, 0)


def _decision_in(path: str, entry: Entry) -> Decision | None:
    from journal.engine.wal.entry import ENTRY_HEADER_SIZE, Kind
    from journal.engine.wal.entry_payloads import decode_payload
    from shards.errors import CorruptionError

    if entry.kind == Kind.APPEND or entry.kind not in set(Kind):
        return None
    try:
        return decode_payload(entry.kind, entry.payload)
    except ValueError as error:
        problem = f"the payload is not a valid {Kind(entry.kind).name.lower()}: {error}"
        raise CorruptionError(path, entry.position + ENTRY_HEADER_SIZE, problem) from error


def _print_batch(position: int, batch: BatchHeader, wanted: Wanted) -> None:
    fields = {
        "position": position,
        "base_offset": batch.base_offset,
        "next_offset": batch.next_offset,
        "records": batch.record_count,
        "lsn": batch.lsn,
        "append_time_us": batch.append_time_us,
        "size_bytes": batch.size_bytes,
        "raw_bytes": batch.raw_size,
        "codec": batch.codec,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "sequence": batch.sequence,
    }
    if wanted.as_json:
        write_json(fields)
        return
    producer = f", producer {batch.producer_id}/{batch.producer_epoch}/{batch.sequence}" if batch.producer_id else ""
    write_text(
        f"byte {position}: offsets {batch.base_offset} to {batch.last_offset} "
        f"({counted(batch.record_count, 'record')}), "
        f"lsn {batch.lsn}, {batch.size_bytes} bytes, codec {batch.codec}{producer}"
    )


def _print_records(shard: str, content: memoryview, position: int) -> None:
    from journal.cli.shown_records import json_lines
    from shards.format.batch import decode

    write_lines(json_lines(shard, decode(content, position)))
