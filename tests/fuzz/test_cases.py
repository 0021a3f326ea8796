"""Inputs that broke an invariant once, and the good inputs that every target begins with, each within its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import findings
from tests.fuzz.target import run_measured
from tests.fuzz.targets import NAMES, load

CASES = sorted(path for path in findings.CASES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", CASES, ids=[f"{path.parent.name}-{path.name}" for path in CASES])
def test_a_case_that_was_found_once_holds(path: Path) -> None:
    run_measured(load(path.parent.name), path.read_bytes())


@pytest.mark.slow("decodes all inputs")
@pytest.mark.parametrize("name", NAMES)
def test_the_good_inputs_hold_and_a_repair_leaves_them_good(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    assert seeds
    assert all(len(data) <= target.max_input_bytes for data in seeds)
    for data in seeds:
        run_measured(target, data)
        target.run(target.repair(data))


def test_every_case_belongs_to_a_target() -> None:
    assert {path.parent.name for path in CASES} <= set(NAMES)
