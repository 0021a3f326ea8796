"""What the phase with exports finds beside the checker of deliveries."""

from __future__ import annotations

import pytest

from tests.torture.export_phase import wrong_directories
from tests.torture.shard_changes import SHARDS


@pytest.mark.parametrize(("directory", "is_right"), [("~007", True), ("007", False), ("7", False), (None, False)])
def test_a_topic_that_comes_back_as_a_number_is_found(directory: str | None, is_right: bool) -> None:
    found = {"plant/a": "plant/a", "plant/ü": "plant/ü", "007": directory}
    assert (wrong_directories(found) == []) is is_right


def test_one_of_the_shards_looks_like_a_number() -> None:
    assert any(shard.isdecimal() for shard in SHARDS)
