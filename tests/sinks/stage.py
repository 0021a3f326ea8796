"""What a kind of sink brings to the contract suite, and what the suite builds on it: sinks, batches, a small bridge.

A stage is a module in `tests.sinks.stages` with ``open_stage(directory)``, an async context manager that gives a
started `Stage` or skips the test when its server is not installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final, Protocol

import attrs
import trio

from broker_adapter.sinks import Batch, Row, Sink, SinkContext, SinkUnavailableError, Value
from broker_adapter.sinks.kinds import find_kind
from journal.settings.file import Schema
from tests.sinks.proxy import Proxy

COLUMNS: Final = ("topic", "n", "body", "value")
"""Columns of all rows of the suite: text, whole number, text, and one that holds every kind of value (else None)."""

QUEUE_ID: Final = "queue-1"
REFUSED: Final = object()


@attrs.frozen
class Misconfiguration:
    """Settings with which `check` must find the sink out.

    Attributes:
        settings: Values that replace them.
        told: A regular expression for what the message says of it.
    """

    settings: dict[str, object]
    told: str


class Stage(Protocol):
    """A real server for one test, and how to look into it past the sink.

    Attributes:
        kind: Name of the kind of sink.
        settings: The content of ``[bridge.sink]`` (without ``type``), towards the proxy where there is one.
        address: What messages of outages must name.
        proxy: Before the server; None where a sink has no connections.
    """

    kind: str
    settings: dict[str, object]
    address: str
    proxy: Proxy | None

    async def start(self) -> None:
        """Start the server and wait until it serves."""

    async def kill(self) -> None:
        """Take the server away (SIGKILL). What it had for good stays."""

    async def restart(self) -> None:
        """Start it again after `kill`, where it was."""

    async def rows(self) -> Sequence[Row]:
        """Every row that the sink holds, in its order, with the suite's columns."""

    def refused(self) -> Row | None:
        """A row that this sink refuses by itself; None if it refuses none."""

    def held(self, value: Value) -> object:
        """What `rows` shows for this value in the column ``value``; `REFUSED` if such a row is refused."""

    def misconfigured(self) -> dict[str, Misconfiguration]:
        """Settings that the server does not accept, by what is wrong with them."""


@asynccontextmanager
async def open_sink(
    stage: Stage,
    *,
    epoch: int = 1,
    queue_id: str = QUEUE_ID,
    columns: tuple[str, ...] = COLUMNS,
    **settings: object,
) -> AsyncIterator[Sink]:
    """A sink with the stage's settings, read as those of a file are."""
    kind = find_kind(stage.kind)
    config = attrs.make_class("Config", {"sink": attrs.field(type=kind.settings)})
    values = {f"sink.{name}": value for name, value in (stage.settings | settings).items()}
    loaded = Schema(config).load(None, values).sink
    assert kind.check(loaded) == ()
    context = SinkContext(bridge="suite", queue_id=queue_id, columns=columns, epoch=epoch)
    async with kind.open(loaded, context) as sink:
        yield sink


def row(n: int, *, body: str = "", value: Value = None) -> Row:
    return {"topic": f"plant/{n % 3}", "n": n, "body": body, "value": value}


def batch_of(rows: Sequence[Row], first_offset: int = 0) -> Batch:
    """A batch of rows that are side by side in the queue."""
    next_offset = first_offset + len(rows)
    size_bytes = sum(len(str(value)) for each in rows for value in each.values())
    return Batch(first_offset, next_offset, range(first_offset, next_offset), rows, size_bytes)


def batches_of(count: int, rows_each: int, *, body: str = "") -> list[Batch]:
    """Batches one behind the other; a row's number is its offset."""
    return [
        batch_of([row(n, body=body) for n in range(first, first + rows_each)], first)
        for first in range(0, count * rows_each, rows_each)
    ]


async def write_window(sink: Sink, batches: Sequence[Batch]) -> int:
    """Write batches at once, started in order; how many of the first were confirmed.

    Raises:
        SinkUnavailableError: None was.
    """
    outcomes: dict[int, SinkUnavailableError | None] = {}

    async def write(index: int, batch: Batch) -> None:
        try:
            await sink.write(batch)
        except SinkUnavailableError as error:
            outcomes[index] = error
        else:
            outcomes[index] = None

    async with trio.open_nursery() as nursery:
        for index, batch in enumerate(batches):
            nursery.start_soon(write, index, batch)
            # So that this one has begun before the next one does.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
    confirmed = 0
    while confirmed < len(batches) and outcomes[confirmed] is None:
        confirmed += 1
    if not confirmed and (error := outcomes[0]) is not None:
        raise error
    return confirmed


async def bring(sink: Sink, batches: Sequence[Batch]) -> None:
    """Write all of them as a bridge does: after an outage it checks, asks for the position, and goes on from there."""
    done = 0
    is_known = False
    while done < len(batches):
        try:
            if not is_known:
                await sink.check()
                if sink.keeps_position:
                    position = await sink.position() or 0
                    done = sum(batch.next_offset <= position for batch in batches)
                is_known = True
            window = batches[done : done + sink.max_in_flight]
            confirmed = await write_window(sink, window) if window else 0
            done += confirmed
            is_known = confirmed == len(window)
        except SinkUnavailableError:
            is_known = False
            await trio.sleep(0.02)


async def numbers(stage: Stage) -> list[int]:
    found = [each["n"] for each in await stage.rows()]
    assert all(isinstance(n, int) for n in found)
    return found  # type: ignore[return-value]


def assert_in_order(found: Sequence[int], count: int, *, may_repeat: bool) -> None:
    """All numbers are there, in order: repeating goes back to somewhere and on from there, leaving none out."""
    assert set(found) == set(range(count))
    if not may_repeat:
        assert found == list(range(count))
    assert all(later <= earlier + 1 for earlier, later in pairwise(found)), found
    assert found[0] == 0
