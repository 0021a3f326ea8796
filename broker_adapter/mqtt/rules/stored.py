"""The stored forms of the rules, and their keys; see `broker_adapter.state_forms`. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker_adapter.mqtt.rules.differences import shown_tables
from broker_adapter.mqtt.rules.rule_set import RuleSet, parse_rules
from shards.model import Retention, ShardConfig
from shards.topics.names import BROKER_PREFIX

RULES_KEY: Final = b"mqtt/rules"
"""State key of the present rules; changed by compare-and-set, in one commit with a record in `RULES_SHARD`."""

RULES_SHARD: Final = f"{BROKER_PREFIX}rules"
"""Shard with a JSON record for each version. Brokers are subscribed to it; it has no secrets."""

RULES_SHARD_CONFIG: Final = ShardConfig(retention=Retention(max_bytes=16 << 20), segment_bytes=1 << 20)

RULES_FOLLOWERS: Final = b"mqtt/rules-at/"
"""Prefix of the keys of the brokers' reports about the rules."""


class StoredRules(msgspec.Struct, array_like=True, frozen=True):
    """The rules of a store.

    Attributes:
        version: 1 for the first rules, one more with each change.
        tables: `RuleSet.tables`.
        applied_us: When they were stored, in microseconds since 1970.
        applied_by: Who stored them, for people.
    """

    version: int
    tables: dict[str, dict[str, Any] | list[dict[str, Any]]]
    applied_us: int
    applied_by: str

    @property
    def rules(self) -> RuleSet:
        """The rules as a rule set.

        Raises:
            ConfigurationError: They have something unknown to this version of the program.
        """
        return parse_rules(self.tables, f"the rules of the store, version {self.version}")


class StoredFollower(msgspec.Struct, array_like=True, frozen=True):
    """A broker's report about what all brokers apply, such as the rules.

    Attributes:
        version: The version that it read last.
        problem: Why it applies older ones; empty if it applies these.
    """

    version: int
    problem: str = ""


class Announcement(msgspec.Struct, frozen=True):
    """A version of the rules as it is published in the shard `RULES_SHARD`, in JSON.

    Attributes:
        rules: The rules without secrets, as `differences.shown_tables` returns them.
        changes: The differences to the previous version.
    """

    version: int
    applied_us: int
    applied_by: str
    changes: list[str]
    rules: dict[str, Any]

    @classmethod
    def of(cls, stored: StoredRules, rules: RuleSet, changes: list[str]) -> Announcement:
        """The announcement of a version."""
        return cls(stored.version, stored.applied_us, stored.applied_by, changes, shown_tables(rules))
