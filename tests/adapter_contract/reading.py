"""Short forms that the contract tests share: take what a subscription delivers, read a shard to its end."""

from __future__ import annotations

import trio

from broker_adapter import Delivery, StorageAdapter, Subscription
from shards.format.record import Gap, StoredRecord
from tests.patience import PATIENCE_S

"""What has not happened after so long never will."""


def values_of(records: list[StoredRecord | Gap]) -> list[bytes]:
    assert not [record for record in records if isinstance(record, Gap)]
    return [record.value for record in records if isinstance(record, StoredRecord)]


def offsets_of(records: list[StoredRecord | Gap]) -> list[int]:
    return [record.offset for record in records if isinstance(record, StoredRecord)]


async def read_all(adapter: StorageAdapter, shard: str, start: int = 0) -> list[StoredRecord | Gap]:
    """Everything from an offset up to the present end."""
    found: list[StoredRecord | Gap] = []
    with trio.fail_after(PATIENCE_S):
        end = (await adapter.describe_shard(shard)).next_offset
        while start < end:
            result = await adapter.read(shard, start, max_wait_s=PATIENCE_S)
            found += result.records
            start = result.next_offset
    return found


async def next_delivery(subscription: Subscription, *, acknowledge: bool = False) -> Delivery:
    with trio.fail_after(PATIENCE_S):
        delivery = await subscription.__anext__()
        if acknowledge:
            await delivery.acknowledge()
    return delivery


async def take(subscription: Subscription, count: int) -> list[tuple[str, bytes]]:
    """The next records, as (shard, value), at least so many."""
    taken: list[tuple[str, bytes]] = []
    while len(taken) < count:
        delivery = await next_delivery(subscription)
        taken += [(delivery.shard, value) for value in values_of(delivery.records)]
    return taken


async def assert_silent(subscription: Subscription, wait_s: float = 0.05) -> None:
    """Nothing is delivered for a moment."""
    with trio.move_on_after(wait_s):
        delivery = await subscription.__anext__()
        raise AssertionError(f"delivered {delivery}")
