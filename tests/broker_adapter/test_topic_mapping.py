"""Topics go to shards by rules, and every subscriber finds what its filter matches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter import MappingRule, TopicMapping
from shards.errors import InvalidNameError, InvalidRequestError
from shards.topics.topic_filters import covers, is_filter, matches, overlap

levels = st.sampled_from(["a", "b", "c", "$s", ""])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
wild_levels = st.lists(st.sampled_from(["a", "b", "$s", "", "+"]), min_size=1, max_size=4)
filters = st.builds(lambda parts, tail: "/".join([*parts, "#"] if tail else parts), wild_levels, st.booleans()).filter(
    bool
) | st.just("#")
rules = st.builds(
    MappingRule,
    filters,
    prefix=st.sampled_from(["fold", "a", "a/b", "$internal/x"]),
    shards=st.integers(1, 3),
    by=st.sampled_from(["topic", "publisher"]),
)


def reaches(target: str, shard: str) -> bool:
    return matches(target, shard) if is_filter(target) else target == shard


@given(st.lists(rules, max_size=4), topics, st.sampled_from(["", "p1", "p2"]), filters | topics)
@settings(max_examples=500)
def test_every_matching_filter_finds_a_published_record(
    rules_: list[MappingRule], topic: str, publisher: str, topic_filter: str
) -> None:
    mapping = TopicMapping(rules_)
    shard = mapping.shard_for(topic, publisher)
    assert mapping.topic_of(shard, "" if shard == topic else topic) == topic
    if matches(topic_filter, topic):
        assert any(reaches(target, shard) for target in mapping.shards_for(topic_filter))


@given(filters | topics, filters | topics, topics)
@settings(max_examples=500)
def test_overlap_and_covers_agree_with_matching(left: str, right: str, topic: str) -> None:
    if matches(left, topic) and matches(right, topic):
        assert overlap(left, right)
    if covers(left, right) and matches(right, topic):
        assert matches(left, topic)
    assert overlap(left, right) == overlap(right, left)
    assert covers(left, left)


def test_a_topic_is_its_own_shard_by_default() -> None:
    mapping = TopicMapping()
    assert mapping.shard_for("a/b") == "a/b"
    assert mapping.shards_for("a/b") == ("a/b",)
    assert mapping.shards_for("a/#") == ("a/#",)


def test_the_first_matching_rule_wins() -> None:
    mapping = TopicMapping(
        [MappingRule("sensor/hot/#", prefix="hot", shards=1), MappingRule("sensor/#", prefix="cold", shards=1)]
    )
    assert mapping.shard_for("sensor/hot/1") == "hot/0"
    assert mapping.shard_for("sensor/x") == "cold/0"
    assert mapping.shards_for("sensor/+/1") == ("hot/+", "cold/+")
    assert mapping.shards_for("sensor/hot/+") == ("hot/+",)
    assert mapping.shards_for("#") == ("#",)  # It covers the folded shards, whose names do not begin with "$".


def test_folding_by_publisher_keeps_a_publisher_in_one_shard() -> None:
    mapping = TopicMapping([MappingRule("#", prefix="$p", shards=16, by="publisher")])
    assert mapping.shard_for("a", "client-1") == mapping.shard_for("b", "client-1")
    assert mapping.shards_for("a") == ("$p/+",)


def test_the_hash_is_the_same_on_every_broker_and_for_ever() -> None:
    rule = MappingRule("#", prefix="f", shards=1000)
    assert [rule.shard_for(topic, "") for topic in ("a", "host/x/cpu", "ü")] == ["f/376", "f/789", "f/775"]


@pytest.mark.parametrize("count", [0, -1, 65_537])
def test_a_rule_with_an_impossible_number_of_shards_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(count)):
        MappingRule("#", prefix="f", shards=count)


def test_a_rule_with_a_bad_filter_or_prefix_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        MappingRule("a#", prefix="f", shards=1)
    with pytest.raises(InvalidNameError):
        MappingRule("#", prefix="f/+", shards=1)


@pytest.mark.parametrize(
    ("shard", "named", "topic"),
    [
        ("a", "", "a"),
        ("a", "a", "a"),
        ("a", "secret/x", "a"),
        ("f/376", "fold/a", "f/376"),
        ("f/0", "fold/x", "fold/x"),
        ("f/1", "fold/x", "f/1"),
        ("f/0", "other", "f/0"),
        ("$p/0", "by/x", "by/x"),
        ("$p/3", "by/x", "by/x"),
        ("$p/4", "by/x", "$p/4"),
        ("$p/03", "by/x", "$p/03"),
        ("$p/x", "by/x", "$p/x"),
        ("$p/\u0663", "by/x", "$p/\u0663"),
        ("$p", "by/x", "$p"),
        ("$p/0", "fold/x", "$p/0"),
    ],
)
def test_a_record_is_of_a_topic_that_maps_to_its_shard_or_of_its_shard(shard: str, named: str, topic: str) -> None:
    rules_ = [MappingRule("fold/#", prefix="f", shards=1), MappingRule("by/#", prefix="$p", shards=4, by="publisher")]
    assert TopicMapping(rules_).topic_of(shard, named) == topic
