"""`journal queue dead-letters`: list, replay or purge the records that a sink refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, connect
from command_line.app import JsonOption, YesOption
from command_line.boundary import UsageError
from command_line.output import note, require_yes, write_json, write_table, write_text
from shards.quantities import counted, format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.cache_queue.dead_letters import DeadLetter

_SHOWN = 100


def dead_letters_command(
    name: str,
    /,
    *,
    replay: Annotated[bool, Parameter(negative="")] = False,
    purge: Annotated[bool, Parameter(negative="")] = False,
    count: Annotated[int | None, Parameter(name=("--count", "-n"), validator=Number(gte=1))] = None,
    yes: YesOption = False,
    json: JsonOption = False,
    server: StoreOption = DEFAULT_SERVER,
) -> None:
    """List the records that a queue's sink refused; put them back, or delete them.

    Args:
        name: Name of the queue.
        replay: Put all of them back at the end of the queue, each exactly once.
        purge: Delete all of them permanently.
        count: List no more than this; the oldest 100 by default, with --json all.
        json: Print whole records, one JSON object per line; bytes that are not text in base64, as in `journal read`.
    """
    import trio

    if replay and purge:
        raise UsageError("--replay and --purge contradict each other; give one of them")
    if replay:
        trio.run(_replay, server, name)
    elif purge:
        trio.run(_purge, server, name, yes)
    else:
        trio.run(_list, server, name, count, json)


async def _list(server: str, name: str, count: int | None, as_json: bool) -> None:
    from broker_adapter.cache_queue.dead_letters import count_dead_letters

    async with connect(server) as adapter:
        if as_json:
            await _write_json(adapter, name, count)
            return
        letters = await _first(adapter, name, count or _SHOWN)
        more = await count_dead_letters(adapter, name) - len(letters)
    write_table(
        ("offset in queue", "refused", "topic", "size", "reason"),
        (
            (
                str(letter.queue_offset),
                datetime.fromtimestamp(letter.refused_us / 1e6, UTC).astimezone().isoformat(" ", "seconds"),
                letter.record.topic,
                format_size(len(letter.record.value)),
                letter.reason,
            )
            for letter in letters
        ),
        numeric=("offset in queue", "size"),
    )
    if more > 0:
        note("journal", f"{more:,} more; --count N lists more of them, --json all of them in full")


async def _first(adapter: StorageAdapter, name: str, count: int) -> list[DeadLetter]:
    from contextlib import aclosing

    from broker_adapter.cache_queue.dead_letters import list_dead_letters
    from broker_adapter.cache_queue.queue import definition_of

    await definition_of(adapter, name)
    letters = []
    async with aclosing(list_dead_letters(adapter, name)) as found:
        async for letter in found:
            letters.append(letter)
            if len(letters) == count:
                break
    return letters


async def _write_json(adapter: StorageAdapter, name: str, count: int | None) -> None:
    from contextlib import aclosing

    from broker_adapter.cache_queue.dead_letters import list_dead_letters
    from broker_adapter.cache_queue.queue import definition_of

    await definition_of(adapter, name)
    left = count
    async with aclosing(list_dead_letters(adapter, name)) as found:
        async for letter in found:
            write_json(_as_json(letter))
            left = None if left is None else left - 1
            if left == 0:
                return


async def _replay(server: str, name: str) -> None:
    from broker_adapter.cache_queue.dead_letters import replay_dead_letters
    from broker_adapter.cache_queue.queue import definition_of, settings_of

    async with connect(server) as adapter:
        settings = settings_of(await definition_of(adapter, name))
        count = await replay_dead_letters(adapter, name, settings)
        await _print_result(adapter, name, f"{counted(count, 'dead letter')} put back at the end of the queue")


async def _purge(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.dead_letters import count_dead_letters, purge_dead_letters
    from broker_adapter.cache_queue.queue import definition_of

    async with connect(server) as adapter:
        await definition_of(adapter, name)
        waiting = await count_dead_letters(adapter, name)
        await require_yes(f"Delete {counted(waiting, 'dead letter')} of the queue {name} permanently?", yes)
        count = await purge_dead_letters(adapter, name)
        await _print_result(adapter, name, f"{counted(count, 'dead letter')} deleted")


async def _print_result(adapter: StorageAdapter, name: str, done: str) -> None:
    from broker_adapter.cache_queue.dead_letters import count_dead_letters

    left = await count_dead_letters(adapter, name)
    rest = f"; {left:,} are newer, or are still in use by the queue's driver" if left else ""
    write_text(f"{name}: {done}{rest}")


def _as_json(letter: DeadLetter) -> dict[str, object]:
    from journal.protocol.record_json import bytes_field

    record = letter.record
    return {
        "queue_offset": letter.queue_offset,
        "reason": letter.reason,
        "refused_us": letter.refused_us,
        "topic": record.topic,
        "timestamp_us": record.timestamp_us,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"name": header, **bytes_field("value", value)} for header, value in record.headers],
        "tags": record.tags,
    }
