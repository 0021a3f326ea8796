"""A report of a store's rules and of the brokers that apply them, for output and programs. It has no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.rules.differences import shown_tables
from broker_adapter.mqtt.rules.followers import followers_of
from broker_adapter.mqtt.rules.store import read_rules
from broker_adapter.mqtt.rules.stored import StoredFollower, StoredRules

_MICROSECONDS: Final = 1_000_000


async def look(adapter: StorageAdapter) -> tuple[StoredRules | None, dict[str, StoredFollower | None]]:
    """The rules of a store, and what each of its brokers has reported about them."""
    return await read_rules(adapter), await followers_of(adapter)


def report(stored: StoredRules | None, followers: Mapping[str, StoredFollower | None]) -> dict[str, Any]:
    """The content of `journal-broker rules --json` and of GET on `/api/v1/rules` of a broker.

    Raises:
        ConfigurationError: The rules have something unknown to this version of the program.
    """
    return {
        **version_of(stored),
        "rules": {} if stored is None else shown_tables(stored.rules),
        "brokers": brokers(followers),
    }


def version_of(stored: StoredRules | None) -> dict[str, Any]:
    """Version of the rules, by whom and when they were applied."""
    return {
        "version": 0 if stored is None else stored.version,
        "applied_at": None if stored is None else time_text(stored.applied_us),
        "applied_by": None if stored is None else stored.applied_by,
    }


def brokers(followers: Mapping[str, StoredFollower | None]) -> list[dict[str, Any]]:
    """What each broker has reported about the rules."""
    return [
        {
            "broker": broker_id,
            "version": None if follower is None else follower.version,
            "problem": None if follower is None else follower.problem or None,
        }
        for broker_id, follower in followers.items()
    ]


def time_text(time_us: int) -> str:
    """A time in ISO 8601, in seconds."""
    return datetime.fromtimestamp(time_us // _MICROSECONDS, UTC).isoformat().replace("+00:00", "Z")
