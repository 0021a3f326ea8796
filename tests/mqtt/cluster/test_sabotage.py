"""Defects that were mended are put back into brokers, and the ledger of their clients names each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from tests.mqtt.cluster.chaos import Chaos, make_crowd
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, running_cluster
from tests.mqtt.cluster.sabotaged_broker import SABOTAGES

PUBLISHERS = 6
SECONDS = 10.0
MOST_ROUNDS = 5


@attrs.frozen
class Defect:
    """What to do to the cluster, and a part of what the ledger says then."""

    kinds: Sequence[str]
    sign: str


CUTS = ("connections cut", "connections cut", "groups cut")

DEFECTS = {
    "miss-retained": Defect(CUTS, "was retained when it subscribed"),
    "run-ahead": Defect(CUTS, "acknowledged messages did not come"),
    "claim-nothing": Defect(("groups cut",), "came more than once"),
    "stop-at-foreign": Defect(("foreign records",), "acknowledged messages did not come"),
    "believe-dup": Defect(("connections cut",), "came more than once"),
}


def problems_of(directory: Path, defect: str, seed: int) -> list[str]:
    """What the ledger says after one round with brokers that have the defect."""
    rng = random.Random(seed)
    kinds = DEFECTS[defect].kinds
    with running_cluster(directory, program=("tests.mqtt.cluster.sabotaged_broker", defect)) as cluster:
        crowd = make_crowd(cluster.mqtt_ports, rng, f"sabotage-{seed}", publishers=PUBLISHERS)
        trio.run(Chaos(cluster, crowd, rng, kinds).run, SECONDS)
    return crowd.ledger.problems()


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
        found = problems_of(directory, defect, seed)
        if any(DEFECTS[defect].sign in problem for problem in found):
            return
    pytest.fail(f"after {MOST_ROUNDS} rounds the ledger says {found}")
