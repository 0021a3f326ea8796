"""`journal shard ...`: commands that change or delete a shard. They ask for confirmation before records are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from command_line.app import JsonOption, YesOption
from command_line.boundary import CommandError, UsageError
from command_line.output import require_yes, write_json, write_text
from command_line.quantities import parse_duration_s, parse_size_bytes
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect
from journal.cli.shard import EVERYTHING, retention_for_people
from shards.quantities import counted, format_size

if TYPE_CHECKING:
    from journal.client import Client
    from shards.model import Retention, ShardConfig, ShardInfo


def mode_command(
    name: str,
    mode: Literal["memory", "file"],
    /,
    *,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Switch a shard between memory and file mode while it is in use.

    Args:
        name: Name of the shard.
        mode: Where new records are stored from now on.
    """
    import trio

    trio.run(_set_mode, server, name, mode, json)


async def _set_mode(server: str, name: str, mode: str, as_json: bool) -> None:
    from shards.model import Mode

    async with _connected(server, name) as client:
        info = await client.set_mode(name, Mode(mode))
    _tell(info, f"{info.name}: {info.config.mode} mode from offset {info.next_offset} on", as_json=as_json)


def set_command(
    name: str,
    /,
    *,
    max_age: str | None = None,
    max_bytes: str | None = None,
    max_records: int | None = None,
    segment_bytes: str | None = None,
    yes: YesOption = False,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Change the retention and segment size of a shard; options that are not given change nothing.

    Indexes are chosen when a shard is created. `journal shard mode` switches between memory and files.

    Args:
        name: Name of the shard.
        max_age: Drop segments older than this, such as 7d; 0s keeps them.
        max_bytes: Drop the oldest segments beyond this size, such as 10GiB; 0 keeps them.
        max_records: Drop the oldest segments beyond this number of records; 0 keeps them.
        segment_bytes: Close a segment at this size; 0 means the server's default.
    """
    import trio

    changes: dict[str, int] = {}
    if max_age is not None:
        changes["max_age_s"] = parse_duration_s(max_age)
    if max_bytes is not None:
        changes["max_bytes"] = parse_size_bytes(max_bytes)
    if max_records is not None:
        changes["max_records"] = max_records
    size = None if segment_bytes is None else parse_size_bytes(segment_bytes)
    if not changes and size is None:
        raise UsageError("name what to change: --max-age, --max-bytes, --max-records or --segment-bytes")
    trio.run(_set, server, name, changes, size, yes, json)


async def _set(
    server: str, name: str, changes: dict[str, int], segment_bytes: int | None, yes: bool, as_json: bool
) -> None:
    import attrs

    async with _connected(server, name) as client:
        before = (await client.describe_shard(name)).config.retention
        retention = attrs.evolve(before, **changes)
        if is_tighter(retention, before):
            await require_yes(
                f"Keep at most {retention_for_people(retention)} of {name}, instead of {retention_for_people(before)}? "
                f"Whole segments beyond that are deleted, oldest first.",
                yes,
            )
        info = await client.configure_shard(name, retention=retention if changes else None, segment_bytes=segment_bytes)
    _tell(info, f"{info.name}: {_settings_for_people(info.config)}", as_json=as_json)


def is_tighter(wanted: Retention, now: Retention) -> bool:
    """Whether a new bound may drop records that were kept so far; 0 is no bound."""
    pairs = (
        (wanted.max_age_s, now.max_age_s),
        (wanted.max_bytes, now.max_bytes),
        (wanted.max_records, now.max_records),
    )
    return any(bound > 0 and (before == 0 or bound < before) for bound, before in pairs)


def _settings_for_people(config: ShardConfig) -> str:
    kept = retention_for_people(config.retention)
    size = format_size(config.segment_bytes) if config.segment_bytes else "the server's default size"
    return f"keeps {kept if kept == EVERYTHING else f'at most {kept}'}, in segments of {size}"


def trim_command(
    name: str,
    before_offset: int,
    /,
    *,
    yes: YesOption = False,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Drop a shard's records below an offset, permanently.

    Args:
        name: Name of the shard.
        before_offset: First offset to keep.
    """
    import trio

    trio.run(_trim, server, name, before_offset, yes, json)


async def _trim(server: str, name: str, before_offset: int, yes: bool, as_json: bool) -> None:
    async with _connected(server, name) as client:
        before = await client.describe_shard(name)
        last = min(before_offset, before.next_offset)
        if before.start_offset < last:
            await require_yes(f"Drop {_offsets(before.start_offset, last)} of {name} permanently?", yes)
        info = await client.trim(name, before_offset)
    dropped = "nothing to drop"
    if info.start_offset > before.start_offset:
        dropped = f"dropped {_offsets(before.start_offset, info.start_offset)}"
    _tell(info, f"{name}: {dropped}; starts at offset {info.start_offset}, ends at {info.next_offset}", as_json=as_json)


def delete_command(
    name: str, /, *, yes: YesOption = False, json: JsonOption = False, server: ServerOption = DEFAULT_SERVER
) -> None:
    """Delete a shard with all its records and cursors.

    Args:
        name: Name of the shard.
        json: Print the shard as it was before.
    """
    import trio

    trio.run(partial(delete, server, name, yes=yes, as_json=json))


async def delete(server: str, name: str, *, yes: bool, as_json: bool) -> None:
    """Ask for confirmation, delete, and show what was deleted."""
    async with _connected(server, name) as client:
        info = await client.describe_shard(name)
        cursors = await _cursor_count(client, name)
        held = f"{_offsets(info.start_offset, info.next_offset)} ({format_size(info.size_bytes)})"
        if cursors:
            held += f" and {counted(cursors, 'cursor')}"
        await require_yes(f"Delete {name} with {held} permanently?", yes)
        await client.delete_shard(name)
    _tell(info, f"{name}: deleted, with {held}", as_json=as_json)


async def _cursor_count(client: Client, name: str) -> int:
    """The number of cursors that are deleted with a shard; 0 for a damaged one, whose cursors cannot be listed."""
    from shards.errors import ShardDamagedError

    try:
        return len(await client.list_cursors(name))
    except ShardDamagedError:
        return 0


@asynccontextmanager
async def _connected(server: str, name: str) -> AsyncIterator[Client]:
    """A client for work on an existing shard; the commands that change or delete one never create it.

    Raises:
        CommandError: The shard does not exist.
    """
    from shards.errors import ShardNotFoundError

    async with connect(server) as client:
        try:
            yield client
        except ShardNotFoundError as error:
            raise CommandError(f"there is no shard {name!r}; `journal shard list` lists all shards") from error


def _offsets(start: int, end: int) -> str:
    return f"offsets {start} up to, not including, {end}" if start < end else "no records"


def _tell(info: ShardInfo, text: str, *, as_json: bool) -> None:
    if as_json:
        write_json(info)
    else:
        write_text(text)
