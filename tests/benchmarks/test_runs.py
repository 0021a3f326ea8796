"""The benchmark's arithmetic: a wrong ratio or a goal judged the wrong way round would mislead every later decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import Timing
from benchmarks.rows import rows
from benchmarks.runs import (
    Goal,
    Measurement,
    Row,
    Samples,
    UnavailableError,
    collect,
    evaluate,
    format_figure,
    ratio,
    schedule,
    select,
)

TIMING = Timing(warm_up_s=0.0, measured_s=0.0)
figures = st.lists(st.floats(min_value=0.001, max_value=1e9), min_size=1, max_size=9)


def all_rows() -> list[Row]:
    return rows(shards=10, many=4, history=100, connections=10, queued=10, waiting=10)


class RefusedError(Exception):
    """Stands for a server that refuses under load."""


def returning(key: str, *values: float) -> Measurement:
    """A measurement that returns these figures in turn."""
    remaining = iter(values)
    return Measurement((key,), lambda _: {key: next(remaining)})


def run(
    plan: list[tuple[int, Measurement]], *, clock: Iterator[float] | None = None, deadline_s: float = 1e9
) -> Mapping[str, Samples]:
    ticks = clock or iter(float(number) for number in range(10_000))
    return collect(
        plan,
        TIMING,
        now_s=lambda: next(ticks),
        deadline_s=deadline_s,
        progress=lambda number, measurement: None,
        expected_errors=(RefusedError,),
    )


def test_rounds_interleave_all_measurements() -> None:
    plan = schedule([returning("a"), returning("b"), returning("c")], {"a", "b", "c"}, 2)
    assert [(number, measurement.keys[0]) for number, measurement in plan] == [
        (0, "a"),
        (0, "b"),
        (0, "c"),
        (1, "a"),
        (1, "b"),
        (1, "c"),
    ]


def test_a_measurement_that_is_made_once_is_only_in_the_first_round() -> None:
    once = Measurement(("long",), lambda _: {"long": 1.0}, repeated=False)
    plan = schedule([returning("a"), once], {"a", "long"}, 3)
    assert [measurement.keys[0] for _, measurement in plan] == ["a", "long", "a", "a"]


def test_measurements_that_fill_no_wanted_row_are_left_out() -> None:
    assert [m.keys for _, m in schedule([returning("a"), returning("b")], {"b"}, 1)] == [("b",)]


def test_figures_are_gathered_per_row_in_the_order_of_rounds() -> None:
    samples = run(schedule([returning("a", 1, 2, 3), returning("b", 4, 5, 6)], {"a", "b"}, 3))
    assert samples["a"].figures == [1, 2, 3]
    assert samples["b"].figures == [4, 5, 6]


def test_what_is_not_installed_is_said_and_the_rest_continues() -> None:
    def missing(_: Timing) -> Mapping[str, float]:
        raise UnavailableError("not installed")

    samples = run(schedule([Measurement(("peer",), missing), returning("ours", 1, 2)], {"peer", "ours"}, 2))
    assert samples["peer"].problem == "not installed"
    assert samples["ours"].figures == [1, 2]


def test_a_measurement_that_failed_is_not_tried_again_and_keeps_its_figures() -> None:
    calls = []

    def refuse_second(_: Timing) -> Mapping[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise RefusedError("no more room")
        return {"a": 7.0}

    samples = run(schedule([Measurement(("a",), refuse_second)], {"a"}, 5))
    assert len(calls) == 2
    assert samples["a"] == Samples([7.0], "failed: RefusedError: no more room")


def test_an_unexpected_error_ends_the_benchmark() -> None:
    def broken(_: Timing) -> Mapping[str, float]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(schedule([Measurement(("a",), broken)], {"a"}, 1))


def test_the_first_round_is_whole_and_later_ones_stop_before_the_deadline() -> None:
    # Each run takes 10 s on this clock, which is looked at twice a run.
    clock = iter([0, 10, 10, 20, 20, 30, 30, 40, 40])
    plan = schedule([returning("a", 1, 2), returning("b", 1, 2)], {"a", "b"}, 2)
    samples = run(plan, clock=(float(tick) for tick in clock), deadline_s=30.0)
    assert samples["a"].figures == [1, 2]
    assert samples["b"].figures == [1]


@given(figures)
def test_the_ratio_to_oneself_is_one(own: list[float]) -> None:
    assert ratio(own, own) == pytest.approx(1.0)


@given(figures, st.floats(min_value=0.01, max_value=100.0))
def test_a_constant_factor_is_found_whatever_the_noise_of_a_round(noise: list[float], factor: float) -> None:
    assert ratio([value * factor for value in noise], noise) == pytest.approx(factor)


def test_ratios_pair_the_runs_of_a_round_and_leave_out_rounds_that_lack_one() -> None:
    assert ratio([10, 20, 90], [5, 10]) == 2.0
    assert ratio([10], [4], scale=2.0) == 5.0
    assert ratio([], [4]) is None
    assert ratio([1], [0]) is None


@pytest.mark.parametrize(
    ("goal", "own", "other", "reached"),
    [
        (Goal(5.0, of="peer"), [50.0], [10.0], True),
        (Goal(5.0, of="peer"), [49.0], [10.0], False),
        (Goal(3.0, of="peer", at_most=True), [30.0], [10.0], True),
        (Goal(3.0, of="peer", at_most=True), [31.0], [10.0], False),
        (Goal(10.0, at_most=True), [9.0, 11.0, 10.0], [], True),
        (Goal(1.0), [0.9], [], False),
        (Goal(5.0, of="peer"), [50.0], [], None),
        (Goal(5.0, of="peer"), [], [10.0], None),
        (None, [50.0], [10.0], None),
    ],
)
def test_goals(goal: Goal | None, own: list[float], other: list[float], reached: bool | None) -> None:
    lines = evaluate([Row("ours", "", "us", goal=goal)], {"ours": Samples(own), "peer": Samples(other)})
    assert lines[0].reached is reached


@pytest.mark.parametrize(
    ("own", "other", "reached"),
    [
        ([50.0], [10.0], True),
        ([50.0], [20.0], False),
        ([30.0], [10.0], False),
        ([50.0], [], None),
        ([30.0], [], False),
        ([], [10.0], None),
    ],
)
def test_several_goals_must_all_be_met(own: list[float], other: list[float], reached: bool | None) -> None:
    row = Row("ours", "", "us", goal=Goal(40.0), more_goals=(Goal(4.0, of="peer"),))
    [line] = evaluate([row], {"ours": Samples(own), "peer": Samples(other)})
    assert line.reached is reached
    assert line.goal == ">= 40.0 us, >= 4 x peer"


def test_a_line_has_median_span_and_both_ratios() -> None:
    row = Row("ours", "title", "records/s", peer="peer", limit="limit", limit_scale=0.5)
    samples = {"ours": Samples([30, 10, 20]), "peer": Samples([10, 10, 10]), "limit": Samples([15, 5, 10])}
    [line] = evaluate([row], samples)
    assert (line.figure, line.lowest, line.highest, line.runs) == (20, 10, 30, 3)
    assert (line.peer_ratio, line.limit_ratio) == (2.0, 1.0)


def test_a_row_without_figures_says_why() -> None:
    missing, absent = evaluate([Row("a", "", ""), Row("b", "", "")], {"a": Samples([], "not installed")})
    assert (missing.figure, missing.problem) == (None, "not installed")
    assert absent.problem == "not measured"


def test_selecting_rows_brings_all_that_they_are_compared_to() -> None:
    found = {row.key for row in select(all_rows(), "singles.many.encoded")}
    assert found == {
        "singles.many.encoded",
        "singles.one.encoded",
        "jetstream.file",
        "jetstream.file-many",
        "redis.plain",
        "limit.sync-1m",
    }


def test_several_patterns_select_together() -> None:
    found = [row.key for row in select(all_rows(), "redis.plain,limit.c*")]
    assert found == ["limit.copy", "redis.plain"]


def test_every_row_is_named_once_and_compared_to_rows_that_exist() -> None:
    table = all_rows()
    keys = [row.key for row in table]
    assert len(set(keys)) == len(keys)
    for row in table:
        assert set(row.others) <= set(keys)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.123, "0.12"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234"), (43_210, "43 k"), (1_743_346, "1.74 M")],
)
def test_figures_are_short(value: float, shown: str) -> None:
    assert format_figure(value) == shown
