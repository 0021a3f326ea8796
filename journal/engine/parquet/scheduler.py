"""Conversion: closed log segments go into shared Parquet files in the background, many shards together.

This module decides which segments are next, handles failed conversions, and serves callers that wait for a conversion.
A `Gatherer` has the files written and makes them valid; then the logs are removed.
No failure here stops the engine: a segment that cannot be converted stays a log file, and no record is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, closing

import attrs
import trio

from journal.engine.parquet.conversion_requests import ConversionRequest, ConversionRequests
from journal.engine.parquet.converter import ParquetConverter
from journal.engine.parquet.failed_conversions import AFTER_FAILURES, FailedConversions
from journal.engine.parquet.gatherer import (
    MOST_BYTES,
    BeingFlushedError,
    Chosen,
    Gatherer,
    closed_logs,
    in_order,
    is_in_part,
    is_one_dropped,
    look_again,
    most_parts,
)
from journal.engine.parquet.gathering_queue import LARGE_SEGMENT_BYTES, GatheringQueue, Waiting
from journal.engine.parquet.history_table import HistoryTable
from journal.engine.parquet.rewriting_queue import RewritingQueue
from journal.engine.segments.lifecycle import NotWithdrawnError, SegmentFiles, UnsyncedDirectoryError
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.entry_payloads import Decision, Rolled, ShardDeleted, Trimmed
from journal.engine.write.commands import Commands
from journal.settings.server import ConversionConfig
from shards.errors import (
    ConversionFailedError,
    CorruptionError,
    FormatVersionError,
    InvalidRequestError,
    StorageError,
    StorageFailedError,
)
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.views.shared_files import FileKey, SharedFileRecord

_log = logging.getLogger("journal.conversion")

_IDLE_S = 30.0
_LOOKED_AGAIN_S = 300.0
"""What is due is looked at so often without any reason, since the time of day, by which files become due, may jump."""


@attrs.define
class ConversionCounts:
    """What was done since the start.

    Attributes:
        gatherings: Times that closed segments were gathered into shared files.
        rewritings: Times that sealed segments were written into other shared files.
        failures: Attempts of any kind that failed.
    """

    gatherings: int = 0
    rewritings: int = 0
    failures: int = 0


class ParquetScheduler:
    """Converts the segments of one engine; one task runs it.

    Args:
        config: When segments are due for conversion.
        converter: Writes the files; None if conversion is disabled.
        files: Moves the files into place.
        table: The shards.
        commands: Records which segments are Parquet files.
        recorded: Ids of the shards, open or not, that have closed log segments according to the views.
        flush: Has the tail of a shard written to its log file soon.
        flush_all: Writes the tails of shards to their log files, and returns when that was tried.
        put_parts: Puts the parts that decisions name into their shards.
        refuse: Returns why no file may be written now; None if it may.
        history: The Delta table over shared files, which follows each decision about them.
        rewritable: Returns the shared files that are to be rewritten together; gets those that are left alone for now,
            and those that have too many parts to be merged.
        rewriting_due_at: Returns when the first shared file after some time becomes one to rewrite by time alone; both
            are times of trio's clock.
        valid: Returns the shared files that are valid now.
        share: Within its block other servers of the store can get these files, which are still where they were
            written. It is entered before a decision names them.

    Attributes:
        sealed_segments: Segments converted since the start.
        counts: Of what was done.
        last_failure: The error of the last attempt, empty after a success.
    """

    def __init__(
        self,
        *,
        config: ConversionConfig,
        converter: ParquetConverter | None,
        files: SegmentFiles,
        table: ShardTable,
        commands: Commands,
        recorded: Callable[[], Generator[int | None, None, None]],
        flush: Callable[[Shard], None],
        flush_all: Callable[[Iterable[Shard]], Awaitable[None]],
        put_parts: Callable[[], Awaitable[None]],
        refuse: Callable[[], StorageError | None],
        history: HistoryTable,
        rewritable: Callable[[set[FileKey], set[FileKey]], list[SharedFileRecord]],
        rewriting_due_at: Callable[[float], float],
        valid: Callable[[], Sequence[FileKey]],
        share: Callable[[Sequence[tuple[FileKey, str]]], AbstractAsyncContextManager[None]],
    ) -> None:
        self._converter = converter
        self._share = share
        self._files = files
        self._table = table
        self._commands = commands
        self._recorded = recorded
        self._flush = flush
        self._put_parts = put_parts
        self._refuse = refuse
        self._history = history
        self._valid = valid
        self._most_parts = most_parts(commands.largest_decision_bytes)
        self._rewriting = RewritingQueue(table, self._most_parts, rewritable, rewriting_due_at, valid)
        self._shards: dict[int, Shard] = {}
        self._gathering = GatheringQueue(config.gather_after_s, self._small_logs, flush_all)
        self._requests = ConversionRequests()
        self._failures = FailedConversions()
        self._stopped: StorageError | None = None
        self._wake = trio.Event()
        self.sealed_segments = 0
        self.counts = ConversionCounts()
        self.last_failure = ""
        self._unreadable_shard = ""

    @property
    def enabled(self) -> bool:
        """Whether segments are converted at all."""
        return self._converter is not None

    @property
    def failure(self) -> str:
        """The error of the last attempt, or else a file or shard that cannot be read; empty if all works."""
        return self.last_failure or self._rewriting.failure or self._unreadable_shard

    @property
    def waiting(self) -> Waiting:
        """Closed segments that wait until they are gathered."""
        return self._gathering.waiting

    @property
    def _has_failed(self) -> bool:
        """Whether the engine has: what its views say may not be durable."""
        return isinstance(self._stopped, StorageFailedError)

    # What others call

    def decided(self, decisions: Iterable[tuple[int, int, Decision]]) -> None:
        """Check the shards that these committed decisions changed for segments to convert."""
        if self._converter is None:
            return
        for _, shard_id, decision in decisions:
            if isinstance(decision, Rolled) and (shard := self._table.by_id(shard_id)) is not None:
                self.look_at(shard)
            elif isinstance(decision, ShardDeleted | Trimmed):
                self._forget_dropped(shard_id)
                self.wake()

    def _forget_dropped(self, shard_id: int) -> None:
        """Forget failures of segments that the shard no longer has."""
        if self._failures:
            shard = self._table.by_id(shard_id)
            self._failures.forget_dropped(shard_id, shard.segments if shard is not None else ())

    def look_at(self, shard: Shard) -> None:
        """Check a shard that may have a closed segment to convert."""
        if self._converter is not None:
            self._shards[shard.shard_id] = shard
            self.wake()

    def wake(self) -> None:
        """Wake the task: a segment that could not be converted before may be convertible now."""
        self._wake.set()

    def require_enabled(self) -> None:
        """Refuse to wait for a conversion that will not happen.

        Raises:
            InvalidRequestError: Conversion is disabled.
        """
        if self._converter is None:
            raise InvalidRequestError(
                "segments are not converted to Parquet here: conversion.enabled is false in the configuration; "
                "switch it on, or only roll the shard"
            )

    async def wait_until_sealed(self, shard: Shard, up_to: int) -> None:
        """Convert every closed log segment below an offset, however small, and return when all are Parquet files.

        Memory segments are not converted.

        Raises:
            InvalidRequestError: Conversion is disabled.
            ConversionFailedError: A segment could not be converted this time.
            CorruptionError: A segment is damaged.
            DiskFullError: The disk is nearly full.
            ShardNotFoundError: The shard was deleted in the meantime.
            ShardDamagedError: The shard is stopped because of damage.
            StorageFailedError: The engine failed.
        """
        self.require_enabled()
        self._failures.end_pauses(shard, closed_logs(shard))
        request = ConversionRequest(shard, up_to)
        self._requests.add(request)
        self.wake()
        try:
            await request.wait()
        finally:
            self._requests.remove(request)

    def failed(self, failure: StorageFailedError) -> None:
        """Note that the engine failed: nothing more will be converted."""
        self._stopped = failure
        self.wake()

    # The task

    async def run(self) -> None:
        """Convert segments that are due until cancelled."""
        if self._converter is None:
            return
        gatherer = Gatherer(
            self._converter, self._files, self._table, self._commands, self._put_parts, self._most_parts, self._valid
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_at_recorded)
                # Neither new segments nor rewritings keep the others waiting for ever: they take turns.
                may_rewrite_first = False
                while True:
                    self._wake = trio.Event()
                    looked_at = trio.current_time()
                    if self._history.is_due and not self._has_failed:
                        await self._history.bring_up_to_date(self._converter)
                    elif may_rewrite_first and (chosen := await self._next_rewriting(self._converter)):
                        may_rewrite_first = False
                        await self._gather(gatherer, chosen)
                    elif (
                        chosen := await self._next()
                        or await self._next_gathering()
                        or await self._next_rewriting(self._converter)
                    ):
                        may_rewrite_first = not isinstance(chosen[0][1], ParquetSegment)
                        await self._gather(gatherer, chosen)
                    else:
                        await self._rest(looked_at)
        finally:
            with trio.CancelScope(shield=True):
                await self._converter.rest()

    async def _look_at_recorded(self) -> None:
        """Find segments that were closed before this start in shards that are not open, in short steps."""
        with closing(self._recorded()) as found:
            step = TimeSlice()
            for shard_id in found:
                try:
                    if shard_id is not None and (shard := self._table.by_id(shard_id)) is not None:
                        self.look_at(shard)
                except (CorruptionError, FormatVersionError) as error:
                    self.counts.failures += 1
                    self._unreadable_shard = f"segments of a shard stay log files: {error}"
                    _log.error("%s", self._unreadable_shard)
                if step.is_over:
                    await step.rest()

    async def _rest(self, looked_at: float) -> None:
        """Wait for something to do: a change, or the time at which something is due.

        Args:
            looked_at: When the task began to look for something to do and found nothing, by trio's clock.
        """
        assert self._converter is not None  # only then is there a task
        with trio.move_on_at(min(self._due_after(looked_at), trio.current_time() + _LOOKED_AGAIN_S)):
            with trio.move_on_after(_IDLE_S):
                await self._wake.wait()
                return
            await self._converter.rest()
            await self._wake.wait()

    def _due_after(self, looked_at: float) -> float:
        """When something becomes due by time alone, by trio's clock; infinite if nothing does.

        What was due when the task looked is left out: there was nothing to do about it, and a change wakes the task.
        What has become due since is not, so this may be in the past.

        Args:
            looked_at: When the task began to look.
        """
        ends = [] if self._has_failed else [self._history.due_at]
        if self._stopped is None:
            # Whatever is due waits for the end of the pause, also if the segment that failed has been dropped.
            ends += self._failures.pause_ends()
            ends.append(self._gathering.due_at)
            ends += self._rewriting.due_times(looked_at)
            if self._refuse() is not None:
                # There is no event for free disk space.
                ends.append(trio.current_time() + AFTER_FAILURES.first_s)
        return min((end for end in ends if end > looked_at), default=float("inf"))

    # Choosing

    async def _next(self) -> list[Chosen]:
        """The segments to convert now, without others: requested ones first, then large ones.

        Answers completed requests.
        """
        refused = self._stopped or self._refuse()
        if requested := self._requested(refused):
            return await in_order(requested)
        now = trio.current_time()
        if refused is not None or now < self._failures.not_before:
            return []
        step = TimeSlice()
        for shard_id, shard in list(self._shards.items()):
            if step.is_over:
                await step.rest()
            due = [] if shard.damage else [each for each in closed_logs(shard) if self._is_due(shard, each)]
            if not due:
                del self._shards[shard_id]
                self._gathering.look_at(shard)
            elif ready := self._ready(shard, due, now=now):
                return [(shard, ready[0])]
        return []

    def _requested(self, refused: StorageError | None) -> list[Chosen]:
        """The segments of which some caller waits for the conversion, as many as are gathered at once."""
        chosen: dict[tuple[int, int], Chosen] = {}
        size_bytes = 0
        for request in self._requests:
            try:
                request.shard.check_usable()
            except StorageError as error:
                request.end(error)
                continue
            waiting = [segment for segment in closed_logs(request.shard) if segment.next_offset <= request.up_to]
            corruptions = list(filter(None, (self._failures.corruption_of(request.shard, each) for each in waiting)))
            if waiting and refused is not None:
                request.end(refused)
            elif len(waiting) == len(corruptions):
                request.end(corruptions[0] if corruptions else None)
            else:
                for segment in self._ready(request.shard, waiting, now=float("inf")):
                    size_bytes += segment.size_bytes
                    if chosen and (len(chosen) == self._most_parts or size_bytes > MOST_BYTES):
                        return list(chosen.values())
                    chosen[request.shard.shard_id, segment.base_offset] = request.shard, segment
        return list(chosen.values())

    def _small_logs(self, shard: Shard) -> Iterator[LogSegment]:
        if not shard.damage:
            for segment in closed_logs(shard):
                if segment.size_bytes < LARGE_SEGMENT_BYTES and self._failures.corruption_of(shard, segment) is None:
                    yield segment

    async def _next_gathering(self) -> list[Chosen]:
        """The segments to gather now, in the order of a plan."""
        now = trio.current_time()
        if self._stopped or self._refuse() or now < max(self._gathering.due_at, self._failures.not_before):
            return []
        return await in_order(await self._gathering.take(self._most_parts))

    async def _next_rewriting(self, converter: ParquetConverter) -> list[Chosen]:
        """Segments in shared files that are to be rewritten, in the order of a plan."""
        if self._stopped or self._refuse() or trio.current_time() < self._failures.not_before:
            return []
        return await self._rewriting.take(converter)

    def _is_due(self, shard: Shard, segment: LogSegment) -> bool:
        return segment.size_bytes >= LARGE_SEGMENT_BYTES and self._failures.corruption_of(shard, segment) is None

    def _ready(self, shard: Shard, segments: list[LogSegment], *, now: float) -> list[LogSegment]:
        """Those that may be converted now; none, and a flush is under way, if one is only in part in its file."""
        if any(map(is_in_part, segments)):
            self._flush(shard)
            return []
        return self._failures.may_be_tried(shard, segments, now=now)

    # Converting

    async def _gather(self, gatherer: Gatherer, chosen: list[Chosen]) -> None:
        file_id, prefix = gatherer.new_file()

        async def gather() -> None:
            written = await gatherer.write(chosen, file_id, prefix)
            async with self._share([((file.day, file_id), file.path) for file in written.files]):
                with trio.CancelScope(shield=True):
                    self.sealed_segments += await gatherer.put_in_place(chosen, file_id, prefix, written)
                    left = await look_again(chosen)
                    self._history.note_rewritten(left.replaced)
                    if isinstance(chosen[0][1], ParquetSegment):
                        self.counts.rewritings += 1
                    else:
                        self.counts.gatherings += 1
                    await self._discard(lambda: self._files.discard_shared(prefix))
            if left.wanted is not None:
                # Not tried again at once: it would be written for ever.
                raise ConversionFailedError(f"shard {left.wanted.name!r} did not take its part of {prefix}")

        has_failed = await self._attempt(chosen, gather, lambda: self._files.discard_shared(prefix))
        step = TimeSlice()
        # Removed one by one, since to free all segments that were replaced is work for many steps.
        chosen.reverse()
        while chosen:
            shard, segment = chosen.pop()
            if step.is_over:
                await step.rest()
            if not has_failed:
                self._failures.forget(shard, segment)
            # What failed waits again.
            self._gathering.look_at(shard)

    async def _attempt(
        self, chosen: list[Chosen], work: Callable[[], Awaitable[None]], discard: Callable[[], Awaitable[None]]
    ) -> bool:
        """Do the work of a conversion and note how it ended.

        Returns:
            Whether one of the segments, or the engine, has failed.
        """
        try:
            await work()
        except StorageFailedError as failure:
            # Only after a restart it is known whether the file is valid; its note tells the start where to look.
            self._stopped = failure
        except UnsyncedDirectoryError as error:
            self._stop(
                ConversionFailedError(
                    f"{error.filename} could not be synced: {error.strerror}. No segment is converted any more; "
                    f"appends and reads continue. Restart the server once the disk is sound"
                )
            )
        except (StorageError, OSError) as error:
            if isinstance(error, NotWithdrawnError):
                _log.warning("%s is not valid and stays until the next start: %s", error.filename, error.strerror)
            else:
                # Files of the failed attempt are removed: the next one writes a new file under a new name.
                await self._discard(discard)
            shard, segment = _concerned(chosen, error)
            if isinstance(error, BeingFlushedError) or await is_one_dropped(chosen):
                # A log file may be removed before the worker has opened it: that is not a failure of the disk.
                return False
            if isinstance(error, CorruptionError):
                self._failures.note_corruption(shard, segment, error)
                self._tell(shard, segment, error)
                self._requests.refuse([(shard, segment)], error)
                self._rewriting.note_unreadable(segment, error, chosen)
            else:
                self._failures.note_failure(shard, segment)
                told = error if isinstance(error, StorageError) else ConversionFailedError(str(error))
                self._tell(shard, segment, told)
                # It is not about one segment: without this, the others would be tried at once, and fail one by one.
                self._requests.refuse(chosen, told)
        else:
            self.last_failure = ""
            self._failures.note_success()
            return False
        return True

    async def _discard(self, discard: Callable[[], Awaitable[None]]) -> None:
        """Remove the files of a finished or failed conversion from ``sealing/``. The next start removes the rest."""
        try:
            await discard()
        except OSError as error:
            _log.warning("%s stays until the next start: %s", error.filename, error)

    def _tell(self, shard: Shard, segment: Segment, error: StorageError) -> None:
        self.counts.failures += 1
        text = f"shard {shard.name!r}, offsets {segment.base_offset} to {segment.next_offset}: {error}"
        self.last_failure = text
        if isinstance(segment, LogSegment):
            _log.error("a segment stays a log file: %s", text)
        else:
            _log.error("a segment stays in its file: %s", text)

    def _stop(self, error: StorageError) -> None:
        self._stopped = error
        self.counts.failures += 1
        self.last_failure = str(error)
        _log.error("conversion stops: %s", error)


def _concerned(chosen: list[Chosen], error: Exception) -> Chosen:
    """The segment that an error is about: the one whose log is damaged, otherwise the first."""
    path = error.path if isinstance(error, CorruptionError) else ""
    return next((each for each in chosen if each[1].path == path), chosen[0])
