"""`journal shard seal`: close segments and have them converted to Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import note, progress, write_json, write_text
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect

if TYPE_CHECKING:
    from journal.client import Client
    from shards.model import ShardInfo

_AT_ONCE: Final = 16
_SILENT_S: Final = 2.0


def seal_command(
    *names: str,
    filter: str | None = None,  # noqa: A002
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Close the active segments of shards, and wait until all closed segments are Parquet files.

    Args:
        names: Names of the shards.
        filter: Topic filter, with + and #, of more shards.
        wait: Return when the Parquet files are complete; --no-wait closes the segments and does not wait for the rest.
    """
    import trio

    if not names and filter is None:
        raise UsageError("name the shards to seal, or give a --filter such as --filter 'plant/#'")
    trio.run(_seal_all, server, names, filter, wait, json)


async def _seal_all(server: str, names: tuple[str, ...], topic_filter: str | None, wait: bool, as_json: bool) -> None:
    import trio

    from shards.errors import StorageError, StorageFailedError

    failed = 0
    async with connect(server) as client:
        wanted = list(dict.fromkeys([*names, *await _matching(client, topic_filter)]))
        waiting = iter(wanted)
        done = 0

        async def seal_some() -> None:
            nonlocal done, failed
            for name in waiting:
                try:
                    info = await client.seal(name, wait=wait)
                except StorageFailedError:
                    raise
                except StorageError as error:
                    if len(wanted) == 1:
                        raise
                    failed += 1
                    note("journal", f"{name}: {error}")
                else:
                    _tell(info, wait=wait, as_json=as_json)
                done += 1

        async def show() -> None:
            await trio.sleep(_SILENT_S)
            with progress("shards sealed", len(wanted)) as tick:
                while True:
                    tick(done)
                    await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(show)
            async with trio.open_nursery() as sealing:
                for _ in range(min(_AT_ONCE, len(wanted))):
                    sealing.start_soon(seal_some)
            nursery.cancel_scope.cancel()
    if failed:
        raise CommandError(f"{failed} of {len(wanted)} shards could not be sealed")


async def _matching(client: Client, topic_filter: str | None) -> list[str]:
    if topic_filter is None:
        return []
    return [info.name for info in await client.list_shards(topic_filter)]


def _tell(info: ShardInfo, *, wait: bool, as_json: bool) -> None:
    if as_json:
        write_json(info)
        return
    write_text(outcome_for_people(info, wait=wait))


def outcome_for_people(info: ShardInfo, *, wait: bool) -> str:
    """Up to which offset a shard is sealed or closed now; records that were appended since are not included."""
    from shards.model import SegmentKind

    files = [segment for segment in info.segments if segment.kind is SegmentKind.PARQUET]
    closed = max((segment.next_offset for segment in info.segments if segment.sealed), default=info.start_offset)
    if not wait:
        what = f"closed up to offset {closed}"
    elif files:
        what = f"sealed up to offset {files[-1].next_offset}"
    else:
        what = f"nothing to seal; closed up to offset {closed}"
    # The reply has only the newest segments; older ones may be left out.
    over = "over " if info.segments and info.segments[0].base_offset > info.start_offset else ""
    return f"{info.name}: {what}, {over}{len(files)} Parquet {'file' if len(files) == 1 else 'files'}"
