"""`journal bench trace`: one append after the other through a running server, hop by hop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import trio
from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import Table, progress, write_json, write_tables, write_text
from command_line.quantities import parse_duration_us, parse_size_bytes
from journal.cli.connection import DEFAULT_SERVER, ServerOption, connect
from journal.trace import (
    ACKNOWLEDGED,
    DELIVERED,
    SCHEDULED,
    CaptureError,
    Hop,
    LoadError,
    Options,
    Path,
    Run,
    Trace,
    check_capture,
    trace,
)
from journal.trace.journal_frames import Times, journal_times
from journal.trace.report import COLUMNS, NUMERIC, as_json, heading, rows
from shards.model import Mode, ShardConfig

if TYPE_CHECKING:
    from journal.client import AppendFuture, Client, Subscription
    from journal.trace.streams import Segment

_IN_FLIGHT_LIMIT: Final = 1024
_CLEAN_UP_S: Final = 10
_REQUESTED: Final = "append sent"
_REPLIED: Final = "reply sent"
_PUSHED: Final = "push sent"


def bench_trace(
    *,
    size: Annotated[str, Parameter(help="Size of a payload.")] = "100",
    mode: Annotated[Literal["memory", "file"], Parameter(help="Mode of the shard.")] = "file",
    duration: Annotated[str, Parameter(help="How long messages are sent at each rate.")] = "5s",
    highest_rate: Annotated[
        float, Parameter(validator=Number(gte=0), help="Messages a second to measure at parts of; 0: find it first.")
    ] = 0,
    ends_only: Annotated[
        bool, Parameter(negative="", help="Capture no packets: only the whole durations, without the hops.")
    ] = False,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Measure the hops of a message from append to delivery, at parts of the highest rate.

    A client appends to a shard that is created for it and deleted afterwards, and another one subscribes to it. The
    server must be on this machine. Capturing packets takes root or CAP_NET_RAW.
    """
    from journal.client.address import Address

    address = Address.parse_all(server)[0]
    if address.kind != "tcp" and not ends_only:
        raise UsageError(
            f"hops are found in plain TCP only, not over {address.kind}; --ends-only measures without them"
        )
    try:
        options = Options.checked(parse_size_bytes(size), parse_duration_us(duration), highest_rate, ends_only)
        if not ends_only:
            check_capture()
    except (CaptureError, LoadError) as error:
        raise CommandError(str(error)) from error
    traced = trio.run(_trace, server, address.port, options, Mode(mode))
    if json:
        write_json({"mode": mode, **as_json(traced, options)})
        return
    for level in traced.levels:
        write_text(heading(level))
        write_tables([Table(COLUMNS, rows(level), NUMERIC)])


async def _trace(server: str, port: int, options: Options, mode: Mode) -> Trace:
    shard = f"bench/{os.urandom(4).hex()}"
    async with connect(server) as writer, connect(server) as reader, trio.open_nursery() as nursery:
        await writer.create_shard(shard, ShardConfig(mode=mode))
        try:
            async with reader.subscribe(shard=shard) as subscription:
                route = _Route(writer, shard, port)
                nursery.start_soon(route.read_acknowledgements)
                nursery.start_soon(route.read_deliveries, subscription)
                try:
                    traced = await trace(route, options, progress)
                except (CaptureError, LoadError) as error:
                    raise CommandError(str(error)) from error
                nursery.cancel_scope.cancel()
        finally:
            # Also after Ctrl-C: the shard of the measurement is deleted.
            with trio.move_on_after(_CLEAN_UP_S, shield=True):
                await writer.delete_shard(shard)
    return traced


class _Route:
    """From a client that appends to one that subscribes; implements `journal.trace.Route`."""

    in_flight_limit = _IN_FLIGHT_LIMIT

    def __init__(self, writer: Client, shard: str, port: int) -> None:
        self.ports = (port,)
        self._port = port
        self._writer = writer
        self._shard = shard
        self._run: Run | None = None
        self._sent: deque[tuple[int, AppendFuture]] = deque()
        self._was_sent = trio.Event()

    @property
    def paths(self) -> Sequence[Path]:
        send = Hop("send", "this tool", SCHEDULED, _REQUESTED)
        return (
            Path(
                "acknowledgement",
                (
                    send,
                    Hop("append and commit", "server", _REQUESTED, _REPLIED),
                    Hop("receive the reply", "this tool", _REPLIED, ACKNOWLEDGED),
                ),
            ),
            Path(
                "delivery",
                (
                    send,
                    Hop("append, commit, push", "server", _REQUESTED, _PUSHED),
                    Hop("receive the push", "this tool", _PUSHED, DELIVERED),
                ),
            ),
            Path("reply to push", (Hop("reply to push", "server", _REPLIED, _PUSHED),)),
        )

    def begin(self, run: Run) -> None:
        self._run = run

    def send(self, number: int) -> None:
        assert self._run is not None
        # The client's window has room for all messages of a level: `Options.most_messages`.
        pending = self._writer.append_nowait(self._shard, [self._run.payload(number)])
        self._sent.append((number, pending))
        self._was_sent.set()

    def times(self, segments: list[Segment], run: Run) -> Mapping[str, Times]:
        found = journal_times(segments, self._port, run.marker)
        return {_REQUESTED: found.requested, _REPLIED: found.replied, _PUSHED: found.delivered}

    async def read_acknowledgements(self) -> None:
        sent = self._sent
        while True:
            while not sent:
                self._was_sent = trio.Event()
                await self._was_sent.wait()
            await sent[0][1].wait()
            # Acknowledgements come in the order of the appends, many at once.
            numbers = []
            while sent and sent[0][1].is_done:
                number, pending = sent.popleft()
                pending.result_nowait()
                numbers.append(number)
            if self._run is not None:
                self._run.note_acknowledged(numbers)

    async def read_deliveries(self, subscription: Subscription) -> None:
        async for delivery in subscription:
            if self._run is not None:
                self._run.note_delivered(delivery.batches)
