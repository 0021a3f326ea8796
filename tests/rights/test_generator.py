"""Random rules, names and requests over every way in: what is allowed is done, nothing else, and nothing is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from tests.rights.trial import SEEDS, try_many


@pytest.mark.slow("plays many examples")
@pytest.mark.smoke
def test_every_way_in_does_what_the_rules_allow_and_nothing_else(tmp_path: Path) -> None:
    def check(play: Callable[[int], None]) -> None:
        # A failing example is made shorter by the steps that it does not need, rather than by another seed.
        settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))(given(SEEDS)(play))()

    try_many(tmp_path, check)
