"""Brokers that follow what is the same at all brokers of a store: how they follow it, and their reports in the store.

What they report about, such as the rules, has versions, and a prefix of the keys of its reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import ShardNotFoundError, StorageError
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.rules.stored import RULES_FOLLOWERS, StoredFollower
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.store_retry import may_pass
from broker_adapter.state_forms import decode, encode
from shards.back_off import BackOff
from shards.model import ShardConfig

_LOOKS: Final = BackOff(0.02, 0.5, jitter=0.0)

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


async def follow(
    adapter: StorageAdapter,
    shard: str,
    config: ShardConfig,
    read: Callable[[], Awaitable[None]],
    *,
    final: tuple[type[StorageError], ...] = (),
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Read at the start, and again whenever a shard announces a change, until cancelled or the adapter is closed.

    While the store does not answer, it is tried again with growing delays.

    Args:
        adapter: The store.
        shard: Gets a record for each change; it is created if it is missing.
        config: For creating it.
        read: Reads what is stored now and applies it.
        final: Errors of ``read`` that end this at once.
        task_status: Notified after the first read.

    Raises:
        StorageError: An error of ``read`` or of the subscription that will not pass.
    """
    attempt = 0
    while True:
        try:
            await read()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await adapter.create_shard(shard, config, exist_ok=True)
            async with adapter.subscribe(shard) as subscription:
                # After the subscription has started, so that no change is missed between the two.
                await read()
                async for _ in subscription:
                    attempt = 0
                    await read()
        except ShardNotFoundError:
            log.warning("the shard that announces changes was deleted; it is created again", shard=shard)
        except StorageError as error:
            if isinstance(error, final) or not may_pass(error):
                raise
        else:
            return  # the adapter is being closed
        await trio.sleep(STORE_BACK_OFF.delay_s(attempt))
        attempt += 1


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
