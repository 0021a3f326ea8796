"""What one broker does with the bans of its store: it replaces its own, ends connections, and writes the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.bans import Bans
from broker_adapter.mqtt.bans.follower import BansFollower
from broker_adapter.mqtt.bans.store import StoredBans

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


def ban_follower(
    adapter: StorageAdapter,
    broker_id: str,
    bans: Bans,
    end_connections: Callable[[], Awaitable[None]],
    audit: BrokerAudit,
) -> BansFollower:
    """What keeps a broker at the bans of its store.

    Args:
        adapter: The store.
        broker_id: This broker.
        bans: The bans of this broker, which are replaced.
        end_connections: Ends the connections of clients that are banned then.
        audit: Gets a line for each change, wherever it was made.
    """
    known: StoredBans | None = None

    async def change(stored: StoredBans) -> None:
        nonlocal known
        bans.replace(stored.bans.values())
        if known is not None:
            _record(known, stored, bans, audit)
        known = stored
        await end_connections()

    return BansFollower(adapter, change, broker_id)


def _record(before: StoredBans, after: StoredBans, bans: Bans, audit: BrokerAudit) -> None:
    for key, ban in after.bans.items():
        if before.bans.get(key) != ban:
            log.info("banned", ban=str(ban), by=ban.by, reason=ban.reason)
            audit.record("ban", by=ban.by, target=f"{ban.kind} {ban.name}", reason=ban.reason)
    # Of several changes at once only the last one is known by its maker.
    by = after.by if after.version == before.version + 1 else ""
    for key, ban in before.bans.items():
        if key not in after.bans and not bans.has_ended(ban):
            log.info("unbanned", ban=str(ban), by=by)
            audit.record("unban", by=by, target=f"{ban.kind} {ban.name}")
