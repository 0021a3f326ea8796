"""Positions of a stream and what is decided from them, without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.history import HistoryGap
from shards.model import SegmentKind
from spark_export.errors import DataLossError, OptionError, UnreadableError
from spark_export.options import SourceOptions, parse_options
from spark_export.positions import PACKED_FROM, Position, StreamPosition
from spark_export.read_history import ReadHistory
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot, Store
from spark_export.stream_planning import (
    changed_shards,
    end_position,
    fair_shares,
    first_position,
    next_position,
    records_behind,
    stream_ranges,
)

NAMES = st.text('abc/é"', min_size=1, max_size=8)
OFFSETS = st.integers(0, 1 << 63)
POSITIONS = st.builds(Position, OFFSETS, OFFSETS, st.none() | OFFSETS, st.none() | OFFSETS)
RESTORES = (HistoryGap(88, 1 << 40), HistoryGap(1 << 41, 1 << 42))


def options(**given: str) -> SourceOptions:
    return parse_options({"path": "/data", **given}, "stream")


def shard(
    name: str,
    start: int,
    end: int,
    *,
    shard_id: int = 1,
    found_offset: int | None = None,
    changed_offset: int | None = None,
) -> ShardSnapshot:
    segments = (SegmentRange(SegmentKind.LOG, start, end, 100),) if end > start else ()
    return ShardSnapshot(name, shard_id, start, end, segments, found_offset, changed_offset)


def snapshot(*shards: ShardSnapshot) -> Snapshot:
    return Snapshot(Store(), shards)


def at(**offsets: int) -> StreamPosition:
    return StreamPosition({name: Position(1, offset) for name, offset in offsets.items()})


# Their JSON


@given(st.dictionaries(NAMES, POSITIONS, max_size=20), NAMES, st.dictionaries(NAMES, POSITIONS, max_size=3))
def test_a_position_is_read_back_from_its_json(
    shards: dict[str, Position], after: str, missing: dict[str, Position]
) -> None:
    position = StreamPosition(shards, after, missing, RESTORES[: len(after)])
    assert StreamPosition.decode(json.loads(json.dumps(position.encode()))) == position


def test_a_position_of_version_1_is_read() -> None:
    found = {"version": 1, "shards": {"a": "1:4"}, "after": "a"}
    assert StreamPosition.decode(found) == StreamPosition({"a": Position(1, 4)}, "a")


def test_a_position_of_many_shards_is_small() -> None:
    shards = {f"plant/line-{n // 10}/machine-{n % 10}": Position(n + 5, n * 7919) for n in range(10_000)}
    encoded = json.dumps(StreamPosition(shards).encode())
    assert len(encoded) < 15 * len(shards)
    assert StreamPosition.decode(json.loads(encoded)).shards == shards


def test_few_shards_are_there_to_be_read_by_people() -> None:
    assert len(at(a=1).shards) < PACKED_FROM
    assert at(b=2, a=1).encode() == {"version": 2, "shards": {"a": "1:1", "b": "1:2"}}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"version": 3, "shards": {}}, "version 3, this program reads versions up to 2"),
        ({"partition": 7}, "version None"),
        ({"version": 1}, "no position"),
        ({"version": 1, "shards": {"a": "x"}}, "no position"),
        ({"version": 1, "shards": {"a": "1"}}, "no position"),
        ({"version": 1, "packed": "AAAA"}, "no position"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: Mapping[str, object], told: str) -> None:
    with pytest.raises(UnreadableError, match=told):
        StreamPosition.decode(found)


# Where a query begins


def test_a_query_begins_with_new_records_by_default() -> None:
    there = snapshot(shard("a", 5, 10), shard("b", 0, 0), shard("c", 0, 3))
    assert first_position(there, options()) == at(a=10, c=3)
    assert first_position(there, options(startingOffsets="earliest")) == at(a=5, c=0)
    assert first_position(there, options(startingOffsets='{"a": 7, "c": "latest"}')) == at(a=7, c=3)


def test_a_query_begins_at_a_time() -> None:
    there = snapshot(shard("a", 5, 10, found_offset=8), shard("c", 0, 3, found_offset=3))
    assert first_position(there, options(startingTimestamp="2026-01-01")) == at(a=8, c=3)


@pytest.mark.parametrize(
    ("offsets", "error"),
    [('{"a": 11}', OptionError), ('{"a": 4}', DataLossError), ('{"z": 0}', OptionError)],
)
def test_a_query_cannot_begin_where_nothing_is(offsets: str, error: type[Exception]) -> None:
    there = snapshot(shard("a", 5, 10))
    with pytest.raises(error):
        first_position(there, options(startingOffsets=offsets))
    lenient = first_position(there, options(startingOffsets=offsets, failOnDataLoss="false"))
    assert 5 <= lenient.shards["a"].next_offset <= 10


# What comes next


def test_nothing_new_is_the_very_same_position() -> None:
    start = at(a=10)
    assert next_position(start, snapshot(shard("a", 0, 10), shard("b", 0, 0)), options(), None) is start


def test_a_shard_that_appears_is_read_from_its_first_record() -> None:
    there = snapshot(shard("a", 0, 10), shard("b", 0, 4, shard_id=7))
    end = next_position(at(a=10), there, options(), None)
    assert end.shards["b"] == Position(7, 4)
    assert [
        (one.shard.name, one.first_offset, one.next_offset) for one in stream_ranges(at(a=10), end, there, options())
    ] == [("b", 0, 4)]


def test_shards_that_are_not_looked_into_any_more_keep_their_place() -> None:
    start = at(a=1, b=2)
    end = next_position(start, snapshot(shard("a", 0, 5)), options(topics="a"), None)
    assert end == at(a=5, b=2)
    assert changed_shards(start, end) == ["a"]


LOSSES = {
    "trimmed": (shard("a", 5, 10), 3, "from offset 3 on, but it holds offsets from 5 up to .* 10", 5),
    "set back": (shard("a", 0, 2), 3, "up to offset 3, but it holds offsets from 0 up to .* 2.*older state", 2),
    "made again": (shard("a", 0, 4, shard_id=9), 3, "deleted and created again.*id 1.*id 9", 0),
    "restored": (shard("a", 0, 8, changed_offset=2), 3, "up to offset 3, but its node was restored.*offset 2 on", 2),
}


@pytest.mark.parametrize(("there", "read", "told", "goes_on"), LOSSES.values(), ids=LOSSES)
def test_lost_records_end_the_query_or_are_passed_over(
    there: ShardSnapshot, read: int, told: str, goes_on: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError, match=f"shard 'a'.*{told}.*set failOnDataLoss to false"):
        next_position(at(a=read), snapshot(there), options(), None)
    lenient = options(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = next_position(at(a=read), snapshot(there), lenient, None)
    assert "shard 'a'" in caplog.text
    assert end.shards["a"] == Position(there.shard_id, there.next_offset, there.changed_offset)
    compared = snapshot(attrs.evolve(there, changed_offset=None))
    ranges = stream_ranges(at(a=read), end, compared, lenient)
    assert [(one.first_offset, one.next_offset) for one in ranges] == (
        [(goes_on, there.next_offset)] if goes_on < there.next_offset else []
    )
    assert next_position(end, compared, options(), None) is end


def test_what_a_restore_replaced_is_read_once_more_and_no_further_time() -> None:
    """A store that was restored twice, and filled to the same offset again, was taken for unchanged."""
    lenient = options(failOnDataLoss="false")
    positions = [at(a=50, b=3)]
    for restores in (RESTORES[:1], RESTORES):
        store = Store(restores=restores)
        shards = (shard("a", 0, 70, changed_offset=30), shard("b", 0, 3))
        end = next_position(positions[-1], Snapshot(store, shards), lenient, None)
        assert end.restores == restores
        ranges = stream_ranges(positions[-1], end, Snapshot(store, (shard("a", 0, 70), shards[1])), lenient)
        assert [(one.shard.name, one.first_offset, one.next_offset) for one in ranges] == [("a", 30, 70)]
        positions.append(StreamPosition.decode(end.encode()))
    unchanged = Snapshot(Store(restores=RESTORES), (shard("a", 0, 70), shard("b", 0, 4)))
    end = next_position(positions[-1], unchanged, lenient, None)
    assert changed_shards(positions[-1], end) == ["b"]


def test_a_shard_that_was_missing_at_a_restore_is_compared_when_it_is_back() -> None:
    lenient = options(failOnDataLoss="false")
    store = Store(restores=RESTORES[:1])
    without = next_position(at(a=5), Snapshot(store, ()), lenient, None)
    assert without == StreamPosition({}, "", {"a": Position(1, 5, None, 88)}, RESTORES[:1])
    assert without.read_history.common_lsn("a", RESTORES[:1]) == 88
    back = Snapshot(store, (shard("a", 0, 9, changed_offset=4),), without.read_history)
    with pytest.raises(DataLossError, match="from offset 4 on it holds other records"):
        next_position(without, back, options(), None)


def test_a_snapshot_is_asked_for_again_only_where_the_store_has_to_tell_what_changed() -> None:
    known, changed = ReadHistory(RESTORES[:1]), ReadHistory(())
    found = Snapshot(Store(restores=RESTORES[:1]), (shard("a", 0, 9, changed_offset=4),), changed)
    assert found.compared_with(changed) is found
    compared = found.compared_with(known)
    assert compared is not None
    assert compared.shards == (shard("a", 0, 9),)
    assert compared.compared_with(changed) is None
    assert compared.compared_with(ReadHistory(RESTORES[:1], {"a": 3})) is None
    tree_alone = snapshot(shard("a", 0, 9))
    assert tree_alone.compared_with(changed) is tree_alone


def test_a_stream_lost_the_place_of_a_shard_that_was_missing_at_one_look() -> None:
    """With failOnDataLoss off all of its records came a second time when it was there again."""
    with pytest.raises(DataLossError, match=r"shard 'a' \(id 1\).*up to offset 3.*set failOnDataLoss to false"):
        next_position(at(a=3), snapshot(), options(), None)
    without = next_position(at(a=3), snapshot(), options(failOnDataLoss="false"), None)
    assert without == StreamPosition({}, "", {"a": Position(1, 3)})
    assert next_position(without, snapshot(), options(), None) is without
    assert changed_shards(at(a=3), without) == []
    back = snapshot(shard("a", 0, 5))
    end = next_position(without, back, options(), None)
    assert end == at(a=5)
    assert [(one.first_offset, one.next_offset) for one in stream_ranges(without, end, back, options())] == [(3, 5)]
    assert (records_behind(without, back), records_behind(end, back)) == (2, 0)


def test_a_shard_that_takes_the_name_of_a_missing_one_is_read_from_its_first_record() -> None:
    without = StreamPosition({}, "", {"a": Position(1, 3)})
    there = snapshot(shard("a", 0, 5, shard_id=2))
    end = next_position(without, there, options(), None)
    assert end == StreamPosition({"a": Position(2, 5)})
    assert [(one.first_offset, one.next_offset) for one in stream_ranges(without, end, there, options())] == [(0, 5)]


@pytest.mark.parametrize(
    ("there", "told", "left"),
    [
        (snapshot(shard("a", 4, 10)), "from 4 up to .* trimmed", [(4, 8)]),
        (snapshot(shard("a", 0, 6)), "older state", [(3, 6)]),
        (snapshot(shard("a", 0, 10, changed_offset=5)), "restored from a backup.*from offset 5 on", [(3, 5)]),
        (snapshot(shard("a", 0, 10, shard_id=2)), "now has id 2", []),
        (snapshot(), "no such shard", []),
    ],
)
def test_records_lost_after_they_were_planned_are_reported_as_well(
    there: Snapshot, told: str, left: list[tuple[int, int]]
) -> None:
    with pytest.raises(DataLossError, match=rf"shard 'a' \(id 1\): offsets 3 up to .* 8 .*{told}"):
        stream_ranges(at(a=3), at(a=8), there, options())
    ranges = stream_ranges(at(a=3), at(a=8), there, options(failOnDataLoss="false"))
    assert [(one.first_offset, one.next_offset) for one in ranges] == left


# How much at a time


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 1000), min_size=1),
    st.integers(1, 3000),
    st.sampled_from(["", "c", "h", "z"]),
)
def test_shares_are_fair_and_complete(waiting: dict[str, int], most: int, after: str) -> None:
    shares, _ = fair_shares(waiting, most, after)
    assert sum(shares.values()) == min(most, sum(waiting.values()))
    assert all(share <= waiting[name] for name, share in shares.items())
    if most >= len(waiting):
        assert set(shares) == set(waiting)
        # A shard that gets less than it has gets as much as any other, apart from the remainder of the division.
        short = [shares[name] for name in waiting if shares[name] < waiting[name]]
        assert all(share + 1 >= max(shares.values()) or share + len(waiting) > max(shares.values()) for share in short)


def test_no_shard_starves_when_there_are_more_shards_than_records() -> None:
    there = snapshot(*(shard(name, 0, 100) for name in "abcde"))
    position = StreamPosition()
    for _ in range(5):
        position = next_position(position, there, options(), 2)
    assert {one.next_offset for one in position.shards.values()} == {2}


def test_a_busy_shard_does_not_hold_up_a_quiet_one() -> None:
    there = snapshot(shard("busy", 0, 1_000_000), shard("quiet", 0, 3))
    assert next_position(StreamPosition(), there, options(), 100) == at(busy=97, quiet=3)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 20))
def test_micro_batches_together_are_everything_once(counts: list[int], most: int) -> None:
    there = snapshot(*(shard(f"s{n}", 0, count) for n, count in enumerate(counts)))
    position = StreamPosition()
    seen: list[tuple[str, int]] = []
    while (end := next_position(position, there, options(), most)) is not position:
        ranges = stream_ranges(position, end, there, options())
        given = [(one.shard.name, offset) for one in ranges for offset in range(one.first_offset, one.next_offset)]
        assert 0 < len(given) <= most
        assert records_behind(position, there) - records_behind(end, there) == len(given)
        seen += given
        position = StreamPosition.decode(end.encode())
    assert sorted(seen) == sorted((f"s{n}", offset) for n, count in enumerate(counts) for offset in range(count))
    assert position.shards == end_position(there).shards


def test_offsets_that_memory_lost_were_counted_as_records_of_micro_batches() -> None:
    """After a crash a bounded query made a thousand empty micro-batches, and was a million records behind."""
    segments = (SegmentRange(SegmentKind.LOG, 0, 10, 100), SegmentRange(SegmentKind.MEMORY, 1 << 20, (1 << 20) + 5, 50))
    there = snapshot(ShardSnapshot("a", 1, 0, (1 << 20) + 5, segments))
    ends, counts = [at()], []
    while (end := next_position(ends[-1], there, options(), 4)) is not ends[-1]:
        counts.append(records_behind(end, there))
        ends.append(end)
    assert [end.shards["a"].next_offset for end in ends[1:]] == [4, 8, (1 << 20) + 2, (1 << 20) + 5]
    assert counts == [11, 7, 3, 0]


def test_a_query_passes_a_gap_at_the_end_at_once() -> None:
    """A trim of the gap would be reported as a loss of records otherwise."""
    there = snapshot(ShardSnapshot("a", 1, 0, 1 << 20, (SegmentRange(SegmentKind.LOG, 0, 10, 100),)))
    assert next_position(at(a=10), there, options(), 4) == at(a=1 << 20)
