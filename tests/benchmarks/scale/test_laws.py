"""The law of a curve: the kind and the coefficients that its points were made with, whatever the unit and the order."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.laws import CONSTANT, FEWEST_POINTS, LINEAR, LOGARITHMIC, NOISE, Law, fit

Points = list[tuple[float, float]]

decades = st.integers(FEWEST_POINTS, 7).map(lambda count: [10.0**power for power in range(count)])
costs = st.floats(1e-3, 1e6)
seeds = st.integers(0, 1 << 32)


def noisy(points: Points, seed: int, most: float) -> Points:
    """Points whose costs are off by at most this part."""
    chance = random.Random(seed)
    return [(size, cost * (1 + chance.uniform(-most, most))) for size, cost in points]


@given(decades, costs, seeds)
def test_costs_that_only_vary_are_constant(sizes: list[float], cost: float, seed: int) -> None:
    law = fit(noisy([(size, cost) for size in sizes], seed, 0.9 * NOISE))
    assert law.kind == CONSTANT
    assert law.base == pytest.approx(cost, rel=NOISE)
    assert law.at(12.0) == law.base


@given(decades, costs, st.floats(0.3, 30.0), seeds)
def test_a_cost_that_each_tenfold_adds_to_is_logarithmic(
    sizes: list[float], base: float, growth: float, seed: int
) -> None:
    points = noisy([(size, base * (1 + growth * math.log10(size))) for size in sizes], seed, 0.02)
    law = fit(points)
    assert law.kind == LOGARITHMIC
    assert law.base == pytest.approx(base, rel=0.1)
    assert law.slope == pytest.approx(base * growth, rel=0.15)


@given(decades, costs, st.floats(0.05, 1.0), seeds)
def test_a_cost_that_each_one_adds_to_is_linear(sizes: list[float], base: float, growth: float, seed: int) -> None:
    """The largest size costs at least ten times as much as the smallest one."""
    points = noisy([(size, base * (1 + growth * size)) for size in sizes], seed, 0.02)
    law = fit(points)
    assert law.kind == LINEAR
    assert law.slope == pytest.approx(base * growth, rel=0.1)
    assert law.at(sizes[-1]) == pytest.approx(base * (1 + growth * sizes[-1]), rel=0.1)


points_of_any_kind = st.lists(
    st.tuples(st.sampled_from([10.0**power for power in range(7)]), st.floats(1.0, 1e4)), min_size=1, max_size=9
)


@given(points_of_any_kind, st.floats(0.01, 100.0))
def test_another_unit_gives_the_same_law_in_that_unit(points: Points, factor: float) -> None:
    law, other = fit(points), fit([(size, cost * factor) for size, cost in points])
    if other.kind == law.kind:
        assert other.base == pytest.approx(law.base * factor, rel=1e-6, abs=1e-6 * factor)
        assert other.slope == pytest.approx(law.slope * factor, rel=1e-6, abs=1e-6 * factor)
    assert other.error == pytest.approx(law.error, rel=1e-6, abs=1e-9)


@given(points_of_any_kind, seeds)
def test_the_order_of_the_points_does_not_matter(points: Points, seed: int) -> None:
    shuffled = points.copy()
    random.Random(seed).shuffle(shuffled)
    assert fit(shuffled).error == pytest.approx(fit(points).error, rel=1e-6, abs=1e-9)


@given(points_of_any_kind)
def test_no_constant_is_better_than_the_one_that_is_found(points: Points) -> None:
    law = fit([(1.0, cost) for _, cost in points])
    for factor in (1.0, 0.98, 1.02):
        squares = [math.log(law.base * factor / cost) ** 2 for _, cost in points]
        assert law.error <= math.sqrt(sum(squares) / len(squares)) + 1e-9


@given(points_of_any_kind)
def test_a_law_does_not_fall(points: Points) -> None:
    law = fit(points)
    assert law.base > 0
    assert law.slope >= 0


def test_what_falls_is_constant() -> None:
    assert fit([(10.0**power, 100.0 - 10 * power) for power in range(7)]).kind == CONSTANT


@given(decades, costs, seeds)
def test_noise_by_a_factor_of_two_does_not_hide_what_grows_with_each_one(
    sizes: list[float], cost: float, seed: int
) -> None:
    """Also where small sizes cost nothing that could be measured."""
    chance = random.Random(seed)
    law = fit([(size, cost * size * 2 ** chance.uniform(-1, 1)) for size in sizes])
    assert law.kind == LINEAR
    assert law.at(sizes[-1]) == pytest.approx(cost * sizes[-1], rel=1.5)


def test_three_points_are_too_few_for_a_slope() -> None:
    assert fit([(1, 1.0), (10, 10.0), (100, 100.0)]).kind == CONSTANT
    assert fit([(1, 1.0), (10, 10.0), (100, 100.0), (1000, 1000.0)]).kind == LINEAR


@pytest.mark.parametrize("points", [[], [(0.5, 1.0)], [(1.0, 0.0)], [(1.0, -2.0)]])
def test_sizes_begin_at_one_and_costs_are_above_zero(points: Points) -> None:
    with pytest.raises(ValueError, match="above 0"):
        fit(points)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (Law(CONSTANT, 3.2, 0.0, 0.0), "constant: 3.20 us"),
        (Law(LOGARITHMIC, 3.2, 0.5, 0.0), "logarithmic: 3.20 us + 0.50 us for each tenfold"),
        (Law(LINEAR, 76.0, 0.002, 0.0), "linear: 76.0 us + 2.00 us for each 1,000 shards"),
        (Law(LINEAR, 76.0, 0.00001, 0.0), "linear: 76.0 us + 10.0 us for each 1,000,000 shards"),
        (Law(LINEAR, 76.0, 0.5, 0.0), "linear: 76.0 us + 0.50 us for each shard"),
    ],
)
def test_a_law_is_said_in_words(law: Law, words: str) -> None:
    assert law.describe("us", "shards") == words
