"""A cache queue in the store: making it, its operator's wishes, looking at it, and keeping it within its bounds.

What goes in is `writer`, what comes out is `drain`, who may take it out is `lease`.
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
from shards.topics.reserved_names import QUEUE_DEFINITIONS

_BACK_TO_MEMORY = 4
"""A hybrid queue goes back to memory when it holds less than this part of what it may hold there."""

_ID_BYTES = 8

_DELETING = "journal queue delete"
"""Holder of a queue's lease while it is deleted."""


@attrs.frozen(slots=True)
class QueueState:
    """A queue as an operator sees it.

    Attributes:
        name: Its name.
        definition: What it is.
        shard: Its shard, with segments.
        progress: How far it is done with, and what became of that.
        depth: What waits.
        lost_count: Records that waited in memory and are gone, beyond what is counted in ``progress``.
        oldest_us: When the oldest record that waits was appended; 0 if none waits.
        status: What its driver last said; None if it never had one.
        lease: Who drives it; None if nobody ever did.
        writers: By writer, what it did not put in.
        dead_letter_count: Refused records that are kept.
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
    """The settings that a definition holds. Names that this program does not know are left out."""
    known = attrs.fields_dict(QueueSettings)
    values: dict[str, Any] = {name: value for name, value in definition.settings.items() if name in known}
    values["mode"] = QueueMode(values.get("mode", QueueMode.FILE))
    values["overflow"] = Overflow(values.get("overflow", Overflow.REJECT))
    return QueueSettings(**values)


async def ensure_queue(adapter: StorageAdapter, name: str, settings: QueueSettings) -> Definition:
    """Make a queue, or give one that is there these settings. Returns when they hold for what is put in from now on.

    Its shard may have been deleted: then the queue begins anew, with another id.

    Raises:
        InvalidNameError: The name cannot be a queue's.
    """
    names.check_name(name)
    shard = await adapter.create_shard(names.shard_of(name), settings.shard_config, exist_ok=True)
    await _apply_settings(adapter, name, settings, shard)
    wanted = {key: _plain(value) for key, value in attrs.asdict(settings).items()}
    before = await _decoded(adapter, names.definition_key(name), Definition)
    if before is None or before.shard_id != shard.shard_id:
        # These tell of other records.
        await adapter.delete_state(names.status_key(name))
        await _forget_progress(adapter, name, shard.shard_id)

    def change(found: Definition | None) -> Definition:
        if found is None or found.shard_id != shard.shard_id:
            return Definition(secrets.token_hex(_ID_BYTES), shard.shard_id, wanted)
        return msgspec.structs.replace(found, settings=wanted)

    definition = await _change_definition(adapter, name, change)
    # Once more, for a writer that knew the settings before may have chosen the mode by them meanwhile.
    await _apply_settings(adapter, name, settings, await adapter.describe_shard(names.shard_of(name)))
    return definition


async def _forget_progress(adapter: StorageAdapter, name: str, shard_id: int) -> None:
    """Remove the progress of another shard, so that a driver of that one cannot move it any more."""
    found = await adapter.get_state(names.progress_key(name))
    if found is not None and decode(Progress, found.key, found.value).shard_id != shard_id:
        with suppress(VersionConflictError):  # by a driver of the present shard, which has its own by now
            await adapter.delete_state(found.key, expected_version=found.version)


async def _apply_settings(adapter: StorageAdapter, name: str, settings: QueueSettings, shard: ShardInfo) -> None:
    """Give the queue's shard what its settings ask for; a hybrid queue's mode follows its depth."""
    config = settings.shard_config
    if config.segment_bytes != shard.config.segment_bytes:
        await adapter.configure_shard(shard.name, segment_bytes=config.segment_bytes)
    if settings.mode is not QueueMode.HYBRID and config.mode is not shard.config.mode:
        await _set_mode(adapter, name, config.mode, shard)


async def _set_mode(adapter: StorageAdapter, name: str, mode: Mode, shard: ShardInfo) -> None:
    """Choose where the queue's next records lie.

    Before the first of them lies in memory it is written down where they begin: if the store dies before a writer has
    looked, the offsets that it had reserved for them are not taken for records.
    """
    if mode is Mode.MEMORY:
        begin = KnownEnd(shard.shard_id, shard.next_offset)
        await adapter.put_state(names.known_end_key(name, names.NO_WRITER), encode(begin))
    await adapter.set_mode(shard.name, mode)


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


async def stored_settings(adapter: StorageAdapter, name: str, otherwise: QueueSettings) -> QueueSettings:
    """The settings that a queue was given last, by whichever process; others if there is no queue of that name."""
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
    """Store what an operator wants of a queue.

    Args:
        is_paused: Whether records are kept from the sink; None leaves it as it is.
        wake: Have the sink tried at once, even if it was just out.

    Raises:
        QueueNotFoundError: There is none of that name.
    """
    await definition_of(adapter, name)

    def change(found: Definition | None) -> Definition:
        if found is None:
            raise QueueNotFoundError(f"the cache queue {name!r} is gone")
        return msgspec.structs.replace(
            found,
            is_paused=found.is_paused if is_paused is None else is_paused,
            wake_count=found.wake_count + wake,
        )

    return await _change_definition(adapter, name, change)


async def purge_queue(adapter: StorageAdapter, name: str) -> int:
    """Throw away all that waits now; return how many records that was. Whoever drives the queue goes on behind it.

    That they are gone and that they are counted is one step. What is on its way to the sink may still arrive there.

    Raises:
        QueueNotFoundError: There is none of that name.
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
            # The driver confirmed something meanwhile, so fewer are thrown away.
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
    """Remove a queue with all that waits in it and its dead letters. After a crash on the way, do it again.

    Args:
        lease: As the queue's drivers have it: one that has not renewed its lease for so long is dead.
        on_wait: Told who has the lease, when that has to be waited for.

    Raises:
        QueueNotFoundError: There is none of that name.
        InvalidRequestError: Somebody drives it.
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
    """Take the lease of a queue that nobody drives; the version of the lease.

    Whether its holder lives shows within a lease period: it renews the lease, or it does not.
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
                    f"the cache queue {name!r} is driven by {lease.holder}; take its [[bridge]] out of the "
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
    """See how a queue is doing.

    Raises:
        QueueNotFoundError: There is none of that name.
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
    """Drop the oldest records that there is no room for, and choose where the queue's next records lie.

    Any number of writers and drivers may do so at once: all come to the same.

    Args:
        settings: As they are stored in the queue's definition.
        info: The queue's shard, with segments, as it was just now.
        done_offset: Of its `Progress`.

    Returns:
        What waits now.
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
            # Somebody may have given the queue other settings since these were read.
            definition = await definition_of(adapter, name)
            if settings_of(definition).mode is QueueMode.FILE:
                await adapter.set_mode(names.shard_of(name), Mode.FILE)
    return depth


def _next_mode(settings: QueueSettings, mode: Mode, depth: Depth) -> Mode:
    """Where the next records are to lie."""
    if settings.mode is not QueueMode.HYBRID:
        return settings.shard_config.mode
    if mode is Mode.MEMORY:
        return Mode.FILE if depth.size_bytes > settings.memory_bytes else Mode.MEMORY
    return Mode.MEMORY if depth.size_bytes * _BACK_TO_MEMORY <= settings.memory_bytes else Mode.FILE


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
