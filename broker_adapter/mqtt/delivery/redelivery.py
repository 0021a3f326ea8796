"""Reads single messages from the store again, by their place: those that an earlier connection did not finish."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import partial
from typing import Final

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import OffsetOutOfRangeError, ShardNotFoundError
from broker_adapter.mqtt.model.message import Message, message_of
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt.session import Retained
from broker_adapter.mqtt.session.retained import RETAINED_SHARD_PREFIX
from broker_adapter.topic_mapping import TopicOf
from shards.format.record import Gap

Place = tuple[str, int, int]
"""Shard, offset and lsn. A shard that was deleted and created again has the same offsets, but other lsns."""

_SPAN: Final = 512


async def fetch_messages(
    adapter: StorageAdapter, retained: Retained, places: Iterable[Place], topic_of: TopicOf
) -> dict[Place, Message]:
    """Read messages; those that are not in the store any more, or have expired, are left out.

    While the store cannot be reached it waits.

    Args:
        adapter: The store.
        retained: Store of retained messages.
        places: Where the messages are.
        topic_of: Tells the topics of records.
    """
    wanted = set(places)
    by_shard: dict[str, list[int]] = {}
    for shard, offset, _ in wanted:
        by_shard.setdefault(shard, []).append(offset)
    found: dict[Place, Message] = {}
    for shard, offsets in by_shard.items():
        if shard.startswith(RETAINED_SHARD_PREFIX):
            message = await until_reached(partial(retained.get, shard.removeprefix(RETAINED_SHARD_PREFIX)))
            # The topic may have another retained message now.
            if message is not None and (place := (shard, message.offset, message.lsn)) in wanted:
                found[place] = message
        else:
            await _fetch_from(adapter, shard, sorted(offsets), wanted, topic_of, found)
    return found


async def _fetch_from(
    adapter: StorageAdapter,
    shard: str,
    offsets: list[int],
    wanted: Container[Place],
    topic_of: TopicOf,
    found: dict[Place, Message],
) -> None:
    at = 0
    while at < len(offsets):
        first = offsets[at]
        span = next((offset for offset in reversed(offsets) if offset < first + _SPAN), first) - first + 1
        try:
            result = await until_reached(partial(adapter.read, shard, first, max_records=span))
        except ShardNotFoundError:
            return
        except OffsetOutOfRangeError as error:
            next_offset = error.start_offset if error.start_offset > first else offsets[-1] + 1
        else:
            for record in result.records:
                if not isinstance(record, Gap) and (place := (shard, record.offset, record.lsn)) in wanted:
                    found[place] = message_of(shard, record, topic_of(shard, record.topic))
            next_offset = max(result.next_offset, first + 1)
        while at < len(offsets) and offsets[at] < next_offset:
            at += 1
