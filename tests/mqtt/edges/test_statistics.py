"""What `$SYS/broker/...` says, under the names that dashboards know from mosquitto."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt.model.statistics import BrokerStatistics, LoadAverage, SystemTopics, Traffic

LOADS = [
    f"load/{what}/{span}min"
    for what in (
        "messages/received",
        "messages/sent",
        "publish/received",
        "publish/sent",
        "publish/dropped",
        "bytes/received",
        "bytes/sent",
        "sockets",
        "connections",
    )
    for span in (1, 5, 15)
]


def values(statistics: BrokerStatistics, uptime_s: float = 0) -> dict[str, str]:
    told = SystemTopics(statistics, "journal-broker 1").values(uptime_s)
    return {topic.removeprefix("$SYS/broker/"): text.decode() for topic, text in told.items()}


def test_the_topics_have_the_names_that_mosquitto_gives_them() -> None:
    assert set(values(BrokerStatistics())) == {
        "version",
        "uptime",
        "clients/connected",
        "clients/total",
        "clients/maximum",
        "clients/expired",
        "subscriptions/count",
        "shared_subscriptions/count",
        "messages/received",
        "messages/sent",
        "publish/messages/received",
        "publish/messages/sent",
        "publish/messages/dropped",
        "publish/bytes/received",
        "publish/bytes/sent",
        "bytes/received",
        "bytes/sent",
        *LOADS,
    }


def test_every_counter_has_one_topic() -> None:
    """A counter without a topic, or two topics for the same one, are mistakes."""
    # What is kept by reason is for /metrics alone, and its page shows whole tables.
    names = {field.name for field in attrs.fields(BrokerStatistics)} - {"refused", "ended", "acknowledge_s"}
    before = values(BrokerStatistics())
    assert before["version"] == "journal-broker 1"
    shown_by: dict[str, list[str]] = {}
    for name in names:
        statistics = BrokerStatistics()
        match getattr(statistics, name):
            case Traffic() as traffic:
                traffic.messages[1], traffic.payload_bytes[2] = 7, 7
            case dict() as by_reason:
                by_reason["store"] = 7
            case _:
                setattr(statistics, name, 7)
        topics = SystemTopics(statistics, "journal-broker 1")
        topics.update(60)
        after = {topic.removeprefix("$SYS/broker/"): text.decode() for topic, text in topics.values(0).items()}
        shown_by[name] = [topic for topic in after if after[topic] != before[topic] and not topic.endswith("5min")]
        assert all(after[topic] == "7" for topic in shown_by[name] if not topic.startswith("load/"))
    assert shown_by == {
        "sockets_total": ["load/sockets/1min"],
        "connects_total": ["load/connections/1min"],
        "clients_connected": ["clients/total", "clients/connected"],
        "clients_maximum": ["clients/maximum"],
        "clients_expired": ["clients/expired"],
        "packets_received": ["messages/received", "load/messages/received/1min"],
        "packets_sent": ["messages/sent", "load/messages/sent/1min"],
        "received": ["publish/messages/received", "publish/bytes/received", "load/publish/received/1min"],
        "sent": ["publish/messages/sent", "publish/bytes/sent", "load/publish/sent/1min"],
        "dropped": ["publish/messages/dropped", "load/publish/dropped/1min"],
        "bytes_received": ["bytes/received", "load/bytes/received/1min"],
        "bytes_sent": ["bytes/sent", "load/bytes/sent/1min"],
        "subscriptions": ["subscriptions/count"],
        "shared_subscriptions": ["shared_subscriptions/count"],
    }


def test_clients_are_counted_as_they_come_and_go() -> None:
    statistics = BrokerStatistics()
    for _ in range(3):
        statistics.client_connected()
    statistics.client_disconnected()
    statistics.client_connected()
    statistics.client_disconnected()
    assert (statistics.clients_connected, statistics.clients_maximum, statistics.connects_total) == (2, 3, 4)


def test_the_time_since_the_start_is_in_seconds() -> None:
    assert values(BrokerStatistics(), 3725.4)["uptime"] == "3725 seconds"


@pytest.mark.parametrize("step_s", [1, 10, 60])
def test_a_load_comes_near_to_the_rate_at_which_the_counter_grows(step_s: int) -> None:
    load = LoadAverage()
    for elapsed_s in range(step_s, 61, step_s):
        load.update(5 * elapsed_s, step_s)
    assert load.averages == pytest.approx([300 * (1 - math.exp(-1 / span)) for span in (1, 5, 15)])
    for elapsed_s in range(60 + step_s, 60 * 60 * 3, step_s):
        load.update(5 * elapsed_s, step_s)
    assert load.averages == pytest.approx([300] * 3, rel=0.001)


@given(st.lists(st.tuples(st.integers(0, 1000), st.just(0.0) | st.floats(0.001, 100))))
def test_a_load_is_never_beyond_the_rates_that_were(steps: list[tuple[int, float]]) -> None:
    load = LoadAverage()
    count, highest, pending = 0, 0.0, 0
    for growth, elapsed_s in steps:
        count += growth
        pending += growth
        load.update(count, elapsed_s)
        if elapsed_s > 0:
            highest = max(highest, pending * 60 / elapsed_s)
            pending = 0
        assert all(0 <= average <= highest * 1.000001 for average in load.averages)
