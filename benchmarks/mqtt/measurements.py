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
from benchmarks.mqtt.rows import (
    AMQTT,
    CONNECTIONS,
    MOSQUITTO,
    NATS,
    NATS_SYNCED,
    OURS,
    PAYLOAD_BYTES,
    PROCESSES,
    SEVERAL,
)
from benchmarks.peers.amqtt import Amqtt
from benchmarks.peers.mosquitto import Mosquitto
from benchmarks.processes import Server
from benchmarks.runs import Measurement
from benchmarks.stage import Stage

WINDOW = 1000
# Of brokers that take some thousand publishes a second: all that are under way are waited for at the end of a run.
SMALL_WINDOW = 20
CHUNKS_OF_A_WINDOW = 4
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
    """

    key: str
    one: Callable[[], tuple[Address, Address]]
    across: Callable[[], tuple[Address, Address]]


def measurements(stage: Stage, *, idle_connections: int, queued: int, progress: Progress) -> list[Measurement]:
    """All measurements of this package, each of the product right after its peers.

    Args:
        idle_connections: Number of idle connections.
        queued: Number of messages for the session that was away.
        progress: Called with the idle connections that are open and wanted.
    """
    found: list[Measurement] = []
    contenders = [_mosquitto(stage), _nats(stage), _nats_synced(stage), _ours(stage)]
    slow = {NATS_SYNCED: SMALL_WINDOW}
    found.append(_publish(AMQTT, lambda: _twice(_amqtt(stage, "amqtt").address), SMALL_WINDOW))
    found += [_publish(each.key, each.one, slow.get(each.key, WINDOW)) for each in contenders]
    found.append(_publish(SEVERAL, lambda: _several(stage), WINDOW))
    found += [_across(each) for each in contenders]
    found += [_drain(each, queued) for each in contenders]
    idle_brokers: dict[str, Callable[[], Server]] = {
        MOSQUITTO: lambda: _mosquitto_server(stage, "mosquitto-idle"),
        NATS: lambda: _nats_servers(stage, "nats-mqtt-idle")[0],
        AMQTT: lambda: _amqtt(stage, "amqtt-idle"),
        OURS: lambda: _our_brokers(stage, "mqtt-idle")[0],
    }
    found += [_idle(key, start, idle_connections, progress) for key, start in idle_brokers.items()]
    return found


def _publish(first: str, start: Callable[[], tuple[Address, Address]], window: int) -> Measurement:
    key = f"{first}.publish"

    return Measurement((key,), lambda timing: {key: publishes_per_s(*start(), timing, window)})


def publishes_per_s(publish_to: Address, away_at: Address, timing: Timing, window: int = WINDOW) -> float:
    """Publish at QoS 1 to topics that a session has subscribed to which is away; acknowledged publishes a second.

    Args:
        publish_to: Broker that gets the publishes.
        away_at: Broker of the session.
        timing: Warm-up and measured time.
        window: Most unacknowledged publishes of each connection.
    """
    # A session must want the messages, or a broker may drop them as soon as it has acknowledged them.
    with Connection(away_at, AWAY, clean_session=False) as away:
        away.subscribe("bench/publish/#")
        away.disconnect()
    with ExitStack() as stack:
        rate = publishing.publish_rate(publishers(stack, publish_to, window), timing)
    forget_session(away_at, AWAY)
    return rate


def publishers(
    stack: ExitStack, publish_to: Address, window: int, *, total: int | None = None
) -> list[publishing.Lane]:
    """Connections that publish at QoS 1, each to a topic of its own; the stack closes them."""
    lanes = []
    for number in range(CONNECTIONS):
        connection = stack.enter_context(Connection(publish_to, f"bench-publisher-{number}"))
        ring = packets.publish_ring(
            f"bench/publish/{number}",
            b"x" * PAYLOAD_BYTES,
            window=window,
            per_chunk=window // CHUNKS_OF_A_WINDOW,
        )
        lanes.append(publishing.Lane(connection.socket, ring, window, total=total))
    return lanes


def _across(contender: Contender) -> Measurement:
    keys = (f"{contender.key}.across-p50", f"{contender.key}.across-p99")

    def run(timing: Timing) -> Mapping[str, float]:
        found = latency.latencies_us(*contender.across(), timing)
        return {keys[0]: load.percentile(found, 0.5), keys[1]: load.percentile(found, 0.99)}

    return Measurement(keys, run)


def _drain(contender: Contender, queued: int) -> Measurement:
    key = f"{contender.key}.drain"
    return Measurement((key,), lambda _timing: {key: drain.drain_rate(*contender.one(), queued)})


def _idle(first: str, start: Callable[[], Server], connections: int, progress: Progress) -> Measurement:
    keys = (f"{first}.idle", f"{first}.idle-each")

    def run(_timing: Timing) -> Mapping[str, float]:
        idle.raise_file_limit()
        memory = idle.idle_memory(start(), connections, progress)
        return {
            keys[0]: memory.after_bytes / 1e6,
            keys[1]: (memory.after_bytes - memory.before_bytes) / connections,
        }

    return Measurement(keys, run, repeated=False)


def _mosquitto(stage: Stage) -> Contender:
    def one() -> tuple[Address, Address]:
        return _twice(_mosquitto_server(stage, "mosquitto").address)

    def across() -> tuple[Address, Address]:
        reached = _mosquitto_server(stage, "mosquitto-reached").address
        return _mosquitto_server(stage, "mosquitto-bridged", reached).address, reached

    return Contender(MOSQUITTO, one, across)


def _mosquitto_server(stage: Stage, name: str, bridge_to: Address | None = None) -> Server:
    return stage.once(name, lambda: Mosquitto(stage.directory / name, bridge_to=bridge_to), Mosquitto.close).server


def _nats(stage: Stage) -> Contender:
    return _nats_contender(stage, NATS, "nats-mqtt", synced=False)


def _nats_synced(stage: Stage) -> Contender:
    return _nats_contender(stage, NATS_SYNCED, "nats-mqtt-synced", synced=True)


def _nats_contender(stage: Stage, key: str, name: str, *, synced: bool) -> Contender:
    def one() -> tuple[Address, Address]:
        [server] = _nats_servers(stage, name, synced=synced)
        return _twice(server.address)

    def across() -> tuple[Address, Address]:
        first, *_, last = _nats_servers(stage, f"{name}-cluster", nodes=3, synced=synced)
        return first.address, last.address

    return Contender(key, one, across)


def _nats_servers(stage: Stage, name: str, *, nodes: int = 1, synced: bool = False) -> list[Server]:
    def start() -> NatsMqtt:
        return NatsMqtt(stage.directory / name, nodes=nodes, synced=synced)

    return stage.once(name, start, NatsMqtt.close).servers


def _amqtt(stage: Stage, name: str) -> Server:
    return stage.once(name, lambda: Amqtt(stage.directory / name), Amqtt.close).server


def _ours(stage: Stage) -> Contender:
    def two() -> tuple[Address, Address]:
        first, second = _our_brokers(stage, "mqtt")
        return first.address, second.address

    return Contender(OURS, two, two)


def _our_brokers(stage: Stage, name: str) -> list[Server]:
    return stage.once(name, lambda: OurBrokers(stage.directory / name, count=2), OurBrokers.close).brokers


def _several(stage: Stage) -> tuple[Address, Address]:
    """One broker of several processes: the kernel passes connections to any of them."""
    name = "mqtt-processes"
    [broker] = stage.once(
        name, lambda: OurBrokers(stage.directory / name, count=1, processes_each=PROCESSES), OurBrokers.close
    ).brokers
    return _twice(broker.address)


def _twice(address: Address) -> tuple[Address, Address]:
    """One broker for publishes and for the session that gets them."""
    return address, address
