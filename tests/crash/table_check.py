"""Compares the Delta table over shared files, as programs without the server read it, with what the server answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import attrs
import trio
from deltalake import DeltaTable

from journal.client import Client, SessionTimes, open_client
from shards.back_off import BackOff
from shards.errors import ShardNotFoundError
from shards.format.batch import read_records
from shards.format.record import Gap
from shards.model import SegmentKind, ShardInfo
from tests.patience import PATIENCE_S

Row: TypeAlias = tuple[str, int, int, bytes]
"""(shard, shard id, offset, value)."""
COLUMNS = ["shard", "shard_id", "offset", "value"]
_READ_BYTES = 1 << 20


class UnreadableTableError(Exception):
    """Files of the newest version of the table are missing again and again."""


@attrs.frozen
class _Answer:
    """What the server has of a shard."""

    info: ShardInfo
    values: Mapping[int, bytes]


def read_table(data: Path) -> list[Row]:
    """Return the rows of the newest version of the table; none if there is no table yet.

    A server without a grace time may remove files of a version while it is read: then the next version is read.

    Raises:
        UnreadableTableError: The same version was read twice, and files of it are missing.
    """
    root = data / "sealed"
    if not list((root / "_delta_log").glob("*.json")):
        return []
    version = -1
    while True:
        table = DeltaTable(str(root))
        try:
            rows = table.to_pyarrow_table(columns=COLUMNS)
        except FileNotFoundError as error:
            if table.version() == version:
                raise UnreadableTableError(f"version {version}: {error}") from error
            version = table.version()
            continue
        return list(zip(*(rows.column(name).to_pylist() for name in COLUMNS), strict=True))


async def compare_table(address: str, data: Path, *, is_quiet: bool) -> list[str]:
    """Return what is wrong with the table, in words.

    Every row of the table has to be what the server answers for its offset, unless the record was trimmed or its shard
    deleted; and no offset may be there twice.

    Args:
        address: The server, which uses ``data``.
        is_quiet: Nobody appends any more. Then all records in files are sealed soon, and the table has all of them.
    """
    async with open_client(
        address, name="table check", backoff=BackOff(0.05, 0.2), times=SessionTimes(first_within_s=math.inf)
    ) as client:
        if not is_quiet:
            return list(_wrong_rows(await trio.to_thread.run_sync(read_table, data), await _answers(client)))
        problems = [f"the table and the server could not be read within {PATIENCE_S} s"]
        with trio.move_on_after(PATIENCE_S):
            while True:
                answers = await _answers(client)
                rows = await trio.to_thread.run_sync(read_table, data)
                problems = [*_unsealed(answers), *_wrong_rows(rows, answers), *_missing(rows, answers)]
                if not problems:
                    return []
                # There is no event for it in another process.
                await trio.sleep(0.2)
        return problems


async def _answers(client: Client) -> list[_Answer]:
    found = []
    for listed in await client.list_shards():
        try:
            found.append(await _read(client, listed.name))
        except ShardNotFoundError:
            # It was deleted meanwhile.
            continue
    return found


async def _read(client: Client, name: str) -> _Answer:
    """Read a shard from its beginning to its end."""
    values: dict[int, bytes] = {}
    info = await client.describe_shard(name)
    offset = info.start_offset
    while offset < info.next_offset:
        reply = await client.fetch(name, offset, max_bytes=_READ_BYTES)
        for item in read_records(reply.batches, start_offset=offset):
            if not isinstance(item, Gap):
                values[item.offset] = item.value
        if reply.next_offset <= offset:
            break
        offset = reply.next_offset
    return _Answer(await client.describe_shard(name), values)


def _wrong_rows(rows: list[Row], answers: list[_Answer]) -> Iterator[str]:
    by_id = {answer.info.shard_id: answer for answer in answers}
    seen: set[tuple[int, int]] = set()
    for name, shard_id, offset, value in rows:
        if (shard_id, offset) in seen:
            yield f"the table has offset {offset} of shard {name} twice"
        seen.add((shard_id, offset))
        answer = by_id.get(shard_id)
        if answer is None or offset < answer.info.start_offset:
            continue
        # It may have been dropped by its retention between two steps of the look at it.
        if offset in answer.values and (answer.info.name, answer.values[offset]) != (name, value):
            yield f"the table has another value at offset {offset} of shard {name} than the server"
        elif offset not in answer.values and offset < answer.info.next_offset:
            yield f"the table has offset {offset} of shard {name}, the server has nothing there"


def _missing(rows: list[Row], answers: list[_Answer]) -> Iterator[str]:
    """Records in shared files that the table lacks."""
    present = {(shard_id, offset) for _, shard_id, offset, _ in rows}
    for answer in answers:
        info = answer.info
        for segment in info.segments:
            offsets = range(max(segment.base_offset, info.start_offset), segment.next_offset)
            lacking = [offset for offset in offsets if segment.file and (info.shard_id, offset) not in present]
            if lacking:
                yield f"the table lacks {len(lacking)} records of shard {info.name} from offset {lacking[0]} on"


def _unsealed(answers: list[_Answer]) -> Iterator[str]:
    """Segments in files that are not sealed."""
    for answer in answers:
        for segment in answer.info.segments:
            if segment.kind is SegmentKind.LOG and segment.next_offset > segment.base_offset:
                yield f"offsets {segment.base_offset} to {segment.next_offset} of shard {answer.info.name} are in a log"
