"""`journal-broker bench trace`: messages through a broker, the journal server and another broker, hop by hop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Final

import trio
from cyclopts import Parameter
from cyclopts.validators import Number

from broker_adapter.mqtt.cli.mqtt_times import delivery_times, publish_times
from broker_adapter.mqtt.cli.trace_client import VERSION, TraceClient, connected, parse_place
from command_line.app import JsonOption
from command_line.boundary import CommandError
from command_line.output import Table, progress, write_json, write_tables, write_text
from command_line.quantities import parse_duration_us, parse_size_bytes
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

if TYPE_CHECKING:
    from journal.trace.streams import Segment

_DEFAULT_BROKER: Final = "127.0.0.1:1883"
_IN_FLIGHT_LIMIT: Final = 1024
_PUBLISHED: Final = "publish sent"
_REQUESTED: Final = "append sent"
_REPLIED: Final = "reply sent"
_CONFIRMED: Final = "puback sent"
_PUSHED: Final = "push sent"
_PASSED_ON: Final = "message sent"


def bench_trace(
    *,
    publish_to: Annotated[str, Parameter(help="Broker of the publisher, HOST:PORT.")] = _DEFAULT_BROKER,
    subscribe_at: Annotated[
        str, Parameter(help="Broker of the subscriber, HOST:PORT; without it that of the publisher.")
    ] = "",
    journal: Annotated[str, Parameter(help="Journal server of the brokers' store, HOST:PORT.")] = "127.0.0.1:7420",
    topic: Annotated[str, Parameter(help="Topic; without it a new one below `bench/`.")] = "",
    user: Annotated[str, Parameter(help="User name of both clients.")] = "",
    password_file: Annotated[FilePath | None, Parameter(help="File whose first line is the password.")] = None,
    size: Annotated[str, Parameter(help="Size of a payload.")] = "100",
    duration: Annotated[str, Parameter(help="How long messages are sent at each rate.")] = "5s",
    highest_rate: Annotated[
        float, Parameter(validator=Number(gte=0), help="Messages a second to measure at parts of; 0: find it first.")
    ] = 0,
    ends_only: Annotated[
        bool, Parameter(negative="", help="Capture no packets: only the whole durations, without the hops.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure the hops of a message from publisher to subscriber, at parts of the highest rate.

    A client publishes with QoS 1, and another one subscribes. Brokers and journal server must be on this machine and
    take connections without TLS. The messages stay in the store until retention removes them. Capturing packets takes
    root or CAP_NET_RAW.
    """
    password = password_file.read_text().partition("\n")[0] if password_file else ""
    places = (publish_to, subscribe_at or publish_to)
    ports = (*(parse_place(place)[1] for place in places), parse_place(journal)[1])
    name = os.urandom(4).hex()
    try:
        options = Options.checked(parse_size_bytes(size), parse_duration_us(duration), highest_rate, ends_only)
        if not ends_only:
            check_capture()
    except (CaptureError, LoadError) as error:
        raise CommandError(str(error)) from error
    traced = trio.run(_trace, places, ports, topic or f"bench/{name}", (user, password), options)
    if json:
        write_json(as_json(traced, options))
        return
    for level in traced.levels:
        write_text(heading(level))
        write_tables([Table(COLUMNS, rows(level), NUMERIC)])


async def _trace(
    places: tuple[str, str], ports: tuple[int, ...], topic: str, identity: tuple[str, str], options: Options
) -> Trace:
    name = f"bench-{os.urandom(4).hex()}"
    async with (
        connected(places[0], f"{name}-publisher", *identity) as publisher,
        connected(places[1], f"{name}-subscriber", *identity) as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe(topic)
        route = _Route(publisher, subscriber, topic, ports)
        nursery.start_soon(publisher.write_output)
        nursery.start_soon(subscriber.write_output)
        nursery.start_soon(publisher.read_acknowledgements, route.acknowledged)
        nursery.start_soon(subscriber.read_messages, route.delivered)
        try:
            traced = await trace(route, options, progress)
        except (CaptureError, LoadError) as error:
            raise CommandError(str(error)) from error
        nursery.cancel_scope.cancel()
    return traced


class _Route:
    """From a publisher to a subscriber, over brokers; implements `journal.trace.Route`."""

    def __init__(self, publisher: TraceClient, subscriber: TraceClient, topic: str, ports: tuple[int, ...]) -> None:
        self.ports = frozenset(ports)
        self.in_flight_limit = min(_IN_FLIGHT_LIMIT, publisher.receive_maximum)
        self._journal_port = ports[-1]
        self._publisher = publisher
        self._subscriber = subscriber
        self._topic = topic
        self._run: Run | None = None

    @property
    def paths(self) -> Sequence[Path]:
        begin = (
            Hop("send", "this tool", SCHEDULED, _PUBLISHED),
            Hop("receive, append", "publisher's broker", _PUBLISHED, _REQUESTED),
        )
        return (
            Path(
                "acknowledgement",
                (
                    *begin,
                    Hop("append and commit", "server", _REQUESTED, _REPLIED),
                    Hop("acknowledge", "publisher's broker", _REPLIED, _CONFIRMED),
                    Hop("receive PUBACK", "this tool", _CONFIRMED, ACKNOWLEDGED),
                ),
            ),
            Path(
                "delivery",
                (
                    *begin,
                    Hop("append, commit, push", "server", _REQUESTED, _PUSHED),
                    Hop("pass on", "subscriber's broker", _PUSHED, _PASSED_ON),
                    Hop("receive the message", "this tool", _PASSED_ON, DELIVERED),
                ),
            ),
            Path("reply to push", (Hop("reply to push", "server", _REPLIED, _PUSHED),)),
        )

    def begin(self, run: Run) -> None:
        self._run = run

    def send(self, number: int) -> None:
        assert self._run is not None
        self._publisher.publish(number, self._topic, self._run.payload(number))

    def times(self, segments: list[Segment], run: Run) -> Mapping[str, Times]:
        published, confirmed = publish_times(segments, self._publisher.local_port, run.marker, VERSION)
        found = journal_times(segments, self._journal_port, run.marker)
        return {
            _PUBLISHED: published,
            _REQUESTED: found.requested,
            _REPLIED: found.replied,
            _CONFIRMED: confirmed,
            _PUSHED: found.delivered,
            _PASSED_ON: delivery_times(segments, self._subscriber.local_port, run.marker, VERSION),
        }

    def acknowledged(self, numbers: list[int]) -> None:
        if self._run is not None:
            self._run.note_acknowledged(numbers)

    def delivered(self, payload: bytes) -> None:
        if self._run is not None:
            self._run.note_delivered(payload)
