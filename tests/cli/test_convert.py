"""`journal shard convert` and `roll`: what they say of a shard to which others append meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from journal.cli.convert import convert_command, outcome_for_people
from journal.engine.parquet.converter import WorkerConverter
from shards.format.batch import encode_values
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from tests.server.serving import FILE, serving


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


@pytest.mark.slow("starts the program several times")
async def test_shards_that_match_a_filter_share_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """There was a file, and a commit to the Delta table, for nearly each shard."""
    names = [f"p/{number:02}" for number in range(40)]
    plans: list[list[str]] = []
    gather = WorkerConverter.gather
    async with serving(tmp_path) as served:
        conversion = served.engine.parts.conversion

        async def gather_later(converter: WorkerConverter, plan: SharedPlan) -> GatheredFiles:
            plans.append(sorted({source.name for source in plan.sources}))
            # The others are asked for meanwhile, however fast this is.
            while len(conversion._requests) < len(names) and len(plans) == 1:
                await trio.sleep(0.01)
            return await gather(converter, plan)

        monkeypatch.setattr(WorkerConverter, "gather", gather_later)
        for name in names:
            await served.engine.create_shard(name, FILE)
            shard = served.engine.parts.table.by_name(name)
            await served.engine.append(shard, encode_values([b"v"], timestamp_us=served.engine.now_us()))
        await trio.to_thread.run_sync(partial(convert_command, filter="p/#", server=served.address))
    assert len(plans) <= 2
    assert sorted(name for plan in plans for name in plan) == names
    # The server in this process logs to the same place.
    told = sorted(line for line in capfd.readouterr().out.splitlines() if line.startswith("p/"))
    assert told == [f"{name}: sealed up to offset 1, 1 Parquet file" for name in names]
