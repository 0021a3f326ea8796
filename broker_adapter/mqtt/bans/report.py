"""Bans as they are shown to people and programs."""

from __future__ import annotations

from typing import Any

from broker_adapter.mqtt.access.bans import Ban
from broker_adapter.mqtt.rules.report import time_text


def shown_ban(ban: Ban) -> dict[str, Any]:
    """A ban in `journal-broker ban list --json` and in GET on `/api/v1/bans` of a broker."""
    return {
        "kind": ban.kind,
        "name": ban.name,
        "until": time_text(ban.until_us) if ban.until_us else None,
        "reason": ban.reason or None,
        "since": time_text(ban.since_us),
        "by": ban.by,
    }
