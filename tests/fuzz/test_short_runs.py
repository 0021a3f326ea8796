"""A short run of every target with inputs of a new seed, which a failure names: `FUZZ_SEED=... pytest ...`."""

from __future__ import annotations

import os
import random
import time
from typing import Final

import pytest

from tests.fuzz import findings
from tests.fuzz.mutation import input_number
from tests.fuzz.targets import NAMES, load

SEED: Final = int(os.environ.get("FUZZ_SEED", "0")) or random.randrange(1, 1 << 31)
MOST_INPUTS: Final = 3000
MOST_SLOW_INPUTS: Final = 500
MOST_S: Final = 1.0


@pytest.mark.few_cases(12, "a process for each target")
@pytest.mark.parametrize("name", NAMES)
def test_random_inputs_hold(name: str) -> None:
    """The number of inputs depends on how busy the machine is, each input on seed and number alone."""
    target = load(name)
    seeds = list(target.seeds())
    most_inputs = MOST_SLOW_INPUTS if target.is_slow else MOST_INPUTS
    ends_s = time.monotonic() + MOST_S
    for number in range(most_inputs):
        data = input_number(target, seeds, SEED, number)
        finding = findings.find(target, data)
        if finding is not None:
            pytest.fail(
                f"FUZZ_SEED={SEED}, input {number} of target {name}: {finding.words}\n"
                f"keep it as tests/fuzz/cases/{name}/...: bytes.fromhex({data.hex()!r})",
                pytrace=False,
            )
        if time.monotonic() > ends_s:
            break
