"""Settings become the parts of a broker that they describe."""

from __future__ import annotations

from pathlib import Path

import attrs

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.broker.composition import (
    access_control_of,
    access_rules_of,
    broker_id_of,
    limits_of,
    listener_limits_of,
    mapping_of,
    storage_rules_of,
    tls_of,
)
from broker_adapter.mqtt.config import BrokerConfig, BrokerSection, LimitsSection, load_broker_config
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import Storage
from broker_adapter.mqtt.rules.rule_set import RuleSet
from journal.access.authorization import Action
from journal.access.users import Cost, PasswordHash, write_user


def load(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return load_broker_config(path)


def test_without_settings_a_broker_has_the_defaults_of_its_parts() -> None:
    config = load_broker_config(None)
    assert limits_of(config.limits) == Limits()
    assert tls_of(config) is None
    assert storage_rules_of(RuleSet.of(config)).of_topic("a").by_qos == (Storage.NONE, Storage.FILE, Storage.FILE)
    assert mapping_of(RuleSet.of(config)).shard_for("a") == "a"


def test_every_limit_gets_where_it_holds() -> None:
    section = LimitsSection(**{field.name: number for number, field in enumerate(attrs.fields(LimitsSection), 2000)})
    limits, listener_limits = limits_of(section), listener_limits_of(section)
    for field in attrs.fields(LimitsSection):
        holder = listener_limits if field.name == "max_connections" else limits
        assert getattr(holder, field.name) == getattr(section, field.name), field.name
    assert listener_limits.handshake_timeout_s == section.connect_timeout_s
    assert listener_limits.max_message_bytes > section.max_packet_bytes


def test_an_id_that_is_made_up_is_a_new_one_each_time_and_a_valid_one() -> None:
    made_up = {broker_id_of(BrokerConfig()) for _ in range(10)}
    assert len(made_up) == 10
    for each in made_up:
        assert load_broker_config(None, {"broker.id": each}).broker.id == each
    assert broker_id_of(BrokerConfig(broker=BrokerSection(id="plant-1"))) == "plant-1"


def test_tables_become_rules_in_their_order(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [broker]
        offline = false
        [[storage]]
        topics = "a/+"
        qos = 1
        storage = "memory"
        [[storage]]
        topics = "a/#"
        storage = "none"
        offline = true
        [[mapping]]
        topics = "m/one"
        prefix = "one"
        shards = 1
        [[mapping]]
        topics = "m/#"
        prefix = "all"
        shards = 1
        by = "publisher"
        """,
    )
    rules, mapping = storage_rules_of(RuleSet.of(config)), mapping_of(RuleSet.of(config))
    assert rules.of_topic("a/b").by_qos == (Storage.NONE, Storage.MEMORY, Storage.NONE)
    assert rules.keeps_offline("a/b")
    assert not rules.keeps_offline("b")
    assert [mapping.shard_for(topic) for topic in ("m/one", "m/two", "x")] == ["one/0", "all/0", "x"]
    assert [rule.by for rule in mapping.rules] == ["topic", "publisher"]


async def test_users_and_rules_decide_who_may_do_what(tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    write_user(users, "anna", PasswordHash.of(b"secret", Cost(2, 1, 1)))
    config = load(
        tmp_path,
        f"""
        [access]
        users_file = "{users}"
        default = "deny"
        [[access.rules]]
        permission = "deny"
        topics = ["out/secret"]
        action = "subscribe"
        [[access.rules]]
        permission = "allow"
        topics = ["out/#"]
        [[access.rules]]
        permission = "allow"
        topics = "in/%u"
        action = "publish"
        user = "anna"
        client = "c"
        """,
    )
    access = access_control_of(config)
    anna = await access.authenticate("c", "anna", b"secret", "")
    assert anna == Principal("c", "anna")
    assert await access.authenticate("c", "anna", b"else", "") is None
    assert await access.authenticate("c", None, None, "") is None
    rules = access_rules_of(config)
    for principal, publish, subscribe in (
        (anna, {"out/a", "out/secret", "in/anna"}, {"out/a"}),
        (Principal("d", "anna"), {"out/a", "out/secret"}, {"out/a"}),
    ):
        permissions = rules.permissions_of(principal)
        topics = ("out/a", "out/secret", "in/anna", "in/bob")
        assert {topic for topic in topics if permissions.may(Action.APPEND, topic)} == publish
        assert {topic for topic in topics if permissions.may(Action.SUBSCRIBE, topic)} == subscribe
