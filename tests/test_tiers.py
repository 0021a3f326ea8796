"""`make test` tries few examples, also where a test says how many it tries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.tiers import (
    COSTLY_FROM_S,
    FULL,
    OWN_SETTINGS,
    QUICK,
    check_bounds,
    check_reasons,
    leave_out_cases,
    leave_out_costly,
    try_few,
)


def item(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def test_a_property_tries_few() -> None:
    tried: list[int] = []

    @settings(max_examples=300, database=None)
    @given(st.integers(0, 1 << 60))
    def test(value: int) -> None:
        tried.append(value)

    try_few(item(function=test, cls=None))
    test()
    assert 0 < len(tried) <= QUICK.max_examples


def test_a_state_machine_tries_few() -> None:
    made: list[int] = []

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            made.append(1)

        @rule(value=st.integers(0, 1 << 60))
        def step(self, value: int) -> None:
            pass

    case = Machine.TestCase
    case.settings = settings(max_examples=300, database=None)
    try_few(item(function=case.runTest, cls=case))
    case("runTest").runTest()
    # One that broke off is not counted as an example.
    assert 0 < len(made) < 2 * QUICK.max_examples


def test_fewer_than_few_stay_so() -> None:
    @settings(max_examples=3)
    @given(st.integers())
    def test(value: int) -> None:
        pass

    try_few(item(function=test, cls=None))
    tried: settings = test._hypothesis_internal_use_settings
    assert tried.max_examples == 3


@pytest.mark.parametrize(
    "mine",
    [
        settings(FULL, deadline=200),
        settings(FULL, suppress_health_check=[HealthCheck.function_scoped_fixture]),
    ],
    ids=["deadline", "health check"],
)
def test_bounds_of_time_are_refused(mine: settings) -> None:
    @mine
    @given(st.integers())
    def test(value: int) -> None:
        pass

    @settings(FULL, max_examples=3)
    @given(st.integers())
    def without_bounds(value: int) -> None:
        pass

    class Machine(RuleBasedStateMachine):
        @rule()
        def step(self) -> None:
            pass

    check_bounds(item(nodeid="x", function=without_bounds, cls=None))
    case = Machine.TestCase
    case.settings = settings(FULL, max_examples=3)
    check_bounds(item(nodeid="x", function=case.runTest, cls=case))
    case.settings = mine
    for bounded in (item(nodeid="x", function=test, cls=None), item(nodeid="x", function=case.runTest, cls=case)):
        with pytest.raises(pytest.UsageError, match="bounds of time"):
            check_bounds(bounded)


def test_what_is_slow_says_why() -> None:
    named = item(nodeid="tests/test_x.py::test_y", iter_markers=lambda name: [pytest.mark.slow.mark])
    with pytest.raises(pytest.UsageError, match="test_y: say why it is slow"):
        check_reasons(named)


def test_of_a_test_with_long_cases_the_first_ones_stay_and_the_others_are_slow() -> None:
    marked: list[str] = []

    def case(name: str, *marks: pytest.Mark) -> Any:
        return item(
            nodeid=name,
            function=None,
            get_closest_marker=lambda wanted: next((each for each in marks if each.name == wanted), None),
            add_marker=lambda mark: marked.append(f"{name} {mark.name} {mark.args[0]}"),
        )

    few = pytest.mark.few_cases(2, "long").mark
    leave_out_cases(
        [case("a[1]", few), case("b[1]"), case("a[2]", few), case("a[3]", few), case("c[1]", few)], is_quick=False
    )
    assert marked == ["a[3] slow long"]


def test_what_is_recorded_as_costly_is_slow_and_keeps_the_reason_that_its_source_gives() -> None:
    marked: list[str] = []

    def case(name: str, *marks: str) -> Any:
        return item(
            nodeid=name,
            function=a_property if name == "property" else None,
            get_closest_marker=lambda wanted: wanted if wanted in marks else None,
            add_marker=lambda mark: marked.append(f"{name} {mark.name} {mark.args[0]}"),
        )

    @given(st.integers())
    def a_property(value: int) -> None:
        pass

    recorded_s = {"costly": 1.5, "marked": 1.5, "chosen": 1.5, "property": 1.5, "cheap": COSTLY_FROM_S / 2}
    cases = [
        case("costly"),
        case("marked", "slow"),
        case("chosen", "few_cases"),
        case("property"),
        case("cheap"),
        case("new"),
    ]
    leave_out_costly(cases, recorded_s)
    assert marked == ["costly slow takes 1.5 s of the processors"]


def test_of_a_property_with_long_examples_few_are_tried() -> None:
    @given(st.integers())
    def test(value: int) -> None:
        pass

    few = pytest.mark.few_cases(2, "long").mark
    cases = [item(nodeid="a", function=test, get_closest_marker=lambda name: few)]
    leave_out_cases(cases, is_quick=False)
    assert OWN_SETTINGS not in vars(test) or vars(test)[OWN_SETTINGS].max_examples > 2
    leave_out_cases(cases, is_quick=True)
    assert vars(test)[OWN_SETTINGS].max_examples == 2
