"""The measurements of cache queues and bridges: putting in, directly and by MQTT, and draining to each kind of sink."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

import trio

from benchmarks import processes
from benchmarks.load import Timing
from benchmarks.mqtt import packets, publishing
from benchmarks.mqtt.connection import Connection
from benchmarks.mqtt.ours import OurBrokers
from benchmarks.queues.rows import (
    BRIDGED,
    CONNECTIONS,
    EXPORT,
    EXPORT_COPY,
    PUT,
    PUT_CPU,
    PUT_MQTT,
    PUT_MQTT_PLAIN,
    SINKS,
    VALUE_BYTES,
    bridged_key,
    drain_keys,
)
from benchmarks.runs import Measurement, UnavailableError
from benchmarks.stage import Stage

WINDOW: Final = 1000
PER_CHUNK: Final = 250
EXPORT_ROUNDS: Final = 2
# Nothing listens on this loopback port, so the sink is out and the queue grows.
BRIDGES: Final = """
[[bridge]]
name = "bench-out"
topics = ["bench/bridged/#"]
max_bytes = "64 GiB"

[bridge.sink]
type = "http"
url = "http://127.0.0.1:{port}/"
"""
_numbers = itertools.count()


def measurements(stage: Stage, *, waiting: int) -> list[Measurement]:
    """All measurements of this package.

    Args:
        waiting: Records that wait when a sink is available again.
    """
    return [
        _put(stage),
        *(_publish(stage, key, topic) for key, topic in ((PUT_MQTT_PLAIN, "bench/plain"), (PUT_MQTT, "bench/bridged"))),
        *(_drain(stage, kind, waiting) for kind in SINKS),
        *(_bridged(stage, kind, waiting) for kind in BRIDGED),
        _export(stage, waiting),
    ]


def _put(stage: Stage) -> Measurement:
    def run(timing: Timing) -> Mapping[str, float]:
        from benchmarks.queues import putting

        async def main() -> tuple[float, float]:
            # The client would try for ever to reach a server that has died.
            with trio.fail_after(timing.bound_s):
                return await putting.put_rate(_journal(stage), f"bench-put-{next(_numbers)}", timing)

        rate, cpu_us = trio.run(main)
        return {PUT: rate, PUT_CPU: cpu_us}

    return Measurement((PUT, PUT_CPU), run)


def _publish(stage: Stage, key: str, topic: str) -> Measurement:
    def start() -> OurBrokers:
        bridges = BRIDGES.format(port=processes.free_port())
        return OurBrokers(stage.directory / "bridged", count=1, more_config=bridges)

    def run(timing: Timing) -> Mapping[str, float]:
        [broker] = stage.once("bridged", start, OurBrokers.close).brokers
        with ExitStack() as stack:
            lanes = []
            for number in range(CONNECTIONS):
                connection = stack.enter_context(Connection(broker.address, f"bench-bridged-{number}"))
                payload = b"x" * VALUE_BYTES
                ring = packets.publish_ring(f"{topic}/{number}", payload, window=WINDOW, per_chunk=PER_CHUNK)
                lanes.append(publishing.Lane(connection.socket, ring, WINDOW))
            return {key: publishing.publish_rate(lanes, timing)}

    return Measurement((key,), run)


def _drain(stage: Stage, kind: str, waiting: int) -> Measurement:
    keys = drain_keys(kind)

    def run(_timing: Timing) -> Mapping[str, float]:
        try:
            from benchmarks.queues import destinations, draining

            with destinations.DESTINATIONS[kind](stage, waiting) as sink:
                queue = f"bench-{kind}-{next(_numbers)}"
                drained = draining.drain_rate(_journal(stage), queue, sink, waiting, stage.directory / "bridges")
        except (ImportError, processes.NotInstalledError) as error:
            raise UnavailableError(str(error)) from error
        return {keys[0]: drained.records_per_s, keys[1]: drained.cpu_us}

    return Measurement(keys, run)


def _bridged(stage: Stage, kind: str, count: int) -> Measurement:
    key = bridged_key(kind)

    def run(_timing: Timing) -> Mapping[str, float]:
        try:
            from benchmarks.queues import bridging, destinations

            with destinations.DESTINATIONS[kind](stage, count) as sink:
                return {key: bridging.bridged_rate(sink, count, stage.directory / f"bridged-{next(_numbers)}")}
        except (ImportError, processes.NotInstalledError) as error:
            raise UnavailableError(str(error)) from error

    return Measurement((key,), run)


def _export(stage: Stage, records: int) -> Measurement:
    def run(_timing: Timing) -> Mapping[str, float]:
        try:
            from benchmarks.queues import destinations, exporting

            server = destinations.postgresql_server(stage)
            return exporting.export_rates(server, records, EXPORT_ROUNDS, stage.directory / "export")
        except (ImportError, processes.NotInstalledError) as error:
            raise UnavailableError(str(error)) from error

    return Measurement((EXPORT, EXPORT_COPY), run, repeated=False)


def _journal(stage: Stage) -> tuple[str, int]:
    return stage.journal().address
