"""`journal queue purge`: throwing away what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, connect
from command_line.boundary import CommandError
from command_line.output import confirmed, write_text
from command_line.quantities import format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter

YesOption: TypeAlias = Annotated[bool, Parameter(negative="", help="Do not ask first.")]


def purge_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Throw away all that waits in a queue, for ever.

    What is on its way to the sink may still arrive there.

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
    write_text(f"{name}: {counted(count, 'record')} thrown away")


async def require_yes(question: str, yes: bool) -> None:
    """Go on only if the operator wants that.

    Raises:
        CommandError: The answer was no.
        UsageError: There is no terminal to ask on.
    """
    import trio

    if yes or await trio.to_thread.run_sync(confirmed, question, abandon_on_cancel=True):
        return
    raise CommandError("nothing was done")


async def _question(adapter: StorageAdapter, name: str) -> str:
    from broker_adapter.cache_queue.cli.view import counted
    from broker_adapter.cache_queue.queue import look

    depth = (await look(adapter, name)).depth
    waits = counted(depth.record_count, "record")
    return f"Throw away {waits} ({format_size(depth.size_bytes)}) of the queue {name} for ever?"
