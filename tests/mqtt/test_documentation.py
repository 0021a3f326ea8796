"""docs/mqtt.md shows settings that a broker takes, and the limits that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_adapter.mqtt.config import load_broker_config
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import FOLDED_SHARDS, LIVE_CONFIG
from broker_adapter.mqtt.model.topics import parse_filter, parse_topic
from broker_adapter.mqtt_codec import Version
from broker_adapter.mqtt_codec.property_section import MAX_USER_PROPERTIES
from broker_adapter.mqtt_codec.subscription_bodies import MAX_FILTERS
from shards.topics.names import MAX_SHARD_NAME_BYTES

TEXT = (Path(__file__).parents[2] / "docs" / "mqtt.md").read_text()
SETTINGS = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
LIMITS = dict(
    re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", TEXT.split("## Limits")[1].split("\n## ")[0], flags=re.MULTILINE)
)


@pytest.mark.parametrize("shown", SETTINGS)
def test_settings_that_are_shown_are_taken(shown: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(shown)
    load_broker_config(file)


def test_rules_and_access_are_shown() -> None:
    assert any("[[storage]]" in shown for shown in SETTINGS)
    assert any("[[access.rules]]" in shown for shown in SETTINGS)


def test_filters_and_topics_that_are_shown_are_taken() -> None:
    filters = re.findall(r"-t '(\$(?:replay|share)/[^']+)'", TEXT)
    assert filters
    for shown in filters:
        parse_filter(shown)
    assert parse_topic("$delayed/5/plant/x") == ("plant/x", 5)


def test_limits_are_those_of_the_code() -> None:
    limits = Limits()
    expected = {
        "packet": f"{limits.max_packet_bytes >> 20} MiB",
        "QoS 1 and 2 messages of a client that are not acknowledged": f"{limits.receive_maximum:,}",
        "messages to a client that it has not acknowledged": f"{limits.send_maximum:,}",
        "topic aliases": f"{limits.topic_alias_maximum} each way",
        "session expiry": f"{limits.max_session_expiry_s // 86_400} days",
        "subscriptions of a session": f"{limits.max_subscriptions:,}",
        "user properties of a packet": f"{MAX_USER_PROPERTIES:,}",
        "topic filters of a SUBSCRIBE or UNSUBSCRIBE": f"{MAX_FILTERS:,}",
        "delay of a message": f"{limits.max_delay_s // 86_400} days",
        "client identifier": f"{limits.max_client_id_bytes:,} bytes",
    }
    assert {name: LIMITS[name].startswith(value) for name, value in expected.items()} == dict.fromkeys(expected, True)


def test_places_are_those_of_the_code() -> None:
    assert f"`$mqtt/long/{FOLDED_SHARDS - 1}`" in TEXT
    assert f"longer than {MAX_SHARD_NAME_BYTES:,} bytes" in TEXT
    retention = LIVE_CONFIG.retention
    assert retention.max_bytes is not None
    assert f"({retention.max_bytes >> 20} MiB or {retention.max_age_s} s each)" in TEXT
    assert [version.name for version in Version] == ["V311", "V5"]
