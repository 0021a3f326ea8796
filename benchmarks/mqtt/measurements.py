"""The measurements of each contender: the same load for the product and for every peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import attrs

from benchmarks import load
from benchmarks.load import Timing
from benchmarks.mqtt import drain, idle, latency, packets, publishing
from benchmarks.mqtt.connection import Connection, forget_session
from benchmarks.mqtt.nats_mqtt import NatsMqtt
from benchmarks.mqtt.ours import OurBrokers
from benchmarks.mqtt.rows import CONNECTIONS, MOSQUITTO, NATS, OURS, PAYLOAD_BYTES, PROCESSES, SEVERAL
from benchmarks.peers.mosquitto import Mosquitto
from benchmarks.processes import Server
from benchmarks.runs import Measurement
from benchmarks.stage import Stage

WINDOW = 1000
PER_CHUNK = 250
AWAY = "bench-away"

Progress = Callable[[int, int], None]


Address = tuple[str, int]


@attrs.frozen(slots=True)
class Contender:
    """One kind of broker.

    Attributes:
        key: First part of its rows' keys.
        one: Starts a broker; returns the address for publishes, and the address of a session that gets them.
        across: Starts brokers; returns the address for publishes and another one for the subscriber.
        fresh: Starts a broker without earlier load.
    """

    key: str
    one: Callable[[], tuple[Address, Address]]
    across: Callable[[], tuple[Address, Address]]
    fresh: Callable[[], Server]


def measurements(stage: Stage, *, idle_connections: int, queued: int, progress: Progress) -> list[Measurement]:
    """All measurements of this package, each of the product right after its peers.

    Args:
        idle_connections: Number of idle connections.
        queued: Number of messages for the session that was away.
        progress: Called with the idle connections that are open and wanted.
    """
    found: list[Measurement] = []
    contenders = [_mosquitto(stage), _nats(stage), _ours(stage)]
    found += [_publish(each.key, each.one) for each in contenders]
    found.append(_publish(SEVERAL, lambda: _several(stage)))
    found += [_across(each) for each in contenders]
    found += [_drain(each, queued) for each in contenders]
    found += [_idle(each, idle_connections, progress) for each in contenders]
    return found


def _publish(first: str, start: Callable[[], tuple[Address, Address]]) -> Measurement:
    key = f"{first}.publish"

    def run(timing: Timing) -> Mapping[str, float]:
        publish_to, away_at = start()
        # A session must want the messages, or a broker may drop them as soon as it has acknowledged them.
        with Connection(away_at, AWAY, clean_session=False) as away:
            away.subscribe("bench/publish/#")
            away.disconnect()
        with ExitStack() as stack:
            lanes = []
            for number in range(CONNECTIONS):
                connection = stack.enter_context(Connection(publish_to, f"bench-publisher-{number}"))
                ring = packets.publish_ring(
                    f"bench/publish/{number}", b"x" * PAYLOAD_BYTES, window=WINDOW, per_chunk=PER_CHUNK
                )
                lanes.append(publishing.Lane(connection.socket, ring, WINDOW))
            rate = publishing.publish_rate(lanes, timing)
        forget_session(away_at, AWAY)
        return {key: rate}

    return Measurement((key,), run)


def _across(contender: Contender) -> Measurement:
    keys = (f"{contender.key}.across-p50", f"{contender.key}.across-p99")

    def run(timing: Timing) -> Mapping[str, float]:
        found = latency.latencies_us(*contender.across(), timing)
        return {keys[0]: load.percentile(found, 0.5), keys[1]: load.percentile(found, 0.99)}

    return Measurement(keys, run)


def _drain(contender: Contender, queued: int) -> Measurement:
    key = f"{contender.key}.drain"
    return Measurement((key,), lambda _timing: {key: drain.drain_rate(*contender.one(), queued)})


def _idle(contender: Contender, connections: int, progress: Progress) -> Measurement:
    keys = (f"{contender.key}.idle", f"{contender.key}.idle-each")

    def run(_timing: Timing) -> Mapping[str, float]:
        idle.raise_file_limit()
        memory = idle.idle_memory(contender.fresh(), connections, progress)
        return {
            keys[0]: memory.after_bytes / 1e6,
            keys[1]: (memory.after_bytes - memory.before_bytes) / connections,
        }

    return Measurement(keys, run, repeated=False)


def _mosquitto(stage: Stage) -> Contender:
    def start(name: str, bridge_to: Address | None = None) -> Address:
        return running(name, bridge_to).server.address

    def running(name: str, bridge_to: Address | None = None) -> Mosquitto:
        return stage.once(name, lambda: Mosquitto(stage.directory / name, bridge_to=bridge_to), Mosquitto.close)

    def one() -> tuple[Address, Address]:
        address = start("mosquitto")
        return address, address

    def across() -> tuple[Address, Address]:
        reached = start("mosquitto-reached")
        return start("mosquitto-bridged", reached), reached

    return Contender(MOSQUITTO, one, across, lambda: running("mosquitto-idle").server)


def _nats(stage: Stage) -> Contender:
    def running(name: str, nodes: int = 1) -> list[Server]:
        return stage.once(name, lambda: NatsMqtt(stage.directory / name, nodes=nodes), NatsMqtt.close).servers

    def one() -> tuple[Address, Address]:
        [server] = running("nats-mqtt")
        return server.address, server.address

    def across() -> tuple[Address, Address]:
        first, *_, last = running("nats-mqtt-cluster", nodes=3)
        return first.address, last.address

    return Contender(NATS, one, across, lambda: running("nats-mqtt-idle")[0])


def _ours(stage: Stage) -> Contender:
    def brokers(name: str) -> list[Server]:
        return stage.once(name, lambda: OurBrokers(stage.directory / name, count=2), OurBrokers.close).brokers

    def two() -> tuple[Address, Address]:
        first, second = brokers("mqtt")
        return first.address, second.address

    return Contender(OURS, two, two, lambda: brokers("mqtt-idle")[0])


def _several(stage: Stage) -> tuple[Address, Address]:
    """One broker of several processes: the kernel passes connections to any of them."""
    name = "mqtt-processes"
    [broker] = stage.once(
        name, lambda: OurBrokers(stage.directory / name, count=1, processes_each=PROCESSES), OurBrokers.close
    ).brokers
    return broker.address, broker.address
