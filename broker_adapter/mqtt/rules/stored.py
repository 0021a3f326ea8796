"""The forms in which the rules lie in the store, and where; see `broker_adapter.state_forms`. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker_adapter.mqtt.rules.differences import shown_tables
from broker_adapter.mqtt.rules.rule_set import RuleSet, parse_rules
from shards.model import Retention, ShardConfig
from shards.topics.reserved_names import BROKER_PREFIX

RULES_KEY: Final = b"mqtt/rules"
"""State key of the rules that hold; changed by compare-and-set, in one commit with a record in `RULES_SHARD`."""

RULES_SHARD: Final = f"{BROKER_PREFIX}rules"
"""Shard with a JSON record for each version. Brokers are subscribed to it; it has no secrets."""

RULES_SHARD_CONFIG: Final = ShardConfig(retention=Retention(max_bytes=16 << 20), segment_bytes=1 << 20)

_FOLLOWERS: Final = b"mqtt/rules-at/"


class StoredRules(msgspec.Struct, array_like=True, frozen=True):
    """The rules of a store.

    Attributes:
        version: 1 for the first rules, one more with each change.
        tables: `RuleSet.tables`.
        applied_us: When they were put there.
        applied_by: Who did it, for people.
    """

    version: int
    tables: dict[str, dict[str, Any] | list[dict[str, Any]]]
    applied_us: int
    applied_by: str

    @property
    def rules(self) -> RuleSet:
        """The rules themselves.

        Raises:
            ConfigurationError: A newer version wrote them, with something that this one does not know.
        """
        return parse_rules(self.tables, f"the rules of the store, version {self.version}")


class StoredFollower(msgspec.Struct, array_like=True, frozen=True):
    """What one broker says of the rules.

    Attributes:
        version: Of the rules that it last looked at.
        problem: Why it goes by older ones; empty if it goes by these.
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
        """What is told of a version."""
        return cls(stored.version, stored.applied_us, stored.applied_by, changes, shown_tables(rules))


def follower_key(broker_id: str) -> bytes:
    """What a broker says of the rules; without an id, what these keys begin with."""
    return _FOLLOWERS + broker_id.encode()
