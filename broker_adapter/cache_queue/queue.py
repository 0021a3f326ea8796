"""A cache queue in the store: making it, its operator's wishes, looking at it, and keeping it within its bounds.

What goes in is `writer`, what comes out is `drain`, who may take it out is `lease`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.dead_letters import count_dead_letters
from broker_adapter.cache_queue.errors import QueueNotFoundError
from broker_adapter.cache_queue.gauge import Depth, depth_of, offset_with_bytes_behind
from broker_adapter.cache_queue.settings import Overflow, QueueMode, QueueSettings
from broker_adapter.cache_queue.stored import Definition, Lease, Status, WriterCounts
from broker_adapter.state_forms import decode, encode
from shards.errors import InvalidRequestError, OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from shards.model import Cursor, Mode, ShardInfo
from shards.record import StoredRecord

_BACK_TO_MEMORY = 4
"""A hybrid queue goes back to memory when it holds less than this part of what it may hold there."""

_ID_BYTES = 8


@attrs.frozen(slots=True)
class QueueState:
    """A queue as an operator sees it.

    Attributes:
        name: Its name.
        definition: What it is.
        shard: Its shard, with segments.
        depth: What waits.
        oldest_us: When the oldest record that waits was appended; 0 if none waits.
        status: What its driver last said; None if it never had one.
        lease: Who drives it; None if nobody ever did.
        writers: By writer, what it did not put in.
        dead_letter_count: Refused records that are kept.
    """

    name: str
    definition: Definition
    shard: ShardInfo
    depth: Depth
    oldest_us: int
    status: Status | None
    lease: Lease | None
    writers: dict[str, WriterCounts]
    dead_letter_count: int


def settings_of(definition: Definition) -> QueueSettings:
    """The settings that a definition holds. Names that this program does not know are left out."""
    known = attrs.fields_dict(QueueSettings)
    values: dict[str, Any] = {name: value for name, value in definition.settings.items() if name in known}
    values["mode"] = QueueMode(values.get("mode", QueueMode.FILE))
    values["overflow"] = Overflow(values.get("overflow", Overflow.REJECT))
    return QueueSettings(**values)


async def ensure_queue(adapter: StorageAdapter, name: str, settings: QueueSettings) -> Definition:
    """Make a queue, or give one that is there these settings.

    Its shard may have been deleted: then the queue begins anew, with another id.

    Raises:
        InvalidNameError: The name cannot be a queue's.
    """
    names.check_name(name)
    shard = await adapter.create_shard(names.shard_of(name), settings.shard_config, exist_ok=True)
    wanted = {key: _plain(value) for key, value in attrs.asdict(settings).items()}
    before = await _decoded(adapter, names.definition_key(name), Definition)
    if before is None or before.shard_id != shard.shard_id:
        # What a driver counted was the end of other records.
        await adapter.delete_state(names.status_key(name))

    def change(found: Definition | None) -> Definition:
        if found is None or found.shard_id != shard.shard_id:
            return Definition(secrets.token_hex(_ID_BYTES), shard.shard_id, wanted)
        if found.settings == wanted:
            return found
        return Definition(found.queue_id, found.shard_id, wanted, found.is_paused, found.wake_count, found.purged_count)

    return await _change_definition(adapter, name, change)


async def definition_of(adapter: StorageAdapter, name: str) -> Definition:
    """What a queue is.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    key = names.definition_key(names.check_name(name))
    found = await adapter.get_state(key)
    if found is None:
        raise QueueNotFoundError(f"there is no cache queue {name!r}; `journal queue list` names those that are there")
    return decode(Definition, key, found.value)


async def list_queues(adapter: StorageAdapter) -> list[str]:
    """Names of all queues, sorted."""
    return [names.queue_of(value.key) async for value in adapter.scan_state(names.DEFINITIONS)]


async def change_queue(
    adapter: StorageAdapter,
    name: str,
    *,
    is_paused: bool | None = None,
    wake: bool = False,
    purged_count: int = 0,
) -> Definition:
    """Store what an operator wants of a queue.

    Args:
        is_paused: Whether records are kept from the sink; None leaves it as it is.
        wake: Have the sink tried at once, even if it was just out.
        purged_count: Records that were thrown away.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    await definition_of(adapter, name)

    def change(found: Definition | None) -> Definition:
        if found is None:
            raise QueueNotFoundError(f"the cache queue {name!r} is gone")
        return Definition(
            found.queue_id,
            found.shard_id,
            found.settings,
            found.is_paused if is_paused is None else is_paused,
            found.wake_count + wake,
            found.purged_count + purged_count,
        )

    return await _change_definition(adapter, name, change)


async def purge_queue(adapter: StorageAdapter, name: str) -> int:
    """Throw away all that waits now; return how many records that was. Whoever drives the queue goes on behind it.

    What is on its way to the sink may still arrive there.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    await definition_of(adapter, name)
    shard = names.shard_of(name)
    counted = 0
    while True:
        info, cursor = await adapter.describe_shard(shard), await adapter.get_cursor(shard, names.CURSOR)
        depth = depth_of(info, 0 if cursor is None else cursor.offset)
        # Counted first: a driver that finds its cursor moved has to find out what has become of the records.
        if depth.record_count != counted:
            await change_queue(adapter, name, purged_count=depth.record_count - counted)
            counted = depth.record_count
        if not counted:
            return 0
        try:
            await adapter.commit_cursor(
                shard, names.CURSOR, info.next_offset, expected_version=0 if cursor is None else cursor.version
            )
        except VersionConflictError:
            # The driver confirmed something meanwhile, so fewer are thrown away.
            continue
        break
    await adapter.trim(shard, info.next_offset)
    return counted


async def delete_queue(adapter: StorageAdapter, name: str) -> None:
    """Remove a queue with all that waits in it and its dead letters.

    Raises:
        QueueNotFoundError: There is none of that name.
        InvalidRequestError: Somebody drives it.
    """
    await definition_of(adapter, name)
    lease = await _decoded(adapter, names.lease_key(name), Lease)
    if lease is not None and lease.holder:
        raise InvalidRequestError(
            f"the cache queue {name!r} is driven by {lease.holder}; take its [[bridge]] out of the configuration first"
        )
    writers = [value.key async for value in adapter.scan_state(names.writers_prefix(name))]
    others = (names.lease_key(name), names.request_key(name), names.status_key(name), names.letters_done_key(name))
    for key in (names.definition_key(name), *others, *writers):
        await adapter.delete_state(key)
    for shard in (names.shard_of(name), names.dead_letters_of(name)):
        try:
            await adapter.delete_shard(shard)
        except ShardNotFoundError:
            continue


async def look(adapter: StorageAdapter, name: str) -> QueueState:
    """See how a queue is doing.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    definition = await definition_of(adapter, name)
    shard = names.shard_of(name)
    try:
        info, cursor = await adapter.describe_shard(shard), await adapter.get_cursor(shard, names.CURSOR)
    except ShardNotFoundError as error:
        raise QueueNotFoundError(f"the shard {shard!r} of the cache queue {name!r} was deleted") from error
    depth = depth_of(info, 0 if cursor is None else cursor.offset)
    prefix = names.writers_prefix(name)
    writers = {
        value.key.removeprefix(prefix).decode(): decode(WriterCounts, value.key, value.value)
        async for value in adapter.scan_state(prefix)
    }
    return QueueState(
        name,
        definition,
        info,
        depth,
        await _oldest_us(adapter, shard, depth),
        await _decoded(adapter, names.status_key(name), Status),
        await _decoded(adapter, names.lease_key(name), Lease),
        writers,
        await count_dead_letters(adapter, name),
    )


async def keep_within_bounds(
    adapter: StorageAdapter, name: str, settings: QueueSettings, info: ShardInfo, cursor: Cursor | None
) -> Depth:
    """Drop the oldest records that there is no room for, and choose where a hybrid queue's next records lie.

    Any number of writers and drivers may do so at once: all come to the same.

    Args:
        info: The queue's shard, with segments, as it was just now.
        cursor: The queue's cursor.

    Returns:
        What waits now.
    """
    depth = depth_of(info, 0 if cursor is None else cursor.offset)
    if settings.overflow is Overflow.DROP_OLDEST:
        first_offset = depth.first_offset
        if settings.max_records:
            first_offset = max(first_offset, info.next_offset - settings.max_records)
        if settings.max_bytes:
            first_offset = max(first_offset, offset_with_bytes_behind(info, depth, settings.max_bytes))
        if first_offset > depth.first_offset:
            info = await adapter.trim(names.shard_of(name), first_offset)
            depth = depth_of(info, first_offset)
    if settings.mode is QueueMode.HYBRID:
        mode = info.config.mode
        if mode is Mode.MEMORY and depth.size_bytes > settings.memory_bytes:
            await adapter.set_mode(names.shard_of(name), Mode.FILE)
        elif mode is Mode.FILE and depth.size_bytes * _BACK_TO_MEMORY <= settings.memory_bytes:
            await adapter.set_mode(names.shard_of(name), Mode.MEMORY)
    return depth


async def _change_definition(
    adapter: StorageAdapter, name: str, change: Callable[[Definition | None], Definition]
) -> Definition:
    key = names.definition_key(name)
    while True:
        found = await adapter.get_state(key)
        before = None if found is None else decode(Definition, key, found.value)
        after = change(before)
        if after == before:
            return after
        try:
            await adapter.put_state(key, encode(after), expected_version=0 if found is None else found.version)
        except VersionConflictError:
            continue
        return after


async def _decoded(adapter: StorageAdapter, key: bytes, kind: type[Any]) -> Any:
    found = await adapter.get_state(key)
    return None if found is None else decode(kind, key, found.value)


async def _oldest_us(adapter: StorageAdapter, shard: str, depth: Depth) -> int:
    first_offset = depth.first_offset
    while first_offset < depth.next_offset:
        try:
            oldest = await adapter.read(shard, first_offset, max_records=1)
        except OffsetOutOfRangeError as error:
            # It was brought to the sink, and dropped, since the depth was seen.
            first_offset = max(error.start_offset, first_offset + 1)
            continue
        return next((record.append_time_us for record in oldest.records if isinstance(record, StoredRecord)), 0)
    return 0


def _plain(value: object) -> str | int:
    return value if isinstance(value, int) else str(value)
