"""Names are those of MQTT topics, and those that are in stores do not change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import InvalidNameError
from shards.topics.names import (
    BROKER_PREFIX,
    DEAD_LETTERS_SUFFIX,
    QUEUE_CURSOR,
    QUEUE_PREFIX,
    group_cursor,
    group_of_cursor,
    validate_name,
    validate_shard_name,
)

names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="+#"), min_size=1, max_size=100
).filter(lambda name: len(name.encode()) <= 1024)


@given(names)
def test_topic_names_are_shard_names(name: str) -> None:
    assert validate_shard_name(name) == name


@pytest.mark.parametrize("name", ["/", "a//b", " ", "$SYS/x", "é" * 512, "x" * 1024, ".", "..", "a b\u00a0c"])
def test_unusual_topic_names_are_shard_names(name: str) -> None:
    assert validate_shard_name(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty, it must have from 1 to 1024 bytes"),
        ("x" * 1025, "has 1025 bytes in UTF-8, it must have from 1 to 1024"),
        ("é" * 513, "has 1026 bytes"),
        ("a/+/b", r"has '\+' at character 2"),
        ("a/#", "has '#' at character 2"),
        ("a\0b", r"has '\\x00' at character 1"),
        ("tab\t", r"has '\\t' at character 3"),
        ("\x7f", "control characters"),
        ("\x85", "control characters"),
        ("\ud800", r"has '\\ud800' at character 0"),
    ],
)
def test_other_names_are_refused_with_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(InvalidNameError, match=message) as caught:
        validate_shard_name(name)
    str(caught.value).encode()


def test_other_things_may_have_wildcards_in_their_names_but_shorter_ones() -> None:
    assert validate_name("cursor name", "bridge+#") == "bridge+#"
    assert validate_name("group name", "x" * 255) == "x" * 255
    with pytest.raises(InvalidNameError, match=r"cursor name .xxx.* has 256 bytes"):
        validate_name("cursor name", "x" * 256)
    with pytest.raises(InvalidNameError, match=r"producer name 'a\\nb' has '\\n'"):
        validate_name("producer name", "a\nb")


def test_names_that_are_in_stores_do_not_change() -> None:
    assert (BROKER_PREFIX, QUEUE_PREFIX, DEAD_LETTERS_SUFFIX, QUEUE_CURSOR) == (
        "$mqtt/",
        "$queue/",
        "/dead-letters",
        "drained",
    )
    assert group_cursor("billing") == "group/billing"


@given(st.text(max_size=20))
def test_the_cursor_of_a_group_shows_the_group_and_others_show_none(name: str) -> None:
    assert group_of_cursor(group_cursor(name)) == name
    assert group_of_cursor(f"x{name}") is None
