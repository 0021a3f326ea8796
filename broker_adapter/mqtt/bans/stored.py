"""The stored forms of bans and their keys, see `broker_adapter.state_forms`; and the form that people see. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker_adapter.mqtt.access.bans import Ban, BanKind
from broker_adapter.mqtt.rules.report import time_text
from broker_adapter.mqtt.session.keys import part
from shards.model import Retention, ShardConfig
from shards.topics.names import BROKER_PREFIX

BANS_KEY: Final = b"mqtt/bans"
"""State key of the version of the bans; each change sets it by compare-and-set, so there is one at a time."""

BAN_PREFIX: Final = b"mqtt/ban/"
"""Prefix of the state keys of single bans."""

BANS_FOLLOWERS: Final = b"mqtt/bans-at/"
"""Prefix of the keys of the brokers' reports about the bans."""

BANS_SHARD: Final = f"{BROKER_PREFIX}bans"
"""Shard with a JSON record for each version. Brokers are subscribed to it."""

BANS_SHARD_CONFIG: Final = ShardConfig(retention=Retention(max_bytes=16 << 20), segment_bytes=1 << 20)


class BansVersion(msgspec.Struct, array_like=True, frozen=True):
    """The version of the bans of a store.

    Attributes:
        version: 1 after the first change, one more with each other one.
        by: Who made the last change, for people.
    """

    version: int
    by: str = ""


class StoredBan(msgspec.Struct, array_like=True, frozen=True):
    """A ban; see `Ban`."""

    kind: BanKind
    name: str
    until_us: int
    reason: str
    since_us: int
    by: str

    @classmethod
    def of(cls, ban: Ban) -> StoredBan:
        """The stored form of a ban."""
        return cls(ban.kind, ban.name, ban.until_us, ban.reason, ban.since_us, ban.by)

    @property
    def ban(self) -> Ban:
        """The ban."""
        return Ban(self.kind, self.name, self.until_us, self.reason, self.since_us, self.by)


class Announcement(msgspec.Struct, frozen=True):
    """A version of the bans as it is published in the shard `BANS_SHARD`, in JSON.

    Attributes:
        change: ``banned`` or ``unbanned``.
        kind: What is banned.
        name: Its name.
        by: Who made the change, for people.
    """

    version: int
    change: str
    kind: BanKind
    name: str
    by: str
    reason: str = ""
    until_us: int = 0


def ban_key(kind: BanKind, name: str) -> bytes:
    """State key of a ban."""
    return BAN_PREFIX + kind.encode() + b"/" + part(name)


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
