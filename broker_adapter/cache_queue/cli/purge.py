"""`journal queue purge`: delete all records of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, connect
from command_line.confirmation import YesOption, require_yes
from command_line.output import write_text
from command_line.quantities import format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter


def purge_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Delete all records of a queue permanently.

    Records that are being sent to the sink may still arrive there.

    Args:
        name: Name of the queue.
    """
    import trio

    trio.run(_purge, server, name, yes)


async def _purge(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.cli.view import counted
    from broker_adapter.cache_queue.queue import purge_queue

    async with connect(server) as adapter:
        await require_yes(await _question(adapter, name), yes)
        count = await purge_queue(adapter, name)
    write_text(f"{name}: {counted(count, 'record')} deleted")


async def _question(adapter: StorageAdapter, name: str) -> str:
    from broker_adapter.cache_queue.cli.view import counted
    from broker_adapter.cache_queue.queue import look

    depth = (await look(adapter, name)).depth
    waits = counted(depth.record_count, "record")
    return f"Delete {waits} ({format_size(depth.size_bytes)}) of the queue {name} permanently?"
