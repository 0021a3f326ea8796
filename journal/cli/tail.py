"""`journal tail`: new records of all shards that match a topic filter, as they are appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.output import note
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect
from journal.cli.read import RawOption

if TYPE_CHECKING:
    from journal.client import Client, Subscription
    from shards.position import Start


def tail(
    filter: str,  # noqa: A002 - the name of the argument in the help
    /,
    *,
    start: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "latest",
    count: Annotated[int | None, Parameter(name=("--count", "-n"), validator=Number(gte=0))] = None,
    json: JsonOption = False,
    raw: RawOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Print `topic payload` lines of all matching shards, also of new ones, until interrupted.

    Args:
        filter: Name of a shard, or a topic filter with + and #.
        start: Where to begin: earliest, latest, an ISO 8601 time, or a duration back from now (-15m).
        count: Stop after this many records.
        json: Print whole records, a JSON object a line; a lost range is an object with `gap`.
        raw: Print control characters of payloads to a terminal as they are. Pipes and files always get them.
    """
    import time
    from functools import partial

    import trio

    from command_line.boundary import UsageError
    from command_line.until_stopped import run_until_stopped
    from journal.cli.shown_records import parse_start

    place = parse_start(start, now_us=time.time_ns() // 1000)
    if place.kind == "offset" and ("+" in filter or "#" in filter):
        raise UsageError(f"--from {start}: an offset means one shard; with a filter give earliest, latest or a time")
    trio.run(run_until_stopped, partial(_tail, server, filter, place, count, json, raw))


async def _tail(server: str, target: str, start: Start, count: int | None, as_json: bool, raw: bool) -> None:
    if count == 0:
        return
    async with connect(server) as client:
        is_filter = "+" in target or "#" in target
        if not is_filter and start.kind != "offset" and not await _exists(client, target):
            note("journal", f"there is no shard {target!r} yet; waiting until it is created")
            is_filter = True
        async with client.subscribe(
            shard=None if is_filter else target, topic_filter=target if is_filter else None, start=start
        ) as subscription:
            await _show_all(client, subscription, start, count, as_json, raw)


async def _exists(client: Client, name: str) -> bool:
    from shards.errors import ShardNotFoundError

    try:
        await client.describe_shard(name)
    except ShardNotFoundError:
        return False
    return True


async def _show_all(
    client: Client, subscription: Subscription, start: Start, left: int | None, as_json: bool, raw: bool
) -> None:
    from journal.cli.damage import read_received
    from journal.cli.read import show
    from journal.cli.shown_records import Selection, topic_lines

    selections: dict[str, Selection] = {}
    async for delivery in subscription:
        selection = selections.get(delivery.shard)
        if selection is None:
            selection = selections[delivery.shard] = Selection(from_us=start.value if start.kind == "time" else 0)
        selection.count = left
        records, damage = await read_received(client, delivery.shard, delivery.batches, delivery.first_offset)
        show(delivery.shard, selection.take(records), topic_lines, as_json=as_json, raw=raw)
        left = selection.count
        if left == 0:
            return
        if damage is not None:
            raise damage
