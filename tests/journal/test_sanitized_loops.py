"""The compiled loops under the sanitizers of addresses and of undefined behaviour: a few examples of each property."""

from __future__ import annotations

from pathlib import Path

import pytest

from shards import compiled
from tests import sanitized_loops


@pytest.mark.slow("builds the loops with sanitizers, under which everything takes several times as long")
@pytest.mark.timeout(600)
@pytest.mark.skipif(compiled.append_loop_type is None, reason=f"loops are {compiled.DESCRIPTION}")
@pytest.mark.skipif(not sanitized_loops.libraries(), reason="there is no gcc with its sanitizers")
def test_no_property_touches_memory_that_is_not_its_own(tmp_path: Path) -> None:
    done = sanitized_loops.run(tmp_path, 20)
    assert done.returncode == 0
