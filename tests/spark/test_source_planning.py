"""Partitions hold every wanted offset once, in order, whatever there is to cut; conditions mean what they say."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThanOrEqual, Not, StringStartsWith

from shards.model import SegmentKind
from shards.parquet.schema import TIME
from spark_export.conditions import Condition, from_filters
from spark_export.errors import DataLossError
from spark_export.options import parse_options
from spark_export.planning import LARGEST_BYTES, ShardRange, batch_ranges, plan_partitions
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot, Store

KINDS = st.sampled_from(list(SegmentKind))


@st.composite
def shard_ranges(draw: st.DrawFn, number: int) -> ShardRange:
    """A shard of a few segments, perhaps with lost offsets between them, and a range of it."""
    offset = draw(st.integers(0, 50))
    start = offset
    segments = []
    for _ in range(draw(st.integers(0, 4))):
        offset += draw(st.sampled_from([0, 0, 7]))
        count = draw(st.integers(1, 100))
        size = draw(st.sampled_from([0, 1_000, 3 << 20, 200 << 20]))
        segments.append(SegmentRange(draw(KINDS), offset, offset + count, size))
        offset += count
    first = draw(st.integers(start, offset))
    shard = ShardSnapshot(f"s{number}", number, start, offset, tuple(segments))
    return ShardRange(shard, first, draw(st.integers(first, offset)))


RANGES = st.integers(0, 6).flatmap(lambda count: st.tuples(*(shard_ranges(number) for number in range(count))))


def held(ranges: tuple[ShardRange, ...]) -> list[tuple[str, int]]:
    """Every offset that is wanted and is in a segment."""
    return [
        (one.shard.name, offset)
        for one in ranges
        for segment in one.shard.segments
        for offset in range(segment.base_offset, segment.next_offset)
        if one.first_offset <= offset < one.next_offset
    ]


@given(ranges=RANGES, min_partitions=st.integers(0, 12))
def test_every_wanted_offset_is_in_exactly_one_part_in_order(
    ranges: tuple[ShardRange, ...], min_partitions: int
) -> None:
    partitions = plan_partitions(ranges, min_partitions=min_partitions)
    parts = [part for one in partitions for part in one]
    assert [(p.shard, offset) for p in parts for offset in range(p.first_offset, p.next_offset)] == held(ranges)
    assert all(partitions)
    for part in parts:
        assert part.segment.base_offset <= part.first_offset < part.next_offset <= part.segment.next_offset


@given(
    counts=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    record_bytes=st.sampled_from([0, 100, 1 << 20]),
    min_partitions=st.integers(1, 40),
)
def test_there_are_as_many_partitions_as_asked_for_if_there_are_as_many_records(
    counts: list[int], record_bytes: int, min_partitions: int
) -> None:
    ranges = []
    for number, count in enumerate(counts):
        segment = SegmentRange(SegmentKind.LOG, 0, count, count * record_bytes)
        ranges.append(ShardRange(ShardSnapshot(f"s{number}", number, 0, count, (segment,)), 0, count))
    partitions = plan_partitions(ranges, min_partitions=min_partitions)
    assert len(partitions) >= min(min_partitions, sum(counts))


@given(
    ranges=RANGES,
    low=st.integers(-5, 300),
    high=st.integers(-5, 300),
    chosen=st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
def test_conditions_leave_out_only_what_they_rule_out(
    ranges: tuple[ShardRange, ...], low: int, high: int, chosen: list[int]
) -> None:
    for conditions in (
        [Condition("offset", ">", low), Condition("offset", "<=", high)],
        [Condition("offset", ">=", low), Condition("offset", "<", high), Condition("shard", "in", ("s1", "s2"))],
        [Condition("offset", "=", low), Condition("shard", ">", "s0")],
        [Condition("offset", "in", tuple(chosen)), Condition("shard", "<=", "s3")],
    ):
        partitions = plan_partitions(ranges, conditions)
        planned = {
            (p.shard, offset) for one in partitions for p in one for offset in range(p.first_offset, p.next_offset)
        }
        wanted = {
            (shard, offset)
            for shard, offset in held(ranges)
            if all(one.holds(shard if one.column == "shard" else offset) for one in conditions)
        }
        assert wanted <= planned <= set(held(ranges))
        assert {shard for shard, _ in planned} <= {
            shard for shard, _ in held(ranges) if all(one.holds(shard) for one in conditions if one.column == "shard")
        }


@pytest.mark.slow("a million shards")
def test_a_million_quiet_shards_are_no_million_partitions() -> None:
    segment = (SegmentRange(SegmentKind.LOG, 0, 3, 500),)
    quiet = [ShardRange(ShardSnapshot(f"s{number}", number, 0, 3, segment), 0, 3) for number in range(100_000)]
    assert 50 < len(plan_partitions(quiet)) < 200


@pytest.mark.parametrize(("kind", "size_bytes"), [(SegmentKind.LOG, 2 << 30), (SegmentKind.PARQUET, 400 << 20)])
def test_a_large_segment_is_cut_into_pieces_worth_a_task(kind: SegmentKind, size_bytes: int) -> None:
    segment = SegmentRange(kind, 0, 10_000_000, size_bytes)
    shard = ShardSnapshot("s", 1, 0, 10_000_000, (segment,))
    partitions = plan_partitions([ShardRange(shard, 0, 10_000_000)])
    assert 32 <= len(partitions) <= 48
    counts = [part.next_offset - part.first_offset for (part,) in partitions]
    assert max(counts) - min(counts) <= 1
    assert LARGEST_BYTES == 64 << 20


def test_spark_filters_become_conditions_and_the_others_are_given_back() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    taken: list[Filter] = [
        EqualTo(("offset",), 5),
        GreaterThan(("timestamp",), at),
        In(("topic",), ("a", "b")),
        LessThanOrEqual(("shard",), "s"),
        IsNotNull(("offset",)),
    ]
    others: list[Filter] = [
        EqualTo(("value",), b"x"),
        EqualTo(("offset",), 5.5),
        EqualTo(("headers", "key"), "x"),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - that is what is refused
        Not(EqualTo(("offset",), 5)),
        StringStartsWith(("topic",), "a"),
    ]
    conditions, left = from_filters([*taken, *others])
    assert conditions == [
        Condition("offset", "=", 5),
        Condition("timestamp", ">", 1_767_225_600_000_000),
        Condition("topic", "in", ("a", "b")),
        Condition("shard", "<=", "s"),
    ]
    assert all(any(one is other for other in others) for one in left)
    assert len(left) == len(others)


@given(
    values=st.lists(st.integers(0, 20), max_size=30),
    sign=st.sampled_from(["=", "<", "<=", ">", ">="]),
    value=st.integers(-1, 21),
    column=st.sampled_from(["offset", "timestamp", "topic"]),
)
def test_a_condition_means_the_same_for_a_value_a_range_and_a_column(
    values: list[int], sign: str, value: int, column: str
) -> None:
    shown = [f"{one:02}" for one in values] if column == "topic" else values
    compared = f"{value:02}" if column == "topic" else value
    types = {"offset": pa.int64(), "timestamp": TIME, "topic": pa.string()}
    for condition in (Condition(column, sign, compared), Condition(column, "in", (compared, shown[0] if shown else 0))):
        if column == "topic" and not shown:
            continue
        passing = [condition.holds(one) for one in shown]
        assert condition.mask(pa.array(shown, types[column])).to_pylist() == passing
        if shown:
            assert condition.may_hold(min(shown), max(shown)) or not any(passing)


@pytest.mark.parametrize("there", [(ShardSnapshot("a", 8, 0, 9),), ()], ids=["another", "none"])
def test_offsets_of_a_shard_were_read_from_the_next_one_of_its_name(there: tuple[ShardSnapshot, ...]) -> None:
    """An export planned them, and the shard was deleted and created again before they were read."""
    given = {"path": "/data", "startingOffsets": '{"a": 3}', "endingOffsets": '{"a": 5}', "shardIds": '{"a": 7}'}
    snapshot = Snapshot(Store(), there)
    with pytest.raises(DataLossError, match=r"shard 'a' with id 7 is to be read, but .* it was deleted"):
        batch_ranges(snapshot, parse_options(given, "batch"))
    assert batch_ranges(snapshot, parse_options({**given, "failOnDataLoss": "false"}, "batch")) == []
    (found,) = batch_ranges(Snapshot(Store(), (ShardSnapshot("a", 7, 0, 9),)), parse_options(given, "batch"))
    assert (found.first_offset, found.next_offset) == (3, 5)
