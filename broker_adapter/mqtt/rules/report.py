"""A report of the rules of a store and of the brokers that follow them, for people and programs. It has no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.rules.differences import shown_tables
from broker_adapter.mqtt.rules.store import followers_of, read_rules
from broker_adapter.mqtt.rules.stored import StoredFollower, StoredRules

_MICROSECONDS: Final = 1_000_000


async def look(adapter: StorageAdapter) -> tuple[StoredRules | None, dict[str, StoredFollower | None]]:
    """The rules of a store, and what each of its brokers says of them."""
    return await read_rules(adapter), await followers_of(adapter)


def report(stored: StoredRules | None, followers: Mapping[str, StoredFollower | None]) -> dict[str, Any]:
    """What `journal-broker rules --json` and GET on `/api/v1/rules` of a broker tell.

    Raises:
        ConfigurationError: A newer version wrote the rules, with something that this one does not know.
    """
    return {
        **version_of(stored),
        "rules": {} if stored is None else shown_tables(stored.rules),
        "brokers": brokers(followers),
    }


def version_of(stored: StoredRules | None) -> dict[str, Any]:
    """Which rules they are, by whom and since when."""
    return {
        "version": 0 if stored is None else stored.version,
        "applied_at": None if stored is None else time_text(stored.applied_us),
        "applied_by": None if stored is None else stored.applied_by,
    }


def brokers(followers: Mapping[str, StoredFollower | None]) -> list[dict[str, Any]]:
    """What each broker says of the rules."""
    return [
        {
            "broker": broker_id,
            "version": None if told is None else told.version,
            "problem": None if told is None else told.problem or None,
        }
        for broker_id, told in followers.items()
    ]


def time_text(time_us: int) -> str:
    """A time in ISO 8601, to the second."""
    return datetime.fromtimestamp(time_us // _MICROSECONDS, UTC).isoformat().replace("+00:00", "Z")
