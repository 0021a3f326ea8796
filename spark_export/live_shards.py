"""Snapshots through the storage adapter: of a running server, or of a data directory, in use or not.

A directory that is not in use is opened as a server would open it, which recovers the records in its journal and, when
it is closed, leaves every record in a file. If a server uses the directory, the snapshot is taken from that server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import attrs
import trio

from broker_adapter import StorageAdapter
from broker_adapter.engines.embedded import open_embedded
from broker_adapter.results import StoredBatches
from shards.errors import DataDirectoryError, ShardNotFoundError, StorageError
from shards.format.batch import iterate, timestamps
from shards.history import HistoryGap
from shards.model import SegmentInfo, SegmentKind, ShardInfo
from shards.position import Start
from shards.seams.file_system import FileSystem
from shards.seams.os_file_system import OsFileSystem
from spark_export.errors import UnreadableError
from spark_export.options import SourceOptions
from spark_export.read_history import ReadHistory
from spark_export.sealed_files import parse_shared
from spark_export.server_connection import PATIENCE_S, connected
from spark_export.snapshot import PlaceInFile, SegmentRange, ShardSnapshot, Snapshot, Store

_Answer = TypeVar("_Answer")

_DESCRIBED_AT_ONCE: Final = 64
_SERVER_FILE: Final = "SERVER"
_SERVER_FILE_BYTES: Final = 4096
DIRECTORY_PATIENCE_S: Final = 30.0
"""How long a directory may be used by a process without an address, in seconds: a server that starts, or a reader."""
_LOOK_AGAIN_S: Final = 0.05


def server_snapshot(
    store: Store, options: SourceOptions, *, with_segments: bool | None = None, read: ReadHistory | None = None
) -> Snapshot:
    """Snapshot of a running server.

    Args:
        store: Its address, and its files if they can be accessed from here.
        options: Which shards.
        with_segments: See `spark_export.discovery.take_snapshot`.
        read: See `spark_export.discovery.take_snapshot`.

    Raises:
        UnreadableError: It cannot be reached.
    """
    return trio.run(_of_server, store, options, with_segments, read)


def directory_snapshot(
    store: Store,
    directory: str,
    options: SourceOptions,
    *,
    with_segments: bool | None = None,
    read: ReadHistory | None = None,
) -> Snapshot:
    """Snapshot of a data directory; see the module.

    Args:
        store: Where its files are.
        directory: The data directory.
        options: Which shards.
        with_segments: See `spark_export.discovery.take_snapshot`.
        read: See `spark_export.discovery.take_snapshot`.

    Raises:
        UnreadableError: Another process uses it and has not stored its address.
        DataDirectoryError: It cannot be opened.
    """
    return trio.run(_of_directory, store, directory, options, with_segments, read)


async def _of_server(
    store: Store, options: SourceOptions, with_segments: bool | None, read: ReadHistory | None
) -> Snapshot:
    if with_segments is None:
        with_segments = bool(store.sealed)
    async with connected(store.server) as adapter:
        requests = _Requests(adapter, f"the journal server at {store.server}")
        # A server that is restored meanwhile closes the connection.
        store = attrs.evolve(store, restores=tuple(adapter.restores))
        return Snapshot(store, await _shards(requests, options, read, with_segments=with_segments), read)


async def _of_directory(
    store: Store, directory: str, options: SourceOptions, with_segments: bool | None, read: ReadHistory | None
) -> Snapshot:
    deadline = trio.current_time() + DIRECTORY_PATIENCE_S
    files = OsFileSystem()
    while True:
        try:
            # A server that is started meanwhile waits until this is closed.
            async with open_embedded(f"embedded:{quote(directory)}", to_read=True) as adapter:
                found = await _shards(_Requests(adapter, directory), options, read, with_segments=True)
                store = attrs.evolve(store, restores=tuple(adapter.restores))
            return Snapshot(store, found, read)
        except DataDirectoryError as error:
            # The lock is not taken to find this out: a server that is just starting would fail.
            if not isinstance(error.__cause__, BlockingIOError):
                raise
        address = _server_of(files, directory)
        if address:
            store = attrs.evolve(store, server=f"journal://{address}")
            return await _of_server(store, options, with_segments, read)
        if trio.current_time() > deadline:
            raise UnreadableError(
                f"{directory} is in use by a process that has not written its address to "
                f"{directory}/{_SERVER_FILE} for {DIRECTORY_PATIENCE_S:g} s; give the option 'server' with the address "
                f"of the server that uses it"
            )
        # Neither a lock nor a file can be waited for; both change soon when a server starts or a read ends.
        await trio.sleep(_LOOK_AGAIN_S)


def _server_of(files: FileSystem, directory: str) -> str:
    """The address that the server of a directory has stored there; empty if there is none."""
    try:
        file = files.open(f"{directory}/{_SERVER_FILE}", write=False)
    except FileNotFoundError:
        return ""
    try:
        return str(json.loads(file.pread(_SERVER_FILE_BYTES, 0))["tcp"])
    except (ValueError, KeyError, TypeError):
        return ""
    finally:
        file.close()


class _Requests:
    """Requests to a store, with a time limit for each answer.

    Args:
        adapter: The store.
        shown: Description of the store, for messages.
    """

    def __init__(self, adapter: StorageAdapter, shown: str) -> None:
        self._shown = shown
        self._adapter = adapter

    async def list_shards(self, topic_filter: str, *, with_segments: bool) -> list[ShardInfo]:
        return await self._answer(
            "list its shards", lambda: self._adapter.list_shards(topic_filter, with_segments=with_segments)
        )

    async def describe_shard(self, name: str) -> ShardInfo:
        return await self._answer(f"describe shard {name!r}", lambda: self._adapter.describe_shard(name))

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        return self._adapter.restores

    async def find_offset(self, name: str, start: Start) -> int:
        return await self._answer(
            f"find a {start.kind} in shard {name!r}", lambda: self._adapter.find_offset(name, start)
        )

    async def read_batch(self, name: str, offset: int) -> StoredBatches:
        return await self._answer(f"read shard {name!r}", lambda: self._adapter.read_batches(name, offset, max_bytes=1))

    async def _answer(self, what: str, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            with trio.fail_after(PATIENCE_S):
                return await ask()
        except trio.TooSlowError:
            raise UnreadableError(
                f"{self._shown} did not {what} within {PATIENCE_S:g} s; check that it runs, then try again"
            ) from None


async def _shards(
    adapter: _Requests, options: SourceOptions, read: ReadHistory | None, *, with_segments: bool
) -> tuple[ShardSnapshot, ...]:
    infos: dict[str, ShardInfo] = {}
    for topic_filter in options.shards:
        for info in await adapter.list_shards(topic_filter, with_segments=with_segments):
            infos[info.name] = info
    names = sorted(infos)

    async def snapshot(name: str) -> ShardSnapshot | None:
        info = infos[name]
        # If some offsets have no records, the segments show which.
        described = with_segments or info.record_count < info.next_offset - info.start_offset
        if described and not with_segments:
            info = await adapter.describe_shard(name)
        found_offset = None
        if options.starting_us is not None:
            found_offset = await _first_not_older(adapter, info, options.starting_us)
        elif options.starting_lsn is not None:
            found_offset = await _first_from_lsn(adapter, info, options.starting_lsn)
        changed_offset = None if read is None else await _changed_offset(adapter, info, read)
        return _snapshot(info, described, found_offset, changed_offset)

    found = await _each(names, snapshot)
    return tuple(one for one in found if one is not None)


def _snapshot(
    info: ShardInfo, with_segments: bool, found_offset: int | None, changed_offset: int | None
) -> ShardSnapshot:
    if with_segments:
        segments = tuple(
            SegmentRange(one.kind, one.base_offset, one.next_offset, one.size_bytes, _place(one))
            for one in info.segments
            if one.next_offset > max(one.base_offset, info.start_offset)
        )
    elif info.next_offset > info.start_offset:
        segments = (SegmentRange(SegmentKind.MEMORY, info.start_offset, info.next_offset, info.size_bytes),)
    else:
        segments = ()
    return ShardSnapshot(
        info.name, info.shard_id, info.start_offset, info.next_offset, segments, found_offset, changed_offset
    )


def _place(segment: SegmentInfo) -> PlaceInFile | None:
    """Where a segment is in a shared file; None also for a place that this program does not understand."""
    file = parse_shared(segment.file)
    return None if file is None else PlaceInFile(file, segment.first_row)


async def _changed_offset(adapter: _Requests, info: ShardInfo, read: ReadHistory) -> int | None:
    """From which offset on a shard has other records than in the history that was read; None if it has the same."""
    lsn = read.common_lsn(info.name, adapter.restores)
    if lsn is None or info.shard_id > lsn:
        return None
    return offset_of_change(info, await adapter.find_offset(info.name, Start.lsn(lsn + 1)))


def offset_of_change(info: ShardInfo, found_offset: int) -> int:
    """From which offset on a shard has other records than before a restore.

    Args:
        info: The shard.
        found_offset: Offset of the first record that is not of the common history; the shard's end if there is none.
    """
    # Records appended after the restore may have been trimmed since: then the shard's records do not show it.
    return found_offset if info.restored_offset is None else min(found_offset, info.restored_offset)


async def _first_from_lsn(adapter: _Requests, info: ShardInfo, lsn: int) -> int:
    """Offset of the first record of a shard with this lsn or a higher one; its end if there is none."""
    if info.last_lsn < lsn:
        return info.next_offset
    # The id of a shard is the lsn of its creation.
    return info.start_offset if lsn <= info.shard_id else await adapter.find_offset(info.name, Start.lsn(lsn))


async def _first_not_older(adapter: _Requests, info: ShardInfo, time_us: int) -> int:
    """Offset of the first record of a shard that is not older than a time; its end if there is none."""
    offset = await adapter.find_offset(info.name, Start.time(time_us))
    while offset < info.next_offset:
        found = await adapter.read_batch(info.name, offset)
        for at, header in iterate(found.batches):
            times_us = () if header.is_gap else timestamps(found.batches, at)
            for number, timestamp_us in enumerate(times_us, header.base_offset):
                if number >= offset and timestamp_us >= time_us:
                    return number
        offset = found.next_offset
    return info.next_offset


async def _each(
    names: Sequence[str], call: Callable[[str], Awaitable[ShardSnapshot | None]]
) -> list[ShardSnapshot | None]:
    """Call for every name, some at a time; the result for a shard that was deleted meanwhile is None."""
    found: list[ShardSnapshot | None] = [None] * len(names)
    waiting = iter(enumerate(names))

    failures: list[StorageError | UnreadableError] = []

    async def work() -> None:
        for at, name in waiting:
            try:
                found[at] = await call(name)
            except ShardNotFoundError:
                continue
            except (StorageError, UnreadableError) as error:
                failures.append(error)
                workers.cancel_scope.cancel()

    async with trio.open_nursery() as workers:
        for _ in range(min(_DESCRIBED_AT_ONCE, len(names))):
            workers.start_soon(work)
    if failures:
        raise failures[0]
    return found
