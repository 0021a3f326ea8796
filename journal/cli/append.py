"""`journal append`: appends the lines of stdin as records of a shard, with a bound on the unacknowledged bytes."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.boundary import CommandError, describe
from command_line.output import progress, write_json, write_text
from command_line.quantities import parse_timeout_s
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect, explain
from shards.quantities import plural

if TYPE_CHECKING:
    from journal.client import AppendFuture, Client
    from shards.model import AckLevel, Appended

_READ_BYTES = 1 << 18
_BATCH_BYTES = 1 << 20
_MAX_LINE_BYTES = 16 << 20
_IN_FLIGHT_BYTES = 8 << 20
_STDIN = 0


def append(
    shard: str,
    /,
    *,
    ack: Literal["default", "memory", "durable"] = "default",
    batch: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))] = 1000,
    timeout: str = "",
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Append the lines of stdin to a shard, a record a line; print the count and the last offset acknowledged.

    Args:
        shard: Name of the shard, which must exist.
        ack: Level to wait for: durable (on disk), memory, or the default of the shard's mode.
        batch: Records to send as one batch; fewer when the input pauses or the batch gets large.
        timeout: Give up when nothing is acknowledged for this long, such as 5m. While the server refuses appends, for
            example because its disk is full, the reason is shown.
        json: Print the result as a JSON object.
    """
    import trio

    from shards.model import AckLevel

    done = trio.run(_append, server, shard, AckLevel[ack.upper()], batch, parse_timeout_s(timeout))
    if json:
        write_json({"shard": shard, "count": done.count, "last_offset": done.last_offset, "level": done.level_name})
    else:
        write_text(str(done))


@attrs.define(slots=True)
class _Acknowledged:
    """The acknowledgements so far; ``last_offset`` is -1 before the first."""

    count: int = 0
    last_offset: int = -1
    level: AckLevel | None = None

    def add(self, count: int, appended: Appended) -> None:
        """Add one acknowledgement. One without an offset repeats an earlier batch, whose offset is not known."""
        self.count += count
        self.level = appended.level
        if appended.base_offset >= 0:
            self.last_offset = appended.base_offset + count - 1

    @property
    def level_name(self) -> str | None:
        return None if self.level is None else self.level.name.lower()

    def __str__(self) -> str:
        if self.level is None:
            return "0 records acknowledged"
        return (
            f"{self.count} {plural(self.count, 'record')} acknowledged ({self.level_name}), last offset "
            f"{self.last_offset}"
        )


async def _append(server: str, shard: str, ack: AckLevel, batch_records: int, timeout_s: float) -> _Acknowledged:
    import trio

    from journal.cli.append_watch import AppendWatch

    done = _Acknowledged()
    failure: Exception | None = None
    async with connect(server) as client:
        watch = AppendWatch(client, shard, timeout_s)
        with progress("records acknowledged") as tick:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run, nursery.cancel_scope)
                try:
                    await _send_all(client, shard, ack, batch_records, done, tick, watch.sent)
                except Exception as error:  # noqa: BLE001 raised below: the nursery would wrap it in a group
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is None:
            failure = watch.failure
        if failure is not None:
            if done.count:
                raise CommandError(f"{describe(failure, explain)}; before that: {done}") from failure
            raise failure
    return done


async def _send_all(
    client: Client,
    shard: str,
    ack: AckLevel,
    batch_records: int,
    done: _Acknowledged,
    tick: Callable[[int], None],
    sent: Callable[[AppendFuture], None],
) -> None:
    """Send every line of stdin in order; ``done`` counts what is acknowledged, also if this raises an error."""
    import trio

    from journal.cli.line_splitter import LineBatcher, LineSplitter
    from shards.format.batch import encode_values

    splitter = LineSplitter(_MAX_LINE_BYTES)
    batcher = LineBatcher(batch_records, _BATCH_BYTES)
    in_flight: deque[tuple[int, int, AppendFuture]] = deque()
    in_flight_bytes = 0

    async def settle(limit_bytes: int) -> None:
        """Wait for acknowledgements, oldest first, until no more than ``limit_bytes`` are in flight."""
        nonlocal in_flight_bytes
        while in_flight and (in_flight_bytes > limit_bytes or in_flight[0][2].is_done):
            count, size_bytes, pending = in_flight.popleft()
            done.add(count, await pending.wait())
            in_flight_bytes -= size_bytes
            tick(done.count)

    data = b"-"
    while data:
        # Abandoning a read that waits for a terminal or a pipe loses nothing: the process will end.
        data = await trio.to_thread.run_sync(os.read, _STDIN, _READ_BYTES, abandon_on_cancel=True)
        batches = batcher.add(splitter.feed(data) if data else splitter.finish())
        if not data or not select.select([_STDIN], [], [], 0)[0]:
            # The input pauses or ends: send the collected lines now.
            batches += batcher.rest()
        for lines in batches:
            batch = encode_values(lines, timestamp_us=time.time_ns() // 1000)
            await settle(max(0, _IN_FLIGHT_BYTES - len(batch)))
            pending = client.append_batch_nowait(shard, batch, ack=ack)
            in_flight.append((len(lines), len(batch), pending))
            sent(pending)
            in_flight_bytes += len(batch)
    await settle(-1)
