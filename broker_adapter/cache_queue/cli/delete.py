"""`journal queue delete`: delete a queue."""

from __future__ import annotations

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, connect
from command_line.confirmation import YesOption, require_yes
from command_line.output import note, write_text


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
