"""The failure sequences can see: an engine that is broken on purpose is caught, each time by a bounded number of seeds.

The default run takes the breaks that the first sequences catch. `make crash` takes all and prints what caught which.
"""

from __future__ import annotations

import pytest

from journal.engine.write import producer_sequences
from tests.crash.sabotage import SABOTAGES, Sabotage, SabotageMisfitError, find

QUICK = (
    "acknowledges before the journal is synced",
    "publishes and acknowledges before the group is written",
    "forgets cursors in replay",
    "gives offsets out again that were lost with the memory",
    "does not check the sequence of a producer",
    "decides about shared files before their directories are synced",
    "does not count less when a shard is trimmed or deleted",
    "removes shared files that the Delta table still names",
    "takes replaced files for valid until a checkpoint",
)
SEEDS = 200


def test_there_are_many_ways_with_names_of_their_own() -> None:
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 50
    assert {sabotage.name for sabotage in SABOTAGES} >= set(QUICK)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.name)
def test_every_sabotage_replaces_something_that_the_engine_has(
    sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the long run applies them all: it had failed since a function was renamed, and no shorter run said so."""
    sabotage.apply(monkeypatch)


def test_a_sabotage_that_does_not_fit_the_engine_counted_as_caught() -> None:
    """A parameter was added to what it replaced, so it proved nothing but that a call failed."""

    def without_parameters(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(producer_sequences, "answer_to", lambda: None)

    with pytest.raises(SabotageMisfitError, match="an engine that has other parameters does not run"):
        find(Sabotage("has other parameters", without_parameters), range(20))


@pytest.mark.slow("sequences of crashes for each defect")
@pytest.mark.parametrize("sabotage", [each for each in SABOTAGES if each.name in QUICK], ids=lambda each: each.name)
def test_an_engine_that_is_broken_is_caught(sabotage: Sabotage) -> None:
    assert find(sabotage, range(20)) is not None, f"no sequence notices an engine that {sabotage.name}"


@pytest.mark.long
@pytest.mark.timeout(0)
def test_every_way_to_break_the_engine_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    missed = []
    for sabotage in SABOTAGES:
        caught = find(sabotage, range(SEEDS))
        how = "NOT CAUGHT" if caught is None else str(caught).partition("\n")[0][:120]
        with capsys.disabled():
            print(f"\n{sabotage.name:<75} {how}", end="", flush=True)
        if caught is None:
            missed.append(sabotage.name)
    assert not missed
