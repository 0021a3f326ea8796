"""A damage is reported with the file that has the records, below the server's data directory."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from journal.cli.damage import _place
from journal.client import Client
from shards.model import SegmentInfo, SegmentKind, ShardInfo
from tests.protocol.samples import INFO

SHARED = SegmentInfo(SegmentKind.PARQUET, 0, 10, 500, 1, True, file="date=2026-11-22/51e5000000000007.parquet")
LOG = SegmentInfo(SegmentKind.LOG, 20, 30, 500, 1, False)


class Described:
    """A client of a server that has one shard."""

    async def describe_shard(self, name: str) -> ShardInfo:
        del name
        return attrs.evolve(INFO, segments=(SHARED, LOG))


@pytest.mark.parametrize(
    ("offset", "path"),
    [
        (3, "sealed/date=2026-11-22/51e5000000000007.parquet"),
        (29, "log/07/0000000000000007-00000000000000000020.log"),
    ],
)
async def test_the_place_of_an_offset_is_its_file(offset: int, path: str) -> None:
    place = await _place(cast("Client", Described()), "plant/a", offset)
    assert place == f", in {path} of the server's data directory"
