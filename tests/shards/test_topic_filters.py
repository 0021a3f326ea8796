"""Filters match what MQTT says, and the indexes find what matching one by one would."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shards.errors import InvalidNameError
from shards.topics.filter_index import FilterIndex, TopicIndex
from shards.topics.topic_filters import is_filter, literal_prefix, matches, matches_all_between, validate_filter

levels = st.sampled_from(["", "a", "b", "a-b", "a0", "a.b", "$SYS", "é"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
wild_levels = levels | st.just("+")
filters = (
    st.tuples(st.lists(wild_levels, max_size=4), st.booleans())
    .map(lambda parts: "/".join([*parts[0], *(["#"] if parts[1] else [])]))
    .filter(bool)
)


def oracle(topic_filter: str) -> re.Pattern[str]:
    """Return the rules of MQTT as one expression, replaced into the filter's text."""
    expression = re.escape(topic_filter)
    expression = re.sub(r"(^|/)\\\+(?=/|$)", r"\1[^/]*", expression)
    expression = re.sub(r"/\\#$", r"(/.*)?", expression)
    expression = re.sub(r"^\\#$", r".*", expression)
    return re.compile(rf"(?!\$){expression}" if re.match("[+#]", topic_filter) else expression)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_match"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "any/thing", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("a/$x/+", "a/$x/y", True),
        ("a/+", "a/$x", True),
        ("Accounts", "ACCOUNTS", False),
    ],
)
def test_the_examples_of_the_standard_hold(topic_filter: str, topic: str, is_match: bool) -> None:
    assert matches(topic_filter, topic) is is_match
    assert index_of({topic_filter: 1}).match(topic) == ([1] if is_match else [])
    assert TopicIndex([topic]).match(topic_filter) == ([topic] if is_match else [])


def index_of(pairs: dict[str, int]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for topic_filter, value in pairs.items():
        index.add(topic_filter, value)
    return index


@given(filters, topics)
def test_matching_equals_a_regular_expression(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) == bool(oracle(topic_filter).fullmatch(topic))


@given(filters, topics)
def test_what_matches_begins_with_the_literal_prefix(topic_filter: str, topic: str) -> None:
    if matches(topic_filter, topic):
        prefix = literal_prefix(topic_filter)
        assert topic.startswith(prefix) or f"{topic}/" == prefix


@given(st.lists(filters, max_size=20), topics)
def test_the_filter_index_finds_what_matching_one_by_one_finds(all_filters: list[str], topic: str) -> None:
    index: FilterIndex[int] = FilterIndex()
    for number, topic_filter in enumerate(all_filters):
        index.add(topic_filter, number)
    expected = [number for number, topic_filter in enumerate(all_filters) if matches(topic_filter, topic)]
    assert sorted(index.match(topic)) == expected


@given(st.lists(topics, max_size=20), filters)
def test_the_topic_index_finds_what_matching_one_by_one_finds(all_topics: list[str], topic_filter: str) -> None:
    expected = sorted({topic for topic in all_topics if matches(topic_filter, topic)})
    assert TopicIndex(all_topics).match(topic_filter) == expected


@given(st.lists(topics, max_size=20), filters, topics | st.just(""), st.integers(1, 3))
def test_a_listing_can_go_on_where_it_ended(all_topics: list[str], topic_filter: str, after: str, limit: int) -> None:
    index = TopicIndex(all_topics)
    expected = [topic for topic in index.match(topic_filter) if topic > after]
    pages: list[str] = []
    while page := index.match(topic_filter, after=after, limit=limit):
        pages += page
        after = page[-1]
    assert pages == expected


@given(st.lists(topics, max_size=20), filters, topics | st.just(""), st.integers(1, 3))
def test_a_scan_looks_at_few_topics_at_a_time_and_finds_the_same(
    all_topics: list[str], topic_filter: str, after: str, most: int
) -> None:
    """A filter that begins with a wildcard was compared with every name there is in one step."""
    index = TopicIndex(all_topics)
    expected = [topic for topic in index.match(topic_filter) if topic > after]
    found: list[str] = []
    at: str | None = after
    steps = 0
    while at is not None:
        some, at = index.scan(topic_filter, at, most)
        assert len(some) <= most
        found += some
        steps += 1
    assert found == expected
    assert steps <= len(index) // most + 1


class IndexesAgainstSets(RuleBasedStateMachine):
    """Adding and discarding in any order leaves just what a plain set would hold, and nothing of what went."""

    def __init__(self) -> None:
        super().__init__()
        self.filters: FilterIndex[int] = FilterIndex()
        self.topics = TopicIndex()
        self.pairs: set[tuple[str, int]] = set()
        self.names: set[str] = set()

    @rule(topic_filter=filters, value=st.integers(0, 2))
    def add_filter(self, topic_filter: str, value: int) -> None:
        assert self.filters.add(topic_filter, value) == ((topic_filter, value) not in self.pairs)
        self.pairs.add((topic_filter, value))

    @rule(topic_filter=filters, value=st.integers(0, 2))
    def discard_filter(self, topic_filter: str, value: int) -> None:
        assert self.filters.discard(topic_filter, value) == ((topic_filter, value) in self.pairs)
        self.pairs.discard((topic_filter, value))

    @rule(topic=topics)
    def add_topic(self, topic: str) -> None:
        self.topics.add(topic)
        self.names.add(topic)

    @rule(topic=topics)
    def discard_topic(self, topic: str) -> None:
        self.topics.discard(topic)
        self.names.discard(topic)

    @rule(topic=topics, topic_filter=filters)
    def look(self, topic: str, topic_filter: str) -> None:
        expected = sorted(value for held, value in self.pairs if matches(held, topic))
        assert sorted(self.filters.match(topic)) == expected
        assert self.topics.match(topic_filter) == sorted(name for name in self.names if matches(topic_filter, name))

    @invariant()
    def same_size(self) -> None:
        assert len(self.filters) == len(self.pairs)
        assert list(self.topics) == sorted(self.names)

    def teardown(self) -> None:
        for topic_filter, value in self.pairs:
            self.filters.discard(topic_filter, value)
        assert self.filters.is_empty


TestIndexesAgainstSets = IndexesAgainstSets.TestCase


@pytest.mark.parametrize("topic_filter", ["a", "+", "#", "/", "+/+/#", "a/+/b", "/#", "$SYS/+"])
def test_good_filters_are_accepted(topic_filter: str) -> None:
    assert validate_filter(topic_filter) == topic_filter
    assert is_filter(topic_filter) == ("+" in topic_filter or "#" in topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "message"),
    [
        ("", "empty"),
        ("a/b#", "'#' elsewhere"),
        ("#/a", "'#' elsewhere"),
        ("a/#/#", "'#' elsewhere"),
        ("##", "'#' elsewhere"),
        ("a+/b", r"'\+' within a level"),
        ("++", "within a level"),
        ("+#", "within a level"),
        ("a\0", "control characters"),
        ("x" * 1025, "1025 bytes"),
    ],
)
def test_bad_filters_are_refused_with_what_is_wrong(topic_filter: str, message: str) -> None:
    with pytest.raises(InvalidNameError, match=message):
        validate_filter(topic_filter)
    with pytest.raises(InvalidNameError, match=message):
        FilterIndex[int]().add(topic_filter, 1)
    with pytest.raises(InvalidNameError, match=message):
        TopicIndex().match(topic_filter)


@given(st.text(max_size=12))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        validate_filter(text)
    except InvalidNameError as error:
        str(error).encode()
        return
    assert isinstance(matches(text, "a/b"), bool)


@given(st.lists(st.text(st.sampled_from("#$%a\x00é\U0010ffff"), min_size=1, max_size=3), min_size=1))
def test_bounds_tell_whether_all_names_between_them_are_matched_by_a_number_sign(names: list[str]) -> None:
    ordered = sorted(names, key=str.encode)
    matches_all = matches_all_between([(ordered[0], ordered[-1])])
    assert not matches_all or all(matches("#", name) for name in names)
    assert matches_all == (all(name[0] > "$" for name in names) or all(name[0] < "$" for name in names))


def test_without_bounds_there_may_be_names_that_no_number_sign_matches() -> None:
    assert not matches_all_between([("a", "b"), None])
