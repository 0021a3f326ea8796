"""Rules say by topic and QoS whether and how a message is stored; every topic has a place."""

from __future__ import annotations

import pytest

from broker_adapter import MappingRule
from broker_adapter.mqtt.model.storage_rules import (
    LIVE_TARGET,
    BrokerTopicMapping,
    Placements,
    Storage,
    StorageRule,
    StorageRules,
)
from shards.model import Mode, Retention, ShardConfig
from shards.topics.topic_filters import matches

NONE, MEMORY, FILE = Storage.NONE, Storage.MEMORY, Storage.FILE


@pytest.mark.parametrize(
    ("rules", "topic", "by_qos", "mode"),
    [
        ([], "a", (NONE, FILE, FILE), Mode.FILE),
        ([StorageRule("a/#", FILE)], "a/b", (FILE, FILE, FILE), Mode.FILE),
        ([StorageRule("a/#", FILE)], "b", (NONE, FILE, FILE), Mode.FILE),
        ([StorageRule("#", MEMORY)], "b", (MEMORY, MEMORY, MEMORY), Mode.MEMORY),
        ([StorageRule("#", MEMORY, qos=[0, 1])], "b", (MEMORY, MEMORY, FILE), Mode.FILE),
        ([StorageRule("a", NONE, qos=[1]), StorageRule("#", MEMORY)], "a", (MEMORY, NONE, MEMORY), Mode.MEMORY),
        ([StorageRule("#", NONE)], "a", (NONE, NONE, NONE), Mode.MEMORY),
        ([StorageRule("a", offline=False), StorageRule("a", MEMORY)], "a", (MEMORY, MEMORY, MEMORY), Mode.MEMORY),
    ],
)
def test_the_first_rule_that_speaks_of_a_topic_and_qos_decides(
    rules: list[StorageRule], topic: str, by_qos: tuple[Storage, ...], mode: Mode
) -> None:
    found = StorageRules(rules).of_topic(topic)
    assert (found.by_qos, found.mode) == (by_qos, mode)


@pytest.mark.parametrize(
    ("rules", "cluster", "kept"),
    [
        ([], True, True),
        ([], False, False),
        ([StorageRule("a/#", offline=False)], True, False),
        ([StorageRule("a/#", offline=True)], False, True),
        ([StorageRule("a/#", FILE), StorageRule("#", offline=False)], True, False),
    ],
)
def test_whether_messages_wait_for_sessions_is_said_by_the_topic_before_the_cluster(
    rules: list[StorageRule], cluster: bool, kept: bool
) -> None:
    assert StorageRules(rules, offline=cluster).keeps_offline("a/b") is kept


def test_a_message_that_is_not_kept_goes_to_the_live_shards() -> None:
    placement = Placements(StorageRules(), BrokerTopicMapping()).of("a/b", 0, "client")
    assert matches(LIVE_TARGET, placement.shard)
    assert (placement.topic, placement.is_kept, placement.config.mode) == ("a/b", False, Mode.MEMORY)
    assert placement.config.retention.max_bytes


def test_a_topic_has_a_shard_of_its_own_in_the_strongest_mode_that_it_needs() -> None:
    placements = Placements(
        StorageRules([StorageRule("a", MEMORY, qos=[0])]),
        BrokerTopicMapping(),
        ShardConfig(retention=Retention(max_age_s=60)),
    )
    for qos in (0, 1):
        placement = placements.of("a", qos, "client")
        assert (placement.shard, placement.topic, placement.is_kept) == ("a", "", True)
        assert placement.config == ShardConfig(mode=Mode.FILE, retention=Retention(max_age_s=60))


@pytest.mark.parametrize("topic", ["a" * 1025, "a\x01b", "ä" * 600])
def test_a_topic_that_cannot_name_a_shard_shares_one(topic: str) -> None:
    mapping = BrokerTopicMapping()
    placement = Placements(StorageRules(), mapping).of(topic, 1, "client")
    assert placement.shard.startswith("$mqtt/long/")
    assert placement.topic == topic
    assert any(matches(target, placement.shard) for target in mapping.shards_for("#"))


def test_a_mapping_rule_takes_long_topics_too() -> None:
    mapping = BrokerTopicMapping([MappingRule("fleet/#", prefix="fleet-shards", shards=4)])
    topic = "fleet/" + "x" * 2000
    assert Placements(StorageRules(), mapping).of(topic, 1, "c").shard.startswith("fleet-shards/")
    assert mapping.shards_for("fleet/#") == ("fleet-shards/+",)
    assert mapping.shards_for("+/a") == ("+/a", "fleet-shards/+", "$mqtt/long/+")


def test_a_rule_by_publisher_places_each_publisher_by_itself() -> None:
    mapping = BrokerTopicMapping([MappingRule("#", prefix="by", shards=64, by="publisher")])
    placements = Placements(StorageRules(), mapping)
    assert len({placements.of("a", 1, f"client-{number}").shard for number in range(20)}) > 1
    assert {placements.of("a", 1, "client").topic} == {"a"}
