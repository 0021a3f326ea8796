"""`journal queue pause`, `resume`, `purge` and `delete`: commands that change a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask, connect
from command_line.app import YesOption
from command_line.output import note, require_yes, write_text
from shards.quantities import counted, format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter


def pause_command(name: str, /, *, server: StoreOption = DEFAULT_SERVER) -> None:
    """Stop sending a queue's records to its sink; new ones are queued.

    Args:
        name: Name of the queue.
    """
    from broker_adapter.cache_queue.queue import change_queue

    ask(server, lambda adapter: change_queue(adapter, name, is_paused=True))
    write_text(f"{name}: paused until `journal queue resume {name}`")


def resume_command(name: str, /, *, server: StoreOption = DEFAULT_SERVER) -> None:
    """Let a paused queue drain again.

    Args:
        name: Name of the queue.
    """
    from broker_adapter.cache_queue.queue import change_queue

    ask(server, lambda adapter: change_queue(adapter, name, is_paused=False))
    write_text(f"{name}: resumed")


def purge_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Delete all records of a queue permanently.

    Records that are being sent to the sink may still arrive there.

    Args:
        name: Name of the queue.
    """
    import trio

    trio.run(_purge, server, name, yes)


async def _purge(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.queue import purge_queue

    async with connect(server) as adapter:
        await require_yes(await _question(adapter, name), yes)
        count = await purge_queue(adapter, name)
    write_text(f"{name}: {counted(count, 'record')} deleted")


async def _question(adapter: StorageAdapter, name: str) -> str:
    from broker_adapter.cache_queue.queue import look

    depth = (await look(adapter, name)).depth
    waits = counted(depth.record_count, "record")
    return f"Delete {waits} ({format_size(depth.size_bytes)}) of the queue {name} permanently?"


def delete_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Delete a queue that has no driver, with its records and its dead letters.

    A driver that was killed still has the lease; after at most nine seconds the lease has expired.

    Args:
        name: Name of the queue.
    """
    import trio

    trio.run(_delete, server, name, yes)


async def _delete(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.queue import definition_of, delete_queue

    async with connect(server) as adapter:
        await definition_of(adapter, name)
        await require_yes(f"Delete the queue {name} with all its records and dead letters permanently?", yes)
        await delete_queue(
            adapter,
            name,
            on_wait=lambda holder: note(
                "journal", f"{name}: {holder} has the lease; waiting to see whether it is alive"
            ),
        )
    write_text(f"{name}: deleted")
