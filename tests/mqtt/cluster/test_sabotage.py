"""Defects that were mended are put back into brokers, and the ledger of their clients names each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
import trio

from tests.mqtt.cluster.chaos import Chaos, make_crowd
from tests.mqtt.cluster.processes import BROKER, NEEDS_CLUSTER, running_cluster
from tests.mqtt.cluster.relay import Relay
from tests.mqtt.cluster.sabotaged_broker import SABOTAGES
from tests.ports import free_port

BROKERS = 3
PUBLISHERS = 6
SECONDS = 10.0
MOST_ROUNDS = 5


@attrs.frozen
class Defect:
    """What to do to the cluster, and a part of what the ledger says then."""

    kinds: Sequence[str]
    sign: str


CUTS = ("connections cut", "connections cut", "groups cut")
LOST = ("answers lost",)

DEFECTS = {
    "miss-retained": Defect(CUTS, "was retained when it subscribed"),
    "run-ahead": Defect(CUTS, "acknowledged messages did not come"),
    "claim-nothing": Defect(("groups cut",), "came more than once"),
    "stop-at-foreign": Defect(("foreign records",), "acknowledged messages did not come"),
    "believe-dup": Defect(("connections cut",), "came more than once"),
    "forget-retained": Defect(("subscribers cut",), "was retained when it subscribed"),
    "delay-twice": Defect(LOST, "delayed message"),
}


def problems_of(directory: Path, kinds: Sequence[str], seed: int, program: Sequence[str] = BROKER) -> list[str]:
    """What the ledger says after one round in which no process dies."""
    rng = random.Random(seed)
    store_port = free_port()
    with ExitStack() as stack:
        relays = [stack.enter_context(Relay(store_port).running()) for _ in range(BROKERS if kinds == LOST else 0)]
        cluster = stack.enter_context(
            running_cluster(
                directory,
                brokers=BROKERS,
                store_port=store_port,
                by_way_of=[relay.port for relay in relays],
                program=program,
            )
        )
        crowd = make_crowd(cluster.mqtt_ports, rng, f"sabotage-{seed}", publishers=PUBLISHERS)
        trio.run(Chaos(cluster, crowd, rng, kinds, relays).run, SECONDS)
    return crowd.ledger.problems() + crowd.ledger.repetitions()


def test_each_defect_has_its_sign() -> None:
    assert set(DEFECTS) == set(SABOTAGES)


@NEEDS_CLUSTER
@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_that_is_put_back_is_named(defect: str, tmp_path: Path) -> None:
    found: list[str] = []
    for seed in range(MOST_ROUNDS):
        (directory := tmp_path / str(seed)).mkdir()
        program = ("tests.mqtt.cluster.sabotaged_broker", defect)
        found = problems_of(directory, DEFECTS[defect].kinds, seed, program)
        if any(DEFECTS[defect].sign in problem for problem in found):
            return
    pytest.fail(f"after {MOST_ROUNDS} rounds the ledger says {found}")


@NEEDS_CLUSTER
@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kinds", dict.fromkeys(tuple(each.kinds) for each in DEFECTS.values()), ids="-".join)
def test_nothing_is_named_without_a_defect(kinds: tuple[str, ...], tmp_path: Path) -> None:
    for seed in range(MOST_ROUNDS):
        (directory := tmp_path / str(seed)).mkdir()
        assert problems_of(directory, kinds, seed) == []
