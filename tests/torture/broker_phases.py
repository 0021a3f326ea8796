"""What is done to a cluster of brokers under MQTT clients. Each phase is one round, which a ledger judges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from tests.mqtt.cluster.chaos import MEMORY_RULE, Chaos, make_crowd, read_retained
from tests.mqtt.cluster.processes import running_cluster
from tests.mqtt.cluster.relay import Relay
from tests.ports import free_port
from tests.torture.rounds import Result

BROKERS = 3
PUBLISHERS = 6
LONGEST_WAIT_S = 30.0
"""How long a message may be held up while brokers are frozen and the server is not; docs/mqtt.md promises less.

A subscriber that takes few messages at a time is behind by itself: see `Subscriber.longest_wait_s`.
"""


def brokers(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Brokers and the server are killed, connections and whole groups are cut."""
    cuts = ("connections cut", "connections cut", "groups cut", "subscribers cut")
    return _round(directory, rng, seconds, ("brokers killed", "brokers killed", "servers killed", *cuts))


def frozen_brokers(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Brokers and the server are frozen for a moment, or one broker for much longer than its lease, and continue."""
    if rng.random() < 0.5:
        return _round(directory, rng, seconds, ("brokers frozen", "brokers frozen", "servers frozen", "groups cut"))
    return _round(directory, rng, seconds, ("brokers frozen",), frozen_s=(30.0, 50.0))


def lost_answers(directory: Path, rng: random.Random, seconds: float) -> Result:
    """What the store answers to brokers is lost. No process dies: memory loses nothing, and nothing comes twice."""
    return _round(
        directory, rng, seconds, ("answers lost", "groups cut"), with_relays=True, with_memory=True, none_dies=True
    )


def mqtt_histories(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Topics are trimmed and change their mode, other programs append to them, messages expire.

    Sessions are taken over, and everything is replayed meanwhile.
    Clients with wills lose their connections, take leave, come back in time or too late. A broker, the server and
    connections die now and then.
    """
    operations = (
        "trims",
        "foreign records",
        "modes switched",
        "replays",
        "takeovers",
        "takeovers",
        "groups cut",
        "wills",
    )
    kinds = (*operations, *operations, "brokers killed", "servers killed", "brokers frozen")
    return _round(directory, rng, seconds, kinds, with_histories=True)


def _round(
    directory: Path,
    rng: random.Random,
    seconds: float,
    kinds: Sequence[str],
    *,
    frozen_s: tuple[float, float] = (0.1, 3.0),
    with_relays: bool = False,
    with_memory: bool = False,
    with_histories: bool = False,
    none_dies: bool = False,
) -> Result:
    result = Result()
    with ExitStack() as stack:
        store_port = free_port()
        relays = [stack.enter_context(Relay(store_port).running()) for _ in range(BROKERS if with_relays else 0)]
        cluster = stack.enter_context(
            running_cluster(
                directory,
                brokers=BROKERS,
                store_port=store_port,
                by_way_of=[relay.port for relay in relays],
                settings=MEMORY_RULE if with_memory else "",
            )
        )
        run = f"run-{rng.randrange(1 << 30)}"
        crowd = make_crowd(cluster.mqtt_ports, rng, run, publishers=PUBLISHERS)
        chaos = Chaos(
            cluster,
            crowd,
            rng,
            kinds,
            relays,
            with_memory=with_memory,
            with_histories=with_histories,
            frozen_s=frozen_s,
        )
        trio.run(chaos.run, seconds)
        ledger = crowd.ledger
        if count := ledger.unacknowledged():
            result.broken.append(f"{count} messages were never acknowledged")
        result.broken += ledger.problems()
        if none_dies:
            result.broken += ledger.repetitions()
        if frozen_s[0] >= LONGEST_WAIT_S and ledger.longest_wait()[0] > LONGEST_WAIT_S:
            result.broken.append("a message was under way for {:.0f} s: {}".format(*ledger.longest_wait()))
        for port in cluster.mqtt_ports:
            result.broken += ledger.retained_problems(dict(trio.run(read_retained, port, run)))
        trio.run(chaos.replay_at, rng.choice(cluster.mqtt_ports))
        result.broken += chaos.broken
        result.counts.update(chaos.counts)
    return result
