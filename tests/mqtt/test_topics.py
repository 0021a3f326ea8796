"""What topic names and filters ask for, and which are refused."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt.delivery.replays import parse_replay_start
from broker_adapter.mqtt.model.topics import FilterRequest, TopicRefusedError, parse_filter, parse_topic
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from shards.position import Start

NOW_US = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("a/+/#", FilterRequest("a/+/#")),
        ("$SYS/broker/uptime", FilterRequest("$SYS/broker/uptime")),
        ("$own/thing", FilterRequest("$own/thing")),
        ("$shared/x", FilterRequest("$shared/x")),
        ("$share/workers/a/#", FilterRequest("a/#", group="workers")),
        ("$share/workers//a", FilterRequest("/a", group="workers")),
        ("$replay/earliest/a/+", FilterRequest("a/+", replay_from="earliest")),
        ("$replay/-15m/#", FilterRequest("#", replay_from="-15m")),
    ],
)
def test_a_filter_says_what_it_asks_for(text: str, request_: FilterRequest) -> None:
    assert parse_filter(text) == request_


@pytest.mark.parametrize(
    ("text", "reason_code"),
    [
        ("$mqtt/live/1", ReasonCode.NOT_AUTHORIZED),
        ("$mqtt", ReasonCode.NOT_AUTHORIZED),
        ("$mqtt/#", ReasonCode.NOT_AUTHORIZED),
        ("$share/g/$mqtt/#", ReasonCode.NOT_AUTHORIZED),
        ("$replay/earliest/$mqtt/#", ReasonCode.NOT_AUTHORIZED),
        ("$share/g", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share/g/", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share//a", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share/g+/a", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share/g/$replay/0/a", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share/g/$SYS/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/earliest", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/earliest/$share/g/a", ReasonCode.TOPIC_FILTER_INVALID),
        ("$delayed/5/a", ReasonCode.TOPIC_FILTER_INVALID),
        ("a" * 1025, ReasonCode.TOPIC_FILTER_INVALID),
        ("a/b+", ReasonCode.TOPIC_FILTER_INVALID),
    ],
)
def test_invalid_filters_are_refused(text: str, reason_code: ReasonCode) -> None:
    with pytest.raises(TopicRefusedError) as refused:
        parse_filter(text)
    assert refused.value.reason_code == reason_code


@pytest.mark.parametrize(
    ("text", "topic", "delay_s"),
    [
        ("a/b", "a/b", None),
        ("a$/b", "a$/b", None),
        ("$delayed/0/a", "a", 0),
        ("$delayed/90/a/b", "a/b", 90),
        ("$delayed/4294967295//a", "/a", 4_294_967_295),
    ],
)
def test_a_topic_says_when_it_is_to_be_published(text: str, topic: str, delay_s: int | None) -> None:
    assert parse_topic(text) == (topic, delay_s)


@pytest.mark.parametrize(
    ("text", "reason_code"),
    [
        ("$SYS/broker/uptime", ReasonCode.NOT_AUTHORIZED),
        ("$SYS", ReasonCode.NOT_AUTHORIZED),
        ("$share/g/a", ReasonCode.NOT_AUTHORIZED),
        ("$replay/0/a", ReasonCode.NOT_AUTHORIZED),
        ("$mqtt/control", ReasonCode.NOT_AUTHORIZED),
        ("$own/thing", ReasonCode.NOT_AUTHORIZED),
        ("$delayed/5/$mqtt/control", ReasonCode.NOT_AUTHORIZED),
        ("$delayed/5/$SYS/a", ReasonCode.NOT_AUTHORIZED),
        ("$delayed/5", ReasonCode.TOPIC_NAME_INVALID),
        ("$delayed/5/", ReasonCode.TOPIC_NAME_INVALID),
        ("$delayed/-5/a", ReasonCode.TOPIC_NAME_INVALID),
        ("$delayed/4294967296/a", ReasonCode.TOPIC_NAME_INVALID),
        ("$delayed/5/$delayed/5/a", ReasonCode.TOPIC_NAME_INVALID),
    ],
)
def test_invalid_topics_are_refused(text: str, reason_code: ReasonCode) -> None:
    with pytest.raises(TopicRefusedError) as refused:
        parse_topic(text)
    assert refused.value.reason_code == reason_code


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start.earliest()),
        ("0", Start.offset(0)),
        ("123456", Start.offset(123_456)),
        ("-15m", Start.time(NOW_US - 900_000_000)),
        ("-1d12h", Start.time(NOW_US - 36 * 3_600_000_000)),
        ("-99999w", Start.time(0)),
        ("2023-11-14T22:13:20Z", Start.time(NOW_US)),
        ("2023-11-14T23:13:20.5+01:00", Start.time(NOW_US + 500_000)),
        ("2023-11-14T22:13:20", Start.time(NOW_US)),
        ("1950-01-01", Start.time(0)),
    ],
)
def test_a_replay_begins_where_the_client_says(text: str, start: Start) -> None:
    assert parse_replay_start(text, now_us=NOW_US) == start


@pytest.mark.parametrize("text", ["", "latest", "-", "-5", "15m", "-5y", "yesterday", "1" * 19, "2023-13-01", "-1m "])
def test_words_that_name_no_place_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="replay-from"):
        parse_replay_start(text, now_us=NOW_US)
