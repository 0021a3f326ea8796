"""Levels of topics in a query: what is replaced, and that nothing else is."""

from __future__ import annotations

import pytest

from spark_export.cli.topic_levels import with_levels


@pytest.mark.parametrize(
    ("query", "replaced"),
    [
        ("select topic[0] from records", "select get(split(topic, '/'), 0) from records"),
        ("select Topic [ n + 1 ]", "select get(split(Topic , '/'),  n + 1 )"),
        ("select r.topic[1], s.r.topic[2]", "select get(split(r.topic, '/'), 1), get(split(s.r.topic, '/'), 2)"),
        ("select `r`.`topic`[1]", "select get(split(`r`.`topic`, '/'), 1)"),
        ("select topic[-1]", "select try_element_at(split(topic, '/'), -1)"),
        ("select topic[size(a[0])]", "select get(split(topic, '/'), size(a[0]))"),
        ("select topic[topic[0]]", "select get(split(topic, '/'), get(split(topic, '/'), 0))"),
    ],
)
def test_brackets_behind_topic_become_functions(query: str, replaced: str) -> None:
    found = with_levels(query)
    assert found is not None
    assert found.text == replaced


@pytest.mark.parametrize(
    "query",
    [
        "select topic from records",
        "select 'topic[0]' from records",
        'select "topic[0]" from records',
        "select 1 -- topic[0]",
        "select 1 /* topic[0] */",
        "select topics[0], my_topic[0], topic.a[0]",
        "select topic[0",
        "select 'open, topic[0]",
    ],
)
def test_anything_else_is_left_alone(query: str) -> None:
    assert with_levels(query) is None


def test_a_place_behind_a_level_is_found_again() -> None:
    query = "select topic[0], topic[1], here"
    found = with_levels(query)
    assert found is not None
    assert found.original_position(found.text.index("here")) == query.index("here")
    assert found.original_position(0) == 0
    assert found.original_position(found.text.index("split(")) == query.index("topic")
