"""`journal shard roll` and `journal shard convert`: close segments, and convert them to Parquet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import note, progress, write_json, write_text
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect
from shards.quantities import counted

if TYPE_CHECKING:
    from journal.client import Client
    from shards.model import ShardInfo

# Shards that are requested together go into few files. At 1024 requests the server reads no more from a connection.
_AT_ONCE: Final = 512
_SILENT_S: Final = 2.0


def roll_command(
    *names: str,
    filter: str | None = None,  # noqa: A002
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Close the active segments of shards.

    The server converts them to Parquet in the background.

    Args:
        names: Names of the shards.
        filter: Topic filter, with + and #, of more shards.
    """
    _run(names, filter, server, json, converts=False)


def convert_command(
    *names: str,
    filter: str | None = None,  # noqa: A002
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Close the active segments of shards, and wait until all closed segments are Parquet files.

    This is done now, and not after conversion.max_age_s.

    Args:
        names: Names of the shards.
        filter: Topic filter, with + and #, of more shards.
    """
    _run(names, filter, server, json, converts=True)


def _run(names: tuple[str, ...], topic_filter: str | None, server: str, as_json: bool, *, converts: bool) -> None:
    import trio

    if not names and topic_filter is None:
        raise UsageError(
            f"name the shards to {'convert' if converts else 'roll'}, or give a --filter such as --filter 'plant/#'"
        )
    trio.run(_change_all, server, names, topic_filter, converts, as_json)


async def _change_all(
    server: str, names: tuple[str, ...], topic_filter: str | None, converts: bool, as_json: bool
) -> None:
    import trio

    from shards.errors import StorageError, StorageFailedError

    done_word = "converted" if converts else "rolled"
    failed = 0
    async with connect(server) as client:
        change: Callable[[str], Awaitable[ShardInfo]] = client.convert if converts else client.roll
        wanted = list(dict.fromkeys([*names, *await _matching(client, topic_filter)]))
        waiting = iter(wanted)
        done = 0

        async def change_some() -> None:
            nonlocal done, failed
            for name in waiting:
                try:
                    info = await change(name)
                except StorageFailedError:
                    raise
                except StorageError as error:
                    if len(wanted) == 1:
                        raise
                    failed += 1
                    note("journal", f"{name}: {error}")
                else:
                    _tell(info, converts=converts, as_json=as_json)
                done += 1

        async def show() -> None:
            await trio.sleep(_SILENT_S)
            with progress(f"shards {done_word}", len(wanted)) as tick:
                while True:
                    tick(done)
                    await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(show)
            async with trio.open_nursery() as changing:
                for _ in range(min(_AT_ONCE, len(wanted))):
                    changing.start_soon(change_some)
            nursery.cancel_scope.cancel()
    if failed:
        raise CommandError(f"{failed} of {counted(len(wanted), 'shard')} could not be {done_word}")


async def _matching(client: Client, topic_filter: str | None) -> list[str]:
    if topic_filter is None:
        return []
    return [info.name for info in await client.list_shards(topic_filter)]


def _tell(info: ShardInfo, *, converts: bool, as_json: bool) -> None:
    if as_json:
        write_json(info)
        return
    write_text(outcome_for_people(info, converts=converts))


def outcome_for_people(info: ShardInfo, *, converts: bool) -> str:
    """Up to which offset a shard is sealed or closed now; records that were appended since are not included."""
    from shards.model import SegmentKind

    files = [segment for segment in info.segments if segment.kind is SegmentKind.PARQUET]
    closed = max((segment.next_offset for segment in info.segments if segment.closed), default=info.start_offset)
    if not converts:
        return f"{info.name}: closed up to offset {closed}"
    if files:
        what = f"sealed up to offset {files[-1].next_offset}"
    else:
        return f"{info.name}: nothing to convert; closed up to offset {closed}"
    # The reply has only the newest segments; older ones may be left out.
    over = "over " if info.segments and info.segments[0].base_offset > info.start_offset else ""
    return f"{info.name}: {what}, {over}{counted(len(files), 'Parquet file')}"
