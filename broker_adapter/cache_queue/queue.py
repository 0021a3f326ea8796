"""A cache queue in the store: creation, settings, operators' requests, its state, and enforcement of its bounds.

Records are put in by `writer` and taken out by `drain`; `lease` decides which process may take them out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.dead_letters import count_dead_letters
from broker_adapter.cache_queue.errors import QueueNotFoundError
from broker_adapter.cache_queue.gauge import Depth, depth_of, offset_with_bytes_behind, offset_with_records_behind
from broker_adapter.cache_queue.lease import LeaseSettings
from broker_adapter.cache_queue.progress import added, known_ends, left_behind, read_progress
from broker_adapter.cache_queue.settings import Overflow, QueueMode, QueueSettings
from broker_adapter.cache_queue.stored import Definition, KnownEnd, Lease, Progress, Status, WriterCounts
from broker_adapter.changes import Changes, StateDelete
from broker_adapter.errors import InvalidRequestError, OffsetOutOfRangeError, ShardNotFoundError, VersionConflictError
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.state_forms import decode, encode
from shards.format.record import StoredRecord
from shards.model import Mode, ShardInfo
from shards.topics.names import QUEUE_DEFINITIONS

_BACK_TO_MEMORY = 4
"""A hybrid queue returns to memory when it holds less than this part of its limit in memory."""

_ID_BYTES = 8

_DELETING = "journal queue delete"
"""Holder of a queue's lease while it is deleted."""


@attrs.frozen(slots=True)
class QueueState:
    """The state of a queue, for operators.

    Attributes:
        name: Its name.
        definition: Its definition.
        shard: Its shard, with segments.
        progress: Its confirmed offset, and the outcomes of records.
        depth: The records that wait.
        lost_count: Records that waited in memory and are lost, in addition to those counted in ``progress``.
        oldest_us: When the oldest waiting record was appended, in microseconds since 1970; 0 if none waits.
        status: Last report of its driver; None if it never had one.
        lease: Its lease; None if it never had a driver.
        writers: By writer, counts of records that were not put in.
        dead_letter_count: Dead letters that are kept.
    """

    name: str
    definition: Definition
    shard: ShardInfo
    progress: Progress
    depth: Depth
    lost_count: int
    oldest_us: int
    status: Status | None
    lease: Lease | None
    writers: dict[str, WriterCounts]
    dead_letter_count: int


def settings_of(definition: Definition) -> QueueSettings:
    """The settings in a definition. Names that this program does not know are left out."""
    known = attrs.fields_dict(QueueSettings)
    values: dict[str, Any] = {name: value for name, value in definition.settings.items() if name in known}
    values["mode"] = QueueMode(values.get("mode", QueueMode.FILE))
    values["overflow"] = Overflow(values.get("overflow", Overflow.REJECT))
    return QueueSettings(**values)


async def ensure_queue(adapter: StorageAdapter, name: str, settings: QueueSettings) -> Definition:
    """Create a queue, or change the settings of an existing one. Returns when they apply to all later records.

    If its shard was deleted, the queue is empty and has another id.

    Raises:
        InvalidNameError: The name is not valid.
    """
    names.check_name(name)
    shard = await adapter.create_shard(names.shard_of(name), settings.shard_config, exist_ok=True)
    await _apply_settings(adapter, name, settings, shard)
    wanted = {key: _plain(value) for key, value in attrs.asdict(settings).items()}
    before = await _decoded(adapter, names.definition_key(name), Definition)
    if before is None or before.shard_id != shard.shard_id:
        # These belong to other records.
        await adapter.delete_state(names.status_key(name))
        await _forget_progress(adapter, name, shard.shard_id)

    def change(found: Definition | None) -> Definition:
        if found is None or found.shard_id != shard.shard_id:
            return Definition(secrets.token_hex(_ID_BYTES), shard.shard_id, wanted)
        return msgspec.structs.replace(found, settings=wanted)

    definition, _ = await _change_definition(adapter, name, change)
    # Once more, because a writer with the earlier settings may have chosen the mode meanwhile.
    await _apply_settings(adapter, name, settings, await adapter.describe_shard(names.shard_of(name)))
    return definition


async def _forget_progress(adapter: StorageAdapter, name: str, shard_id: int) -> None:
    """Delete the progress of another shard, so that a driver of that one cannot advance it any more."""
    found = await adapter.get_state(names.progress_key(name))
    if found is not None and decode(Progress, found.key, found.value).shard_id != shard_id:
        with suppress(VersionConflictError):  # by a driver of the present shard, which has its own by now
            await adapter.delete_state(found.key, expected_version=found.version)


async def _apply_settings(adapter: StorageAdapter, name: str, settings: QueueSettings, shard: ShardInfo) -> None:
    """Apply the settings to the queue's shard; a hybrid queue's mode depends on its depth."""
    config = settings.shard_config
    if config.segment_bytes != shard.config.segment_bytes:
        await adapter.configure_shard(shard.name, segment_bytes=config.segment_bytes)
    if settings.mode is not QueueMode.HYBRID and config.mode is not shard.config.mode:
        await _set_mode(adapter, name, config.mode, shard)


async def _set_mode(adapter: StorageAdapter, name: str, mode: Mode, shard: ShardInfo) -> None:
    """Set the mode of the queue's next records.

    Before the first of them is in memory, the offset where they begin is stored: if the store dies before a writer has
    read the state, offsets that were only reserved are not counted as records.
    """
    if mode is Mode.MEMORY:
        begin = KnownEnd(shard.shard_id, shard.next_offset)
        await adapter.put_state(names.known_end_key(name, names.NO_WRITER), encode(begin))
    await adapter.set_mode(shard.name, mode)


async def definition_of(adapter: StorageAdapter, name: str) -> Definition:
    """The definition of a queue.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    definition, _ = await read_definition(adapter, name)
    return definition


async def read_definition(adapter: StorageAdapter, name: str) -> tuple[Definition, int]:
    """The definition of a queue, and its version: the lsn of the write that stored it.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    key = names.definition_key(names.check_name(name))
    found = await adapter.get_state(key)
    if found is None:
        raise QueueNotFoundError(f"there is no cache queue {name!r}; `journal queue list` lists all queues")
    return decode(Definition, key, found.value), found.version


async def stored_settings(adapter: StorageAdapter, name: str, otherwise: QueueSettings) -> QueueSettings:
    """The settings that a queue was given last, by any process; ``otherwise`` if there is no queue of that name."""
    found = await _decoded(adapter, names.definition_key(name), Definition)
    return otherwise if found is None else settings_of(found)


async def list_queues(adapter: StorageAdapter) -> list[str]:
    """Names of all queues, sorted."""
    return [names.queue_of(value.key) async for value in adapter.scan_state(QUEUE_DEFINITIONS)]


async def change_queue(
    adapter: StorageAdapter,
    name: str,
    *,
    is_paused: bool | None = None,
    wake: bool = False,
) -> Definition:
    """Store an operator's request for a queue.

    Args:
        is_paused: Whether to stop sending records to the sink; None leaves it unchanged.
        wake: Try the sink at once, even if it was just out.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    await definition_of(adapter, name)
    definition, _ = await _change_definition(adapter, name, _request(name, is_paused, wake))
    return definition


async def store_pause(adapter: StorageAdapter, name: str) -> int:
    """Store the request to pause a queue, also if it is paused already. Does not wait for its driver.

    Returns:
        The version of the stored definition, an lsn: the driver's answer has a higher one.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    await definition_of(adapter, name)
    _, version = await _change_definition(adapter, name, _request(name, True, False), even_if_same=True)
    return version


def _request(name: str, is_paused: bool | None, wake: bool) -> Callable[[Definition | None], Definition]:
    """The change of a definition for `change_queue`."""

    def change(found: Definition | None) -> Definition:
        if found is None:
            raise QueueNotFoundError(f"the cache queue {name!r} does not exist any more")
        return msgspec.structs.replace(
            found,
            is_paused=found.is_paused if is_paused is None else is_paused,
            wake_count=found.wake_count + wake,
        )

    return change


async def purge_queue(adapter: StorageAdapter, name: str) -> int:
    """Delete all records that wait now; return how many they were. The queue's driver continues after them.

    The new offset and the counts are stored in one commit. Records that are being sent to the sink may still arrive.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    await definition_of(adapter, name)
    shard = names.shard_of(name)
    while True:
        info = await adapter.describe_shard(shard)
        progress, version = await read_progress(adapter, name, info.shard_id)
        if not depth_of(info, progress.offset).record_count:
            return 0
        outcome = left_behind(info, progress, await known_ends(adapter, name, info.shard_id))
        behind = msgspec.structs.replace(
            progress, offset=info.next_offset, counts=added(progress.counts, outcome), set_aside=()
        )
        try:
            await adapter.put_state(names.progress_key(name), encode(behind), expected_version=version)
        except VersionConflictError:
            # The driver confirmed records meanwhile, so fewer are deleted.
            continue
        break
    await adapter.trim(shard, info.next_offset)
    return outcome.purged


async def delete_queue(
    adapter: StorageAdapter,
    name: str,
    *,
    lease: LeaseSettings | None = None,
    on_wait: Callable[[str], None] = lambda _holder: None,
) -> None:
    """Delete a queue with all its records and its dead letters. After a crash during this call, repeat it.

    Args:
        lease: The lease settings of the queue's drivers: one that has not renewed its lease for this long is dead.
        on_wait: Called with the name of the lease's holder, if its expiry has to be waited for.

    Raises:
        QueueNotFoundError: There is no queue of that name.
        InvalidRequestError: It has a driver.
    """
    await definition_of(adapter, name)
    version = await _take_for_deletion(adapter, name, lease or LeaseSettings(), on_wait)
    for shard in (names.shard_of(name), names.dead_letters_of(name)):
        try:
            await adapter.delete_shard(shard)
        except ShardNotFoundError:
            continue
    kept = (
        names.definition_key(name),
        names.request_key(name),
        names.status_key(name),
        names.progress_key(name),
        names.letters_done_key(name),
    )
    told = [
        value.key
        for prefix in (names.writers_prefix(name), names.known_ends_prefix(name))
        async for value in adapter.scan_state(prefix)
    ]
    lease_gone = StateDelete(names.lease_key(name), version)
    await adapter.commit(Changes(deletes=(lease_gone, *(StateDelete(key) for key in (*kept, *told)))))


async def _take_for_deletion(
    adapter: StorageAdapter, name: str, settings: LeaseSettings, on_wait: Callable[[str], None]
) -> int:
    """Take the lease of a queue without a driver; return the version of the lease.

    Within a lease period a live holder renews the lease; a dead one does not.
    """
    key = names.lease_key(name)
    watch = LeaseWatch(settings.lease_s, 2 * settings.renew_interval_s)
    told = False
    while True:
        began_s = trio.current_time()
        found = await adapter.get_state(key)
        lease = None if found is None else decode(Lease, key, found.value)
        if found is not None and lease is not None and lease.holder:
            changed, run_out = watch.look(began_s, trio.current_time(), {lease.claim: found.version})
            if changed:
                raise InvalidRequestError(
                    f"the cache queue {name!r} is driven by {lease.holder}; remove its [[bridge]] from the "
                    "rules first (`journal-broker apply`)"
                )
            if not run_out:
                if not told:
                    on_wait(lease.holder)
                    told = True
                await trio.sleep(settings.renew_interval_s / 2)
                continue
        epoch = 0 if lease is None else lease.epoch
        own = Lease(_DELETING, secrets.token_hex(_ID_BYTES), epoch + 1, 0)
        try:
            taken = await adapter.put_state(key, encode(own), expected_version=0 if found is None else found.version)
        except VersionConflictError:
            continue
        return taken.version


async def look(adapter: StorageAdapter, name: str) -> QueueState:
    """Read the state of a queue.

    Raises:
        QueueNotFoundError: There is no queue of that name.
    """
    definition = await definition_of(adapter, name)
    shard = names.shard_of(name)
    try:
        info = await adapter.describe_shard(shard)
    except ShardNotFoundError as error:
        raise QueueNotFoundError(f"the shard {shard!r} of the cache queue {name!r} was deleted") from error
    progress, _ = await read_progress(adapter, name, info.shard_id)
    depth = depth_of(info, progress.offset)
    lost_count = 0
    if depth.record_count < depth.next_offset - depth.first_offset:
        lost_count = left_behind(info, progress, await known_ends(adapter, name, info.shard_id)).lost
    prefix = names.writers_prefix(name)
    writers = {
        value.key.removeprefix(prefix).decode(): decode(WriterCounts, value.key, value.value)
        async for value in adapter.scan_state(prefix)
    }
    return QueueState(
        name,
        definition,
        info,
        progress,
        depth,
        lost_count,
        await _oldest_us(adapter, shard, depth),
        await _decoded(adapter, names.status_key(name), Status),
        await _decoded(adapter, names.lease_key(name), Lease),
        writers,
        await count_dead_letters(adapter, name),
    )


async def keep_within_bounds(
    adapter: StorageAdapter, name: str, settings: QueueSettings, info: ShardInfo, done_offset: int
) -> Depth:
    """Drop the oldest records that exceed the bounds, and set the mode of the queue's next records.

    Any number of writers and drivers may do so at once, with the same result.

    Args:
        settings: The settings in the queue's definition.
        info: The queue's shard, with segments, read just before.
        done_offset: Offset of its `Progress`.

    Returns:
        The records that wait now.
    """
    depth = depth_of(info, done_offset)
    if settings.overflow is Overflow.DROP_OLDEST:
        first_offset = depth.first_offset
        if settings.max_records and depth.record_count > settings.max_records:
            first_offset = max(first_offset, offset_with_records_behind(info, settings.max_records))
        if settings.max_bytes:
            first_offset = max(first_offset, offset_with_bytes_behind(info, depth, settings.max_bytes))
        if first_offset > depth.first_offset:
            info = await adapter.trim(names.shard_of(name), first_offset)
            depth = depth_of(info, first_offset)
    mode = _next_mode(settings, info.config.mode, depth)
    if mode is not info.config.mode:
        await _set_mode(adapter, name, mode, info)
        if mode is Mode.MEMORY:
            # The settings may have been changed since they were read.
            definition = await definition_of(adapter, name)
            if settings_of(definition).mode is QueueMode.FILE:
                await adapter.set_mode(names.shard_of(name), Mode.FILE)
    return depth


def _next_mode(settings: QueueSettings, mode: Mode, depth: Depth) -> Mode:
    """Mode of the next records."""
    if settings.mode is not QueueMode.HYBRID:
        return settings.shard_config.mode
    if mode is Mode.MEMORY:
        return Mode.FILE if depth.size_bytes > settings.memory_bytes else Mode.MEMORY
    return Mode.MEMORY if depth.size_bytes * _BACK_TO_MEMORY <= settings.memory_bytes else Mode.FILE


async def _change_definition(
    adapter: StorageAdapter,
    name: str,
    change: Callable[[Definition | None], Definition],
    *,
    even_if_same: bool = False,
) -> tuple[Definition, int]:
    """Change a definition; return it with its version.

    Args:
        even_if_same: Store it also if nothing changes, so that it gets a new version.
    """
    key = names.definition_key(name)
    while True:
        found = await adapter.get_state(key)
        before = None if found is None else decode(Definition, key, found.value)
        after = change(before)
        version = 0 if found is None else found.version
        if after == before and not even_if_same:
            return after, version
        try:
            stored = await adapter.put_state(key, encode(after), expected_version=version)
        except VersionConflictError:
            continue
        return after, stored.version


async def _decoded(adapter: StorageAdapter, key: bytes, kind: type[Any]) -> Any:
    found = await adapter.get_state(key)
    return None if found is None else decode(kind, key, found.value)


async def _oldest_us(adapter: StorageAdapter, shard: str, depth: Depth) -> int:
    first_offset = depth.first_offset
    while first_offset < depth.next_offset:
        try:
            oldest = await adapter.read(shard, first_offset, max_records=1)
        except OffsetOutOfRangeError as error:
            # The record was confirmed and dropped since the depth was read.
            first_offset = max(error.start_offset, first_offset + 1)
            continue
        return next((record.append_time_us for record in oldest.records if isinstance(record, StoredRecord)), 0)
    return 0


def _plain(value: object) -> str | int:
    return value if isinstance(value, int) else str(value)
