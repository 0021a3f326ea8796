"""Opening and closing an engine: which part is opened when, and the order in which they are closed.

The parts of an open engine are in `journal.engine.parts`, its operations in `journal.engine.engine`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Protocol

import attrs
import trio

from journal.engine.directory.copies import empty_copy, is_unused
from journal.engine.directory.data_directory import DataDirectory, open_directory
from journal.engine.directory.placement import check_mounts, open_to_others
from journal.engine.directory.reader_lock import open_after_readers, reader_lock
from journal.engine.directory.restores import Restores
from journal.engine.engine import Engine
from journal.engine.environment import Environment, memory_environment
from journal.engine.parquet.converter import ParquetConverter, open_worker_converter
from journal.engine.parts import EngineParts
from journal.engine.readable import Readable
from journal.engine.segments.file_fetching import FileFetcher, LeftFiles
from journal.engine.shared_log.log import BehindLogError, SharedLog
from journal.engine.startup import recover
from journal.engine.state.committed_lsns import CommittedLsns
from journal.engine.state.node_time import NodeTime
from journal.engine.state.views import Views
from journal.engine.subscribe.subscriptions import Subscriptions
from journal.engine.wal.disk import LimitedOffLoop
from journal.engine.wal.recovery import IncompleteCopyError
from journal.settings.server import ServerConfig
from shards.delta.log_files import remove_log
from shards.errors import StorageFailedError
from shards.seams.clock import Clock
from shards.seams.file_system import FileSystem

_log = logging.getLogger("journal.engine")


@asynccontextmanager
async def open_engine(
    path: str,
    config: ServerConfig,
    environment: Environment | None = None,
    *,
    make_converter: Callable[[], ParquetConverter] | None = None,
    to_read: bool = False,
    log: SharedLog | None = None,
    readers: FollowerReaders | None = None,
) -> AsyncIterator[Engine]:
    """Open a data directory, recover it, and run the engine's background tasks while the context is open.

    Leaving the context drains all decisions, makes a checkpoint and closes everything, so that the next start has
    nothing to recover. After a failure the engine is only closed: the journal holds all that was acknowledged.

    If it is cancelled while the context is entered, the directory is left as by a crash; the next start recovers it.

    Args:
        path: The data directory.
        config: Sizes and limits.
        environment: What the engine runs on; that of a server if None.
        make_converter: Opens what converts segments, if the configuration asks for it; a worker process if None.
        to_read: Open it for a short time to read its content; a start in the meantime waits
            (`journal.engine.directory.reader_lock`). Refused at once while another process has the directory.
        log: The log of the store that the directory has a copy of. The context is entered when this server owns the
            store, which may take until another server has failed.
        readers: Serves reads until then, with `log`.

    Raises:
        DataDirectoryError: The directory is in use or cannot be used.
        CorruptionError: Acknowledged data is damaged, and it is not known which shard it belongs to.
        FormatVersionError: A newer program wrote the directory.
        ConfigurationError: Conversion is enabled, but its libraries are not installed.
    """
    await trio.lowlevel.checkpoint()
    converter: ParquetConverter | None = None
    if config.conversion.enabled:
        converter = open_worker_converter(config.conversion) if make_converter is None else make_converter()
    environment = environment or Environment()
    if environment.lasts:
        check_mounts(path)
    while log is not None:
        try:
            async with (
                _reading(readers, config, log) as reads,
                _opened_parts(path, config, environment, converter, log=log, reads=reads) as parts,
            ):
                if parts.is_whole:
                    engine = Engine(parts.readable, parts) if reads is None else await reads.taken_over(parts)
                    left = _left_files(parts, log, environment)
                    async with _running(parts, log, left):
                        yield engine
                    return
                # So much of the log was read that what is in memory has to be written before more is read.
                with trio.CancelScope(shield=True):
                    await parts.checkpointer.require_checkpoint()
                parts.checkpointer.close()
        except (BehindLogError, IncompleteCopyError) as error:
            _log.warning("%s is emptied, and gets everything from the log store again: %s", path, error)
            await LimitedOffLoop(environment.off_loop)(partial(empty_copy, environment.files, path, log.store_id))
    async with _opened_parts(path, config, environment, converter, to_read=to_read) as parts, _running(parts):
        yield Engine(parts.readable, parts)


class FollowerReaders(Protocol):
    """Serves clients that read from a follower."""

    def begin(self, engine: Engine) -> None:
        """An engine can be read. It may become that of the owner later."""

    async def end(self) -> None:
        """The engine that was begun is about to be closed: return when nothing uses it any more."""


class _Reads:
    """Lets clients read from the engine of a follower, for one opening of the data directory.

    Args:
        readers: Serves them.
        config: Sizes and limits.
        log: The log of the store.
        nursery: Runs the tasks of subscriptions.

    Attributes:
        readable: What they read; None if none does.
    """

    def __init__(self, readers: FollowerReaders, config: ServerConfig, log: SharedLog, nursery: trio.Nursery) -> None:
        self._readers = readers
        self._config = config
        self._log = log
        self._nursery = nursery
        self._tasks = _SubscriptionTasks()
        self._engine: Engine | None = None
        self.readable: Readable | None = None
        self._node_id = ""
        self._environment = Environment()

    def opened(self, node_id: str, environment: Environment) -> None:
        """The data directory is open.

        Args:
            node_id: Its id.
            environment: What the engine runs on.
        """
        self._node_id = node_id
        self._environment = environment

    @property
    def are_open(self) -> bool:
        return self._engine is not None

    def begin(self, views: Views, time: NodeTime, restores: Restores, lsns: CommittedLsns) -> Readable:
        self.readable = readable = Readable.of(
            config=self._config,
            node_id=self._node_id,
            restores=restores,
            views=views,
            time=time,
            environment=self._environment,
            lsns=lsns,
        )
        self._tasks = _SubscriptionTasks()
        self._nursery.start_soon(self._tasks.run, readable.subscriptions)
        self._engine = Engine(readable, owner=lambda: self._log.claim.addresses.tcp)
        self._readers.begin(self._engine)
        return readable

    async def end(self) -> None:
        if self._engine is not None and self.readable is not None:
            self._engine.end_following()
            with trio.CancelScope(shield=True):
                # What they read is closed next.
                await self._readers.end()
                await self.readable.subscriptions.drop_left()
                await self._tasks.end()
            self._engine = self.readable = None

    async def taken_over(self, parts: EngineParts) -> Engine:
        """The engine of the owner: that of the follower, if clients use it. The tasks of subscriptions have ended."""
        engine = self._engine
        if engine is None:
            return Engine(parts.readable, parts)
        await self._tasks.end()
        self._engine = None
        engine.take_over(parts)
        return engine


class _SubscriptionTasks:
    """The tasks of a follower's subscriptions, until it is read no more or those of an owner run them."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, subscriptions: Subscriptions) -> None:
        """Run them until `end`."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    subscriptions.start(nursery)
        finally:
            self._ended.set()

    async def end(self) -> None:
        """Cancel them. Return when none of them does anything any more."""
        self._scope.cancel()
        await self._ended.wait()


@asynccontextmanager
async def _reading(
    readers: FollowerReaders | None, config: ServerConfig, log: SharedLog
) -> AsyncIterator[_Reads | None]:
    """Reads of clients during the body, and the tasks of their subscriptions. The body's errors are not wrapped."""
    if readers is None:
        yield None
        return
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield _Reads(readers, config, log, nursery)
        except Exception as error:  # noqa: BLE001 raised again below, without a group around it
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


@asynccontextmanager
async def _opened_parts(
    path: str,
    config: ServerConfig,
    environment: Environment,
    converter: ParquetConverter | None,
    *,
    to_read: bool = False,
    log: SharedLog | None = None,
    reads: _Reads | None = None,
) -> AsyncIterator[EngineParts]:
    store_id = "" if log is None else log.store_id
    async with _opened_directory(environment.files, path, store_id, to_read=to_read) as directory:
        if environment.lasts and not to_read and (warning := open_to_others(path)):
            _log.warning(warning)
        environment = attrs.evolve(environment, files=directory.files)
        await trio.lowlevel.checkpoint()
        stored = None if log is None else log.stored_views(environment.files, environment.off_loop)
        if log is not None and stored is not None and is_unused(directory.files, directory.path):
            await log.until_fetched(partial(stored.restore, directory.state, directory.log))
        store = environment.open_store(directory.state)
        if reads is not None:
            reads.opened(directory.node_id, environment)
        try:
            if not to_read:
                # A start that was killed may have made the store and not synced its name; the journal would outlive it.
                directory.files.sync_directory(directory.state)
            await trio.lowlevel.checkpoint()
            disk = environment.make_disk()
            try:
                start = await recover(config.storage, directory, environment, store, log, stored, reads)
                try:
                    if not start.is_whole:
                        # Files go and come without commits as long as this server follows the log.
                        await LimitedOffLoop(environment.off_loop)(
                            lambda: remove_log(environment.files, directory.sealed)
                        )
                    readable = None if reads is None else reads.readable
                    parts = EngineParts(config, directory, environment, disk, store, converter, start, readable)
                    with trio.CancelScope(shield=True):
                        # A checkpoint is not cancelled half-way.
                        await start.restoration.finish(parts.checkpointer)
                    # A cancelled start must not return an engine, which would have to be closed in order.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    yield parts
                finally:
                    if start.ahead is not None:
                        start.ahead.close()
                    start.writer.close()
            finally:
                disk.close()
        finally:
            if reads is not None:
                await reads.end()
            store.close()


def open_memory_engine(config: ServerConfig, clock: Clock | None = None) -> AbstractAsyncContextManager[Engine]:
    """Run an engine without a disk: its files and its store are in memory, and everything is gone with the context.

    No acknowledgement says `durable`. Nothing runs in a thread.
    """
    return open_engine("/memory", config, memory_environment(clock))


@asynccontextmanager
async def _opened_directory(
    files: FileSystem, path: str, store_id: str, *, to_read: bool
) -> AsyncIterator[DataDirectory]:
    with reader_lock(files, path) if to_read else nullcontext():
        directory = open_directory(files, path, None) if to_read else await open_after_readers(files, path, store_id)
        try:
            yield directory
        finally:
            directory.close()


def _left_files(parts: EngineParts, log: SharedLog, environment: Environment) -> LeftFiles:
    """What fetches the files that were not fetched before the store was taken over."""
    assert parts.stored is not None
    views, checkpointer = parts.views, parts.checkpointer
    make_fetcher = partial(
        FileFetcher,
        parts.stored.files,
        views.files,
        parts.segment_files,
        parts.directory.files,
        environment.off_loop,
        views.unfetched,
        parts.directory.sealed,
        lambda: checkpointer.checkpoint_lsn,
    )
    return LeftFiles(
        make_fetcher,
        log.until_fetched,
        views.unfetched,
        lambda: checkpointer.checkpoint_lsn,
        checkpointer.checkpoint_soon,
    )


async def _fetch_left(parts: EngineParts, left: LeftFiles) -> None:
    try:
        await left.fetch()
    except StorageFailedError as failure:
        parts.committer.fail(failure)
    # The table was not brought up to date meanwhile.
    parts.conversion.wake()


@asynccontextmanager
async def _running(
    parts: EngineParts, log: SharedLog | None = None, left: LeftFiles | None = None
) -> AsyncIterator[None]:
    """Run the background tasks around the body, then drain and make a checkpoint. The body's errors are not wrapped."""
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.time.run)
        nursery.start_soon(parts.checkpointer.run)
        nursery.start_soon(parts.conversion.run)
        nursery.start_soon(parts.producer_expiry.run)
        parts.subscriptions.start(nursery)
        if log is not None:
            assert log.epoch is not None
            assert parts.ahead is not None
            assert parts.store_checkpoints is not None
            nursery.start_soon(parts.ahead.run, parts.committer.kick)
            nursery.start_soon(log.watch, parts.committer.fail)
            nursery.start_soon(parts.store_checkpoints.run, log.epoch)
        if left is not None:
            nursery.start_soon(_fetch_left, parts, left)
        try:
            yield
        except Exception as error:  # noqa: BLE001 raised again below, without a group around it
            raised = error
        finally:
            # A task that must not be cancelled between two steps may wait for a group that waits for disk space.
            parts.committer.begin_close()
        parts.subscriptions.close()
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await parts.close()
    if raised is not None:
        raise raised
