"""Which brokers apply what is the same at all brokers of a store: their reports in the store.

What they report about, such as the rules, has versions, and a prefix of the keys of its reports.
"""

from __future__ import annotations

from typing import Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.rules.stored import RULES_FOLLOWERS, StoredFollower
from broker_adapter.mqtt.session import keys
from broker_adapter.state_forms import decode, encode
from shards.back_off import BackOff

_LOOKS: Final = BackOff(0.02, 0.5, jitter=0.0)


async def put_follower(
    adapter: StorageAdapter, broker_id: str, follower: StoredFollower, prefix: bytes = RULES_FOLLOWERS
) -> None:
    """Store a broker's report, and delete the reports of brokers that are gone.

    Raises:
        StorageError: The store does not answer.
    """
    await adapter.put_state(prefix + broker_id.encode(), encode(follower))
    others = await _followers(adapter, prefix)
    # Read afterwards: a broker has a lease before it reports here.
    running = await running_brokers(adapter)
    for other in others:
        if other != broker_id and other not in running:
            await adapter.delete_state(prefix + other.encode())


async def followers_of(adapter: StorageAdapter, prefix: bytes = RULES_FOLLOWERS) -> dict[str, StoredFollower | None]:
    """What each broker of the store has reported; None for one without a report.

    A dead broker is included until its lease has run out.

    Raises:
        StorageError: The store does not answer.
    """
    found = await _followers(adapter, prefix)
    return {broker_id: found.get(broker_id) for broker_id in await running_brokers(adapter)}


async def wait_followed(
    adapter: StorageAdapter, version: int, *, timeout_s: float, but: str = "", prefix: bytes = RULES_FOLLOWERS
) -> dict[str, StoredFollower | None]:
    """Wait until all brokers apply a version, or a later one.

    Args:
        timeout_s: How long to wait at most, in seconds.
        but: A broker that is not waited for.

    Returns:
        The brokers that do not apply it, by their id, with their reports.

    Raises:
        StorageError: The store does not answer.
    """
    deadline_s = trio.current_time() + timeout_s
    attempt = 0
    while True:
        behind = {
            broker_id: follower
            for broker_id, follower in (await followers_of(adapter, prefix)).items()
            if broker_id != but and (follower is None or follower.version < version or follower.problem)
        }
        if not behind or trio.current_time() >= deadline_s:
            return behind
        await trio.sleep(_LOOKS.delay_s(attempt))
        attempt += 1


async def running_brokers(adapter: StorageAdapter) -> list[str]:
    """Ids of the brokers that have a lease, sorted; a dead broker is included until its lease has run out."""
    return [value.key.removeprefix(keys.BROKERS).decode() async for value in adapter.scan_state(keys.BROKERS)]


async def _followers(adapter: StorageAdapter, prefix: bytes) -> dict[str, StoredFollower]:
    return {
        value.key.removeprefix(prefix).decode(): decode(StoredFollower, value.key, value.value)
        async for value in adapter.scan_state(prefix)
    }
