"""Sequences of failures over a simulated machine, one seed after another; see `tests.crash.sequences`."""

from __future__ import annotations

import importlib.util
import random
import time
from pathlib import Path

from tests.torture.rounds import Result


def sequences(directory: Path, rng: random.Random, seconds: float) -> Result:
    """As many sequences as fit; the first that breaks a promise ends it."""
    del directory
    if importlib.util.find_spec("tests.crash.sequences") is None:
        return Result(skipped="there is no tests.crash.sequences")
    from tests.crash.sequences import SequenceFailedError, run_sequence

    result = Result()
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and not result.broken:
        seed = rng.randrange(1 << 31)
        try:
            report = run_sequence(seed)
        except SequenceFailedError as error:
            result.broken.append(f"tests.crash.sequences.run_sequence({seed}): {error}")
        else:
            result.counts["simulated appends"] += report.appends
            result.counts["simulated failures"] += report.failures
        result.counts["simulated sequences"] += 1
    return result
