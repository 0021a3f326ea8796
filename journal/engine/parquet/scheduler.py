"""Sealing: closed log segments become Parquet files, one after the other, in the background.

Which segment is next, what happens when it cannot be sealed, and who waits for it. The file is written by a
`ParquetConverter`, put into its place by `SegmentFiles`, and counts from the moment that a `Sealed` entry is durable;
then the log goes. At any time either the log or the Parquet file counts, never both and never neither.

Nothing that goes wrong here stops the engine: a segment that cannot be sealed stays a log, which loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

import attrs
import trio

from journal.engine.parquet.converter import ParquetConverter
from journal.engine.segments.lifecycle import NotWithdrawnError, SegmentFiles, UnsyncedDirectoryError
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.entry_payloads import Decision, Rolled, Sealed, ShardDeleted, Trimmed
from journal.engine.write.commands import Commands
from journal.settings.server import SealingConfig
from shards.errors import CorruptionError, InvalidRequestError, SealFailedError, StorageError, StorageFailedError
from shards.segments.conversion_plan import ConversionPlan, SealedFile
from shards.segments.log_segment import LogSegment
from shards.segments.shard import Shard

_log = logging.getLogger("journal.sealing")

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
_IDLE_S = 30.0


@attrs.define(eq=False)
class _Wish:
    """Somebody waits until all that lies below an offset, as far as it is closed, is sealed."""

    shard: Shard
    up_to: int
    done: trio.Event = attrs.Factory(trio.Event)
    error: StorageError | None = None


@attrs.define
class _Trouble:
    """A segment that could not be sealed."""

    attempts: int = 0
    not_before: float = 0.0
    corruption: CorruptionError | None = None


class ParquetScheduler:
    """Seals the segments of one engine; one task runs it.

    Args:
        config: Which segments are worth it.
        sealer: Writes the files; None if sealing is switched off.
        files: Puts them into their place.
        table: The shards.
        commands: Records what is sealed.
        recorded: Numbers of the shards of which the views hold closed log segments, opened or not.
        flush: Has a shard written into its files soon.
        refuse: Why nothing may be written just now, if so.

    Attributes:
        sealed_segments: Segments sealed since the start.
        last_failure: What went wrong last, empty after a success.
    """

    def __init__(
        self,
        *,
        config: SealingConfig,
        sealer: ParquetConverter | None,
        files: SegmentFiles,
        table: ShardTable,
        commands: Commands,
        recorded: Callable[[], Generator[int | None, None, None]],
        flush: Callable[[Shard], None],
        refuse: Callable[[], StorageError | None],
    ) -> None:
        self._config = config
        self._sealer = sealer
        self._files = files
        self._table = table
        self._commands = commands
        self._recorded = recorded
        self._flush = flush
        self._refuse = refuse
        self._shards: dict[int, Shard] = {}
        self._wishes: list[_Wish] = []
        self._trouble: dict[tuple[int, int], _Trouble] = {}
        self._failures_in_a_row = 0
        self._not_before = 0.0
        self._stopped: StorageError | None = None
        self._wake = trio.Event()
        self.sealed_segments = 0
        self.last_failure = ""

    @property
    def enabled(self) -> bool:
        """Whether segments are sealed at all."""
        return self._sealer is not None

    # What others call

    def decided(self, decisions: Iterable[tuple[int, int, Decision]]) -> None:
        """Look at the shards that these committed decisions changed."""
        if self._sealer is None:
            return
        for _, shard_id, decision in decisions:
            if isinstance(decision, Rolled) and (shard := self._table.by_id(shard_id)) is not None:
                self.look_at(shard)
            elif isinstance(decision, ShardDeleted | Trimmed):
                self._forget_dropped(shard_id)
                self.wake()

    def _forget_dropped(self, shard_id: int) -> None:
        """Forget what went wrong with segments that the shard no longer has."""
        if not self._trouble:
            return
        shard = self._table.by_id(shard_id)
        kept = {(shard_id, segment.base_offset) for segment in (shard.segments if shard is not None else ())}
        for key in [key for key in self._trouble if key[0] == shard_id and key not in kept]:
            del self._trouble[key]

    def look_at(self, shard: Shard) -> None:
        """The shard may have a closed segment that is due."""
        if self._sealer is not None:
            self._shards[shard.shard_id] = shard
            self.wake()

    def wake(self) -> None:
        """Something changed that may let a segment be sealed."""
        self._wake.set()

    def require_enabled(self) -> None:
        """Refuse to wait for what will not happen.

        Raises:
            InvalidRequestError: Sealing is switched off.
        """
        if self._sealer is None:
            raise InvalidRequestError(
                "segments are not sealed here: sealing.enabled is false in the configuration; ask without waiting"
            )

    async def wait_until_sealed(self, shard: Shard, up_to: int) -> None:
        """Have every closed log segment below an offset sealed, however small, and return when it is.

        What lies in memory is none of them and stays where it is.

        Raises:
            InvalidRequestError: Sealing is switched off.
            SealFailedError: A segment could not be sealed this time.
            CorruptionError: A segment is damaged.
            DiskFullError: The disk is nearly full.
            ShardNotFoundError: The shard was deleted meanwhile.
            ShardDamagedError: It is stopped.
            StorageFailedError: The engine failed.
        """
        self.require_enabled()
        wish = _Wish(shard, up_to)
        for segment in _closed_logs(shard):
            # Whoever asks by hand has perhaps removed what stood in the way.
            trouble = self._trouble.get((shard.shard_id, segment.base_offset))
            if trouble is not None:
                trouble.not_before = 0.0
        self._not_before = 0.0
        self._wishes.append(wish)
        self.wake()
        try:
            await wish.done.wait()
        finally:
            self._wishes.remove(wish)
        if wish.error is not None:
            raise wish.error

    def failed(self, failure: StorageFailedError) -> None:
        """The engine failed: nothing more will be sealed."""
        self._stopped = failure
        self.wake()

    # The task

    async def run(self) -> None:
        """Seal what is due until cancelled."""
        if self._sealer is None:
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_at_recorded)
                while True:
                    self._wake = trio.Event()
                    found = self._next()
                    if found is None:
                        await self._rest()
                    else:
                        await self._seal(self._sealer, *found)
        finally:
            with trio.CancelScope(shield=True):
                await self._sealer.rest()

    async def _look_at_recorded(self) -> None:
        """Find what was closed before this start and is in no open shard, without holding anybody up."""
        with closing(self._recorded()) as found:
            step = TimeSlice()
            for shard_id in found:
                if shard_id is not None and (shard := self._table.by_id(shard_id)) is not None:
                    self.look_at(shard)
                if step.is_over:
                    await step.rest()

    async def _rest(self) -> None:
        """Wait for something to do: a change, or the end of a pause after a failure."""
        assert self._sealer is not None  # only then is there a task
        with trio.move_on_at(self._pause_ends()):
            with trio.move_on_after(_IDLE_S):
                await self._wake.wait()
                return
            await self._sealer.rest()
            await self._wake.wait()

    def _pause_ends(self) -> float:
        if not self._shards or self._stopped is not None:
            return float("inf")
        if self._refuse() is not None:
            # Nobody says when there is room again.
            return trio.current_time() + _FIRST_PAUSE_S
        ends = [
            max(trouble.not_before, self._not_before)
            for trouble in self._trouble.values()
            if trouble.corruption is None
        ]
        # Other segments wait for this one too, also when the segment that failed is gone by now.
        ends.append(self._not_before)
        return min((end for end in ends if end > trio.current_time()), default=float("inf"))

    # Choosing

    def _next(self) -> tuple[Shard, LogSegment] | None:
        """The segment to seal now: asked for by hand first, then those that are due. Wishes that are over are told."""
        refused = self._stopped or self._refuse()
        for wish in self._wishes:
            if wish.done.is_set():
                continue
            try:
                wish.shard.check_usable()
            except StorageError as error:
                _grant(wish, error)
                continue
            waiting = [segment for segment in _closed_logs(wish.shard) if segment.next_offset <= wish.up_to]
            corruptions = [found for segment in waiting if (found := self._corruption(wish.shard, segment)) is not None]
            if waiting and refused is not None:
                _grant(wish, refused)
            elif len(waiting) == len(corruptions):
                _grant(wish, corruptions[0] if corruptions else None)
            elif ready := self._ready(wish.shard, waiting, now=float("inf")):
                return wish.shard, ready
        now = trio.current_time()
        if refused is not None or now < self._not_before:
            return None
        for shard_id, shard in list(self._shards.items()):
            due = [] if shard.damage else [each for each in _closed_logs(shard) if self._is_due(shard, each)]
            if not due:
                del self._shards[shard_id]
            elif ready := self._ready(shard, due, now=now):
                return shard, ready
        return None

    def _corruption(self, shard: Shard, segment: LogSegment) -> CorruptionError | None:
        trouble = self._trouble.get((shard.shard_id, segment.base_offset))
        return trouble.corruption if trouble is not None else None

    def _is_due(self, shard: Shard, segment: LogSegment) -> bool:
        return segment.size_bytes >= self._config.min_bytes and self._corruption(shard, segment) is None

    def _ready(self, shard: Shard, segments: list[LogSegment], *, now: float) -> LogSegment | None:
        """The first of these that lies in its file whole; the others are on their way there when this returns."""
        for segment in segments:
            if segment.flushed < segment.end:
                self._flush(shard)
                return None
            trouble = self._trouble.get((shard.shard_id, segment.base_offset))
            if trouble is None or (trouble.corruption is None and now >= trouble.not_before):
                return segment
        return None

    # Sealing one

    async def _seal(self, sealer: ParquetConverter, shard: Shard, segment: LogSegment) -> None:
        path = self._files.new_path(shard.shard_id, segment.base_offset)
        try:
            written = await sealer.seal(_plan(segment, path))
            # From here on it is done to the end: a file in its place must not be left to itself.
            with trio.CancelScope(shield=True):
                await self._put_in_place(shard, segment, path, written)
        except StorageFailedError as failure:
            # Whether the file counts is known after a restart; the note tells where to look.
            self._stopped = failure
        except UnsyncedDirectoryError as error:
            self._stop(
                SealFailedError(
                    f"{error.filename} could not be synced: {error.strerror}. Nothing more is sealed; appends and "
                    f"reads go on. Restart the server once the disk is sound"
                )
            )
        except (StorageError, OSError) as error:
            if isinstance(error, NotWithdrawnError):
                _log.warning("%s does not count and stays until the next start: %s", error.filename, error.strerror)
            else:
                # What is left of the attempt goes: the next one writes a new file under a new name.
                await self._discard(path)
            if not _is_wanted(shard, segment):
                # Its log may be removed while the worker has not opened it yet: that is no failure of the disk.
                self._forget_trouble(shard, segment)
            elif isinstance(error, CorruptionError):
                self._note_corruption(shard, segment, error)
            else:
                self._note_failure(shard, segment, error)
        else:
            self._failures_in_a_row = 0
            self._not_before = 0.0
            self.last_failure = ""
            self._forget_trouble(shard, segment)

    def _forget_trouble(self, shard: Shard, segment: LogSegment) -> None:
        self._trouble.pop((shard.shard_id, segment.base_offset), None)

    async def _put_in_place(self, shard: Shard, segment: LogSegment, path: str, written: SealedFile) -> None:
        decision = _decision(segment, written)
        sealed = self._table.sealed_segment(shard, decision)
        if _is_wanted(shard, segment):
            try:
                await self._files.place(path, sealed, shard.start_offset)
            except UnsyncedDirectoryError as unsynced:
                # The note stays: whether a removal lasts cannot be known either.
                try:
                    await self._files.withdraw(sealed)
                except OSError as error:
                    raise unsynced from error
                raise
            except (StorageError, OSError):
                await self._files.withdraw(sealed)
                raise
        if not _is_wanted(shard, segment):
            # Trimmed or deleted while the file was being written.
            await self._files.withdraw(sealed)
        else:
            await self._commands.record_seal(shard, decision)
            self.sealed_segments += 1
        await self._discard(path)

    async def _discard(self, path: str) -> None:
        """Remove what ``sealing/`` has of a file that was placed or given up. The next start removes what stays."""
        try:
            await self._files.discard(path)
        except OSError as error:
            _log.warning("%s stays until the next start: %s", path, error)

    def _note_corruption(self, shard: Shard, segment: LogSegment, error: CorruptionError) -> None:
        self._trouble[shard.shard_id, segment.base_offset] = _Trouble(corruption=error)
        self._tell(shard, segment, error)

    def _note_failure(self, shard: Shard, segment: LogSegment, error: Exception) -> None:
        now = trio.current_time()
        trouble = self._trouble.setdefault((shard.shard_id, segment.base_offset), _Trouble())
        trouble.attempts += 1
        trouble.not_before = now + _pause(trouble.attempts)
        self._failures_in_a_row += 1
        self._not_before = now + _pause(self._failures_in_a_row)
        self._tell(shard, segment, error if isinstance(error, StorageError) else SealFailedError(str(error)))

    def _tell(self, shard: Shard, segment: LogSegment, error: StorageError) -> None:
        text = f"shard {shard.name!r}, offsets {segment.base_offset} to {segment.next_offset}: {error}"
        self.last_failure = text
        _log.error("a segment stays a log file: %s", text)
        for wish in self._wishes:
            if wish.shard is shard and segment.next_offset <= wish.up_to:
                _grant(wish, error)

    def _stop(self, error: StorageError) -> None:
        self._stopped = error
        self.last_failure = str(error)
        _log.error("sealing stops: %s", error)


def _grant(wish: _Wish, error: StorageError | None) -> None:
    if not wish.done.is_set():
        wish.error = error
        wish.done.set()


def _closed_logs(shard: Shard) -> Iterator[LogSegment]:
    """Log segments with records that are wholly published and will never grow."""
    if shard.published_segment is None:
        return
    for segment in shard.segments:
        if segment is shard.published_segment and not (
            segment.sealed and not shard.pending_groups and segment.next_offset <= shard.published_offset
        ):
            return
        if isinstance(segment, LogSegment) and segment.next_offset > max(segment.base_offset, shard.start_offset):
            yield segment
        if segment is shard.published_segment:
            return


def _is_wanted(shard: Shard, segment: LogSegment) -> bool:
    return not shard.deleted and segment in shard.segments


def _plan(segment: LogSegment, out_path: str) -> ConversionPlan:
    return ConversionPlan(
        log_path=segment.path,
        out_path=out_path,
        name=segment.name,
        shard_id=segment.shard_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        start_position=segment.start_position,
        end_position=segment.end,
        created_us=segment.created_us,
    )


def _decision(segment: LogSegment, written: SealedFile) -> Sealed:
    return Sealed(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=written.size_bytes,
        digest=written.digest,
        created_us=segment.created_us,
        newest_append_us=segment.newest_append_us,
        last_lsn=segment.last_lsn,
        newest_us=segment.newest_us,
    )


def _pause(failures: int) -> float:
    return min(_FIRST_PAUSE_S * 2.0 ** min(failures - 1, 20), _LONGEST_PAUSE_S)
