"""Rule sets: what is stored is what was meant, and what is said of two is all in which they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.bridge.config import BridgeTable
from broker_adapter.cache_queue import Overflow, QueueMode
from broker_adapter.mqtt.config import MappingTable, StorageTable
from broker_adapter.mqtt.model.storage_rules import Storage
from broker_adapter.mqtt.rules.differences import HIDDEN, differences, shown_tables
from broker_adapter.mqtt.rules.rule_set import RuleSet, SharedSection, parse_rules
from broker_adapter.mqtt.rules.stored import RULES_FOLLOWERS, RULES_KEY, RULES_SHARD, StoredFollower, StoredRules
from broker_adapter.state_forms import decode, encode
from journal.settings.values import ConfigurationError, kind_of

GOLDEN = Path(__file__).parents[2] / "golden" / "v1" / "mqtt_state"

FILTERS = st.sampled_from(["plant/#", "+/b", "a", "office/+/c"])
QOS = st.sets(st.integers(0, 2), min_size=1).map(lambda found: tuple(sorted(found)))
SECRET = "s3cret"
SINKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("http"), "url": st.sampled_from([f"http://{SECRET}.example/a", f"http://{SECRET}.example/b"])},
        optional={"token": st.just(SECRET), "timeout_s": st.integers(1, 3), "headers": st.just({"a": SECRET})},
    ),
    st.fixed_dictionaries({"type": st.just("files"), "directory": st.sampled_from(["/a", "/b"])}),
    st.fixed_dictionaries({"type": st.just("of-another-package"), "password": st.just(SECRET)}),
)
STORAGE = st.one_of(
    st.builds(StorageTable, FILTERS, QOS, st.sampled_from(Storage)),
    st.builds(StorageTable, FILTERS, QOS, st.none(), st.booleans()),
)
MAPPING = st.builds(
    MappingTable, FILTERS, st.sampled_from(["$a", "b"]), st.integers(1, 65_536), st.sampled_from(["topic", "publisher"])
)
BRIDGE = st.builds(
    BridgeTable,
    st.sampled_from("abc"),
    st.lists(FILTERS, min_size=1, max_size=2).map(tuple),
    SINKS,
    fields=st.sampled_from([{}, {"value": "$.value"}]),
    mode=st.sampled_from(QueueMode),
    max_bytes=st.sampled_from([0, 1 << 30, 5 << 20]),
    overflow=st.sampled_from(Overflow),
    max_outages=st.integers(0, 2),
)
RULE_SETS = st.builds(
    RuleSet,
    st.builds(SharedSection, st.booleans()),
    st.lists(STORAGE, max_size=3).map(tuple),
    st.lists(MAPPING, max_size=2).map(tuple),
    st.lists(BRIDGE, max_size=3, unique_by=lambda table: table.name).map(
        lambda found: tuple(sorted(found, key=lambda table: table.name))
    ),
)


@settings(deadline=None)
@given(RULE_SETS)
def test_stored_rules_are_read_back(rules: RuleSet) -> None:
    stored = StoredRules(3, rules.tables, 1_700_000_000_000_000, "anna@host")
    found = decode(StoredRules, RULES_KEY, encode(stored))
    assert found == stored
    assert found.rules == rules


@settings(deadline=None)
@given(RULE_SETS, RULE_SETS)
def test_differences_are_reported_exactly_if_there_are_any(first: RuleSet, second: RuleSet) -> None:
    assert not differences(first, first, "one", "other")
    told = differences(first, second, "one", "other")
    assert bool(told) == (first != second)
    for line in told:
        assert line.startswith(("[broker] offline is ", "[[storage]] number ", "[[mapping]] number ", "[[bridge]] "))
        assert "\n" not in line
        assert "one" in line
        assert "other" in line
    # From the other side as much is said.
    assert len(differences(second, first, "other", "one")) == len(told)


@settings(deadline=None)
@given(RULE_SETS, RULE_SETS)
def test_no_secret_is_shown(first: RuleSet, second: RuleSet) -> None:
    assert SECRET not in repr(differences(first, second, "one", "other"))
    assert SECRET not in repr(shown_tables(first))


@settings(deadline=None)
@given(RULE_SETS)
def test_what_is_shown_has_the_settings_of_what_is_stored(rules: RuleSet) -> None:
    shown, stored = shown_tables(rules), rules.tables
    assert shown.keys() == stored.keys()
    for table, whole in zip(shown.get("bridge", []), stored.get("bridge", []), strict=True):
        assert table.keys() == whole.keys()
        assert all(value in (whole["sink"][name], HIDDEN) for name, value in table["sink"].items())


def test_each_setting_of_each_table_is_stored_and_compared() -> None:
    """A setting that is added later must not be forgotten here: it is taken from the tables themselves."""
    tables: dict[str, Any] = {
        "storage": StorageTable("a", (0,), Storage.FILE, True),
        "mapping": MappingTable("a", "b", 1, "publisher"),
        "bridge": BridgeTable("a", ("a",), {"type": "files", "directory": "/a"}),
    }
    for name, table in tables.items():
        for attribute in attrs.fields(attrs.resolve_types(type(table))):
            if attribute.name in ("name", "drive"):
                continue
            changed = attrs.evolve(table, **{attribute.name: _another(attribute, getattr(table, attribute.name))})
            first, second = RuleSet(**{name: (table,)}), RuleSet(**{name: (changed,)})
            assert differences(first, second, "one", "other"), attribute.name
            assert parse_rules(second.tables, "it") == second


def _another(attribute: attrs.Attribute[Any], value: object) -> object:
    """A value that is allowed, other than this one."""
    given: dict[str, object] = {
        "topics": ("b",) if isinstance(value, tuple) else "b",
        "qos": (1,),
        "prefix": "c",
        "by": "topic",
        "sink": {"type": "files", "directory": "/b"},
        "fields": {"a": "topic"},
        "storage": Storage.NONE,
        "mode": QueueMode.HYBRID,
        "overflow": Overflow.DROP_OLDEST,
    }
    if attribute.name in given:
        return given[attribute.name]
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int), f"{attribute.name}: say here what else it may be ({kind_of(attribute.type)})"
    return value + 1


def test_the_golden_bytes_are_what_is_written_and_read_today() -> None:
    stored = StoredRules(
        version=7,
        tables={
            "broker": {"offline": False},
            "storage": [{"topics": "plant/+/temperature", "qos": [0, 1], "storage": "memory", "offline": False}],
            "mapping": [{"topics": "meters/#", "prefix": "$meters", "shards": 16}],
            "bridge": [
                {
                    "name": "warehouse",
                    "topics": ["plant/#"],
                    "sink": {"type": "http", "url": "http://127.0.0.1:8080/records"},
                    "fields": {"topic": "topic", "value": "$.value"},
                    "max_bytes": 20 << 30,
                    "overflow": "drop_oldest",
                }
            ],
        },
        applied_us=1_700_000_000_000_000,
        applied_by="anna@host",
    )
    assert encode(stored) == (GOLDEN / "rules.bin").read_bytes()
    assert stored.rules.tables == stored.tables
    follower = StoredFollower(7, "routes is unknown")
    assert encode(follower) == (GOLDEN / "rules_follower.bin").read_bytes()
    assert (RULES_KEY, RULES_FOLLOWERS, RULES_SHARD) == (b"mqtt/rules", b"mqtt/rules-at/", "$mqtt/rules")


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"routes": [{"from": "a"}]}, "routes"),
        ({"storage": [{"topics": "a", "colour": 1}]}, "colour"),
        ({"bridge": [{"name": "a", "topics": ["a"]}]}, "has no sink"),
        ({"mapping": [{"topics": "a", "prefix": "b", "shards": 0}]}, "out of bounds"),
        ({"broker": {"id": "a"}}, "id = 'a' is unknown"),
    ],
)
def test_rules_of_a_later_version_are_refused_by_name(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        _ = StoredRules(2, tables, 0, "").rules
