"""`journal shard convert` and `roll`: what they say of a shard to which others append meanwhile."""

from __future__ import annotations

import pytest

from journal.cli.convert import outcome_for_people
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo


def segment(kind: SegmentKind, base_offset: int, next_offset: int, *, closed: bool = True) -> SegmentInfo:
    return SegmentInfo(kind, base_offset, next_offset, 1, 0, closed)


PARQUET = segment(SegmentKind.PARQUET, 0, 10)
CLOSED = segment(SegmentKind.LOG, 10, 25)
ACTIVE = segment(SegmentKind.LOG, 25, 40, closed=False)


@pytest.mark.parametrize(
    ("segments", "converts", "expected"),
    [
        ((PARQUET, ACTIVE), True, "sealed up to offset 10, 1 Parquet file"),
        ((PARQUET, CLOSED, ACTIVE), True, "sealed up to offset 10, 1 Parquet file"),
        ((PARQUET, CLOSED, ACTIVE), False, "closed up to offset 25"),
        (
            (segment(SegmentKind.MEMORY, 0, 7), ACTIVE),
            True,
            "nothing to convert; closed up to offset 7",
        ),
        ((), True, "nothing to convert; closed up to offset 0"),
    ],
)
def test_what_was_appended_since_is_not_called_sealed(
    segments: tuple[SegmentInfo, ...], converts: bool, expected: str
) -> None:
    """It named the end of the shard, where records were that no Parquet file had."""
    info = ShardInfo("s", 1, ShardConfig(), 0, 0, 40, 1, 1, segments)
    assert outcome_for_people(info, converts=converts) == f"s: {expected}"
