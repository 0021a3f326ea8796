"""`journal queue pause` and `resume`: stop and restart sending a queue's records to its sink."""

from __future__ import annotations

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask
from command_line.output import write_text


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
