"""`journal queue list` and `journal queue show`: all queues of a store, or one with its parts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask, connect
from command_line.app import JsonOption
from command_line.output import Table, redrawing, write_json, write_table, write_tables
from command_line.quantities import format_duration
from shards.quantities import counted, format_size

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


def show_command(
    name: str,
    /,
    *,
    watch: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = False,
    server: StoreOption = DEFAULT_SERVER,
) -> None:
    """Show one queue: its sink, its bounds, the outcomes of its records.

    Args:
        name: Name of the queue.
        watch: Show it every second until interrupted.
    """
    from functools import partial

    import trio

    from command_line.until_stopped import run_until_stopped

    trio.run(run_until_stopped, partial(_watch if watch else _show, server, name, json))


async def _show(server: str, name: str, as_json: bool) -> None:
    from broker_adapter.cache_queue.cli import view as seen
    from broker_adapter.cache_queue.cli.view_reader import view_one

    async with connect(server) as adapter:
        view = await view_one(adapter, name)
    if as_json:
        write_json(seen.as_json(view))
    else:
        write_tables(tables(view))


async def _watch(server: str, name: str, as_json: bool) -> None:
    import trio

    from broker_adapter.cache_queue.cli import view as seen
    from broker_adapter.cache_queue.cli.view_reader import MEASURED_S, now_us
    from broker_adapter.cache_queue.queue import look

    async with connect(server) as adapter:
        state, looked_s = await look(adapter, name), trio.current_time()
        view = seen.QueueView(state, now_us(), seen.reported_rates(state, now_us()))
        with redrawing() as redraw:
            while True:
                if as_json:
                    write_json(seen.as_json(view))
                else:
                    redraw(tables(view))
                await trio.sleep_until(looked_s + MEASURED_S)
                before, before_s = state, looked_s
                state, looked_s = await look(adapter, name), trio.current_time()
                rates = seen.reported_rates(state, now_us()) or seen.measured_rates(before, state, looked_s - before_s)
                view = seen.QueueView(state, now_us(), rates)


def tables(view: QueueView) -> list[Table]:
    """All details of a queue, as tables."""
    from broker_adapter.cache_queue.cli.view import bounds, outcomes

    state = view.state
    writers = Table(
        ("writer", "rejected", "dropped_newest"),
        [(name, f"{each.rejected:,}", f"{each.dropped_newest:,}") for name, each in state.writers.items()],
        numeric=("rejected", "dropped_newest"),
    )
    return [
        Table(("queue", state.name), [*_situation(view), *bounds(state), ("id", state.definition.queue_id)]),
        Table(
            ("outcome of records", "count"),
            [(reason, f"{count:,}") for reason, count in outcomes(state).items()],
            numeric=("count",),
        ),
        *([writers] if state.writers else []),
        Table(
            ("segment", "start", "next", "size"),
            [
                (each.kind.value, str(each.base_offset), str(each.next_offset), format_size(each.size_bytes))
                for each in state.shard.segments
            ],
            numeric=("start", "next", "size"),
        ),
    ]


def _situation(view: QueueView) -> Iterator[tuple[str, str]]:
    from broker_adapter.cache_queue.cli.view import rate, time_to_drain

    state, status, depth = view.state, view.state.status, view.state.depth
    waits = f"{counted(depth.record_count, 'record')}, {format_size(depth.size_bytes)}"
    yield "waits", f"{waits}, the oldest for {format_duration(view.oldest_age_s)}" if depth.record_count else "nothing"
    if view.in_memory_count:
        yield "in memory", f"{counted(view.in_memory_count, 'record')}, lost if the store's node dies"
    if view.rates is not None:
        how = f" (measured over {view.rates.seconds:.0f}s)" if view.rates.seconds else ""
        yield "rates", f"{rate(view.rates.into)} in, {rate(view.rates.out)} out{how}"
    yield "time to drain", time_to_drain(view)[1]
    yield "state", view.activity
    if status is not None and view.holder and view.holder == status.holder:
        yield "since", _moment(status.since_us)
        if status.reason:
            yield "sink is out", status.reason
        if status.next_attempt_us:
            yield "next attempt", _attempt(status.next_attempt_us, view.now_us)
    yield "driven by", view.driven_by
    yield "dead letters", f"{state.dead_letter_count:,}"


def _attempt(at_us: int, now_us: int) -> str:
    wait_s = (at_us - now_us) / 1e6
    return f"{_moment(at_us)}, in {wait_s:.1f}s" if wait_s > 0 else f"{_moment(at_us)}, now"


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
