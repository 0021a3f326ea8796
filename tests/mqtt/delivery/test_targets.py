"""Few filters reach all that is asked for."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.mqtt.delivery.tail_targets import ByFirstLevel, covering, without_covered
from shards.topics.topic_filters import covers

LEVELS = st.sampled_from(["a", "b", "c", "+", "$x", ""])
TARGETS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.one_of(TARGETS, TARGETS.map(lambda one: f"{one}/#"), st.just("#"))


@settings(deadline=None)
@given(st.lists(FILTERS, max_size=12), st.integers(1, 6))
def test_every_target_is_covered_by_few_that_do_not_cover_each_other(targets: list[str], max_count: int) -> None:
    found = covering(targets, max_count)
    for target in targets:
        assert any(covers(one, target) for one in found), f"{target} is missing in {found}"
    assert [one for one in found if any(other != one and covers(other, one) for other in found)] == []
    dollars = len({one.split("/")[0] for one in targets if one.startswith("$")})
    assert len(found) <= max(max_count, 1 + dollars)
    assert found == covering(list(reversed(targets)), max_count)


@settings(deadline=None)
@given(st.lists(FILTERS, max_size=12), FILTERS)
def test_none_that_covers_a_target_or_that_it_covers_is_missing_among_the_candidates(
    filters: list[str], target: str
) -> None:
    found = ByFirstLevel[str]()
    for each in filters:
        found.add(each, each)
    assert {one for one in filters if covers(one, target)} <= set(found.which_may_cover(target)) <= set(filters)
    assert {one for one in filters if covers(target, one)} <= set(found.which_it_may_cover(target)) <= set(filters)
    for each in set(filters):
        found.remove(each)
    assert list(found.which_it_may_cover("#")) == []


@settings(deadline=None)
@given(st.lists(FILTERS, max_size=12))
def test_nothing_is_widened_while_there_are_few(targets: list[str]) -> None:
    assert set(covering(targets, 12)) <= set(targets)
    assert set(covering(targets, 12)) == set(without_covered(targets))


def test_first_levels_with_many_targets_are_widened_first() -> None:
    targets = [f"a/{number}" for number in range(10)] + ["b/1", "b/2", "c"]
    assert covering(targets, 5) == ["c", "a/#", "b/1", "b/2"]
    assert covering(targets, 3) == ["c", "a/#", "b/#"]
    assert covering(targets, 2) == ["#"]


def test_names_that_begin_with_a_dollar_are_followed_by_themselves() -> None:
    assert covering(["$x/1", "$x/2", "a", "b"], 2) == ["#", "$x/#"]
    assert covering(["#", "$x/1", "a"], 200) == ["#", "$x/1"]


def test_very_many_targets_take_no_time_to_speak_of() -> None:
    targets = [f"client/{number}/command" for number in range(20_000)] + [f"room/+/{number}" for number in range(5_000)]
    start = time.thread_time()
    assert covering(targets, 200) == ["client/#", "room/#"]
    assert time.thread_time() - start < 1.0
