"""`journal queue list`: all queues of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask
from command_line.app import JsonOption
from command_line.output import write_json, write_table
from command_line.quantities import format_duration, format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.cache_queue.cli.view import QueueView


def list_command(*, json: JsonOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """List queues with their records, rates and drivers."""
    from broker_adapter.cache_queue.cli.view import as_json, rate

    views = ask(server, _look)
    if json:
        for view in views:
            write_json(as_json(view))
        return
    write_table(
        ("queue", "mode", "records", "size", "oldest", "in", "out", "state", "driven by"),
        (
            (
                view.state.name,
                str(view.state.definition.settings.get("mode", "")),
                f"{view.state.depth.record_count:,}",
                format_size(view.state.depth.size_bytes),
                format_duration(view.oldest_age_s) if view.state.depth.record_count else "",
                rate(view.rates.into) if view.rates else "",
                rate(view.rates.out) if view.rates else "",
                view.activity,
                view.driven_by,
            )
            for view in views
        ),
        numeric=("records", "size", "oldest", "in", "out"),
    )


async def _look(adapter: StorageAdapter) -> list[QueueView]:
    from broker_adapter.cache_queue.cli.view_reader import view_all
    from broker_adapter.cache_queue.queue import list_queues

    return await view_all(adapter, await list_queues(adapter))
