"""Topics made of rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import Version, encode
from broker_adapter.mqtt_codec.packets import Publish
from broker_adapter.sinks.mqtt.topic_template import TopicTemplate


@pytest.mark.parametrize(
    ("template", "row", "topic"),
    [
        ("{topic}", {"topic": "a/b"}, "a/b"),
        ("plant-a/{topic}", {"topic": "a/b"}, "plant-a/a/b"),
        ("{a}/{b}/{a}", {"a": "x", "b": 7}, "x/7/x"),
        ("{a}", {"a": True}, "true"),
        ("{a}", {"a": 0.5}, "0.5"),
        ("{a}", {"a": b"bytes"}, "bytes"),
        ("fixed", {}, "fixed"),
        ("{{{a}}}", {"a": "x"}, "{x}"),
    ],
)
def test_a_row_has_a_topic(template: str, row: dict[str, Any], topic: str) -> None:
    assert TopicTemplate(template).topic(row) == topic


@pytest.mark.parametrize("template", ["", "a/+", "#", "a\x00", "{", "}", "{a", "a}", "{}", "{a b}", "{0}", "{a}{"])
def test_what_is_no_template(template: str) -> None:
    with pytest.raises(ValueError, match=r"topic|single"):
        TopicTemplate(template)


@pytest.mark.parametrize("value", [None, "", "a/+", "#", "a\x00b", "\ud800", b"\xff", [1], {"a": 1}, "x" * 65_536])
def test_values_that_make_no_topic(value: Any) -> None:
    with pytest.raises(ValueError, match="topic"):
        TopicTemplate("{a}").topic({"a": value})


@given(st.text(max_size=20), st.text(max_size=20), st.none() | st.integers() | st.text() | st.binary())
def test_whatever_comes_out_can_be_published(before: str, after: str, value: Any) -> None:
    template = before.replace("{", "{{").replace("}", "}}") + "{a}" + after.replace("{", "{{").replace("}", "}}")
    try:
        topic = TopicTemplate(template).topic({"a": value})
    except ValueError as error:
        assert len(str(error)) < 1000
        return
    assert topic.startswith(before)
    assert topic.endswith(after)
    assert encode(Publish(topic, b"", 1, packet_id=1), Version.V5)
