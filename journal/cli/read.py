"""`journal read`: a shard's records from a position on, as payload lines or whole records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.output import note, write_lines
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shards.format.record import Gap, StoredRecord
    from shards.position import Start

    TextLines = Callable[[str, Iterable[StoredRecord]], Iterator[bytes]]

RawOption = Annotated[bool, Parameter(negative="")]

_FETCH_BYTES = 1 << 20
_LONG_POLL_S = 10.0


def read(
    shard: str,
    /,
    *,
    start: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "earliest",
    count: Annotated[int | None, Parameter(name=("--count", "-n"), validator=Number(gte=0))] = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    json: JsonOption = False,
    raw: RawOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Print a shard's records, a payload a line.

    Args:
        shard: Name of the shard.
        start: Where to begin: earliest, latest, an offset, an ISO 8601 time, or a duration back from now (-15m).
        count: Stop after this many records.
        follow: Continue with records as they are appended.
        json: Print whole records, a JSON object a line; a lost range is an object with `gap`.
        raw: Print control characters of payloads to a terminal as they are. Pipes and files always get them.
    """
    import time
    from functools import partial

    import trio

    from command_line.until_stopped import run_until_stopped
    from journal.cli.shown_records import parse_start

    place = parse_start(start, now_us=time.time_ns() // 1000)
    trio.run(run_until_stopped, partial(_read, server, shard, place, count, follow, json, raw))


async def _read(
    server: str, shard: str, start: Start, count: int | None, follow: bool, as_json: bool, raw: bool
) -> None:
    from journal.cli.damage import read_received
    from journal.cli.shown_records import Selection, payload_lines

    async with connect(server) as client:
        # Without --follow it ends where the shard ended at the beginning, even while others append.
        end = None if follow else (await client.describe_shard(shard)).next_offset
        offset = start.value if start.kind == "offset" else await client.find_offset(shard, start)
        selection = Selection(end_offset=end, count=count, from_us=start.value if start.kind == "time" else 0)
        is_empty = True
        while not selection.finished and (end is None or offset < end):
            fetched = await client.fetch(
                shard, offset, max_bytes=_FETCH_BYTES, max_wait_s=_LONG_POLL_S if follow else 0.0
            )
            records, damage = await read_received(client, shard, fetched.batches, offset)
            taken = selection.take(records)
            is_empty = is_empty and not taken
            show(shard, taken, payload_lines, as_json=as_json, raw=raw)
            if damage is not None and not selection.finished:
                raise damage
            if fetched.next_offset == offset and not follow:
                break
            offset = fetched.next_offset
        if is_empty and end is not None and count != 0:
            where = f"at offset {start.value}" if start.kind == "offset" else "from there on"
            note("journal", f"{shard}: nothing {where}: it ends before offset {end}")


def show(shard: str, records: Sequence[StoredRecord | Gap], text_lines: TextLines, *, as_json: bool, raw: bool) -> None:
    """Print records; in text a lost range is shown on stderr, at its place among the lines."""
    from journal.cli.shown_records import gap_note, json_lines
    from shards.format.record import Gap

    if as_json:
        write_lines(json_lines(shard, records), raw=raw)
        return
    run: list[StoredRecord] = []
    for record in records:
        if isinstance(record, Gap):
            write_lines(text_lines(shard, run), raw=raw)
            run = []
            note("journal", gap_note(shard, record))
        else:
            run.append(record)
    write_lines(text_lines(shard, run), raw=raw)
