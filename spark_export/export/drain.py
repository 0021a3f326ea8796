"""Draining a cache queue with Spark: its records become a run of an export, then the queue's offset is advanced.

The run is published completely or not at all, with its end offset; the queue's offset is advanced afterwards. After a
crash between these two steps the target has records that still wait in the queue: the next drain finds that in the
state of the last run, and only advances the queue's offset. So no record is written to the target twice.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from broker_adapter.cache_queue import LeaseSettings
from broker_adapter.cache_queue.names import check_name, shard_of
from shards.errors import StorageError
from spark_export.errors import DataLossError, OptionError, UnreadableError
from spark_export.export.options import ExportOptions
from spark_export.export.outcome import DrainResult, ExportProgress, UnconfirmedError
from spark_export.export.state import ExportState
from spark_export.export.target import Target
from spark_export.export.writing import (
    OnProgress,
    abandoned_on_failure,
    clean_up,
    ignore,
    session_of,
    target_of,
    write_aside,
)
from spark_export.history import Places, Reached
from spark_export.leased_queue import WAIT_S, Backlog, LeasedQueue
from spark_export.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOGGER: Final = logging.getLogger(__name__)


def run_drain(
    spark: SparkSession,
    queue: str,
    options: ExportOptions,
    *,
    wait_s: float = WAIT_S,
    lease: LeaseSettings | None = None,
    progress: OnProgress | None = None,
) -> DrainResult:
    """Add the present records of a cache queue to the target, and remove them from the queue.

    The queue's driver gives way meanwhile. Records that are put in during the run stay for the next one, or for the
    queue's own sink. A drain that fails or is killed at any point leaves the target unchanged or complete, and the next
    one of the same name and target continues from there.

    Args:
        spark: A session whose driver runs in this process.
        queue: Name of the queue.
        options: The export. It needs a server; its ``topics`` and ``shards`` are not used.
        wait_s: How long the queue's driver may take to give way, in seconds.
        lease: The lease settings of the queue's drivers.
        progress: Called during the run, also from other threads.

    Raises:
        DataLossError: The queue ends before the last run did: its store was restored to an older state.
        ExportConflictError: Another process published the same run first.
        ExportError: The target cannot be exported to.
        OptionError: There is no server, or the earlier runs had other settings.
        QueueLostError: Its driver did not give way, or another process has it now: nothing was published.
        QueueNotFoundError: There is no such queue.
        UnconfirmedError: A run was published, but the queue's offset was not advanced.
        UnreadableError: The server or the target cannot be reached.
    """
    report = progress or ignore
    options = attrs.evolve(options, shards=(shard_of(check_name(queue)),), topics=("#",))
    if not options.server:
        raise OptionError(f"draining the cache queue {queue!r} needs the server of the journal: its cursor is there")
    server = parse_options({"server": options.server}).server
    session = session_of(spark)
    target = target_of(session, options)
    report(ExportProgress("waiting"))
    with LeasedQueue(server, queue, wait_s=wait_s, lease=lease) as held:
        return _Drain(session, queue, options, target, held, report).run()


def published_end(reached: Reached | None, backlog: Backlog) -> int:
    """Offset up to which runs have published records of a queue; 0 if they have none.

    After a restore of the queue's node from a backup, the queue has other records from the end of that backup on.
    """
    if reached is None or reached.shard_id != backlog.shard_id:
        return 0
    if backlog.changed_offset is None or backlog.changed_offset >= reached.next_offset:
        return reached.next_offset
    _LOGGER.warning(
        "the store was restored from a backup since the last run, which had the queue up to offset %d: from offset %d "
        "on it holds other records, which are drained as well",
        reached.next_offset,
        backlog.changed_offset,
    )
    return backlog.changed_offset


class _Drain:
    """One drain, while the queue's lease is held."""

    def __init__(
        self,
        session: SparkSession,
        queue: str,
        options: ExportOptions,
        target: Target,
        held: LeasedQueue,
        report: OnProgress,
    ) -> None:
        self._session = session
        self._queue = queue
        self._shard = shard_of(queue)
        self._options = options
        self._target = target
        self._held = held
        self._report = report

    def run(self) -> DrainResult:
        self._report(ExportProgress("planning"))
        last = self._target.last_state()
        last.check_settings(self._options.settings(), self._options.name)
        backlog = self._held.backlog(last.places.read_history)
        recovered = self._recover(last, backlog)
        if recovered:
            backlog = self._held.backlog(last.places.read_history)
        first, end = max(backlog.cursor_offset, backlog.start_offset), backlog.next_offset
        waiting = self._held.counts_up_to(end)
        result = DrainResult(self._queue, None, 0, 0, first, end, recovered, self._target.shown)
        if first < end:
            places = Places({self._shard: Reached(backlog.shard_id, end)}, restores=backlog.restores)
            result = self._publish(ExportState(last.run + 1, self._options.settings(), places), result, backlog)
        if result.run is None:
            clean_up(self._target, last.run)
        expired = max(0, waiting.confirmed - result.records)
        result = attrs.evolve(result, skipped=waiting.dropped_oldest + waiting.lost + expired)
        outcome = msgspec.structs.replace(waiting, confirmed=result.records, expired=expired)
        try:
            self._held.confirm(end, outcome)
        except (StorageError, UnreadableError) as error:
            if result.run is None:
                raise
            raise UnconfirmedError(
                f"{result.target} has run {result.run} with {result.records} records of the cache queue "
                f"{self._queue!r}, but its cursor is still at offset {first}: {error}; the next drain moves it"
            ) from error
        self._report(ExportProgress("confirmed"))
        return result

    def _recover(self, last: ExportState, backlog: Backlog) -> int:
        """Advance the queue's offset after the last run; return how many records these were."""
        end = published_end(last.places.reached.get(self._shard), backlog)
        if end <= backlog.cursor_offset:
            return 0
        if end > backlog.next_offset:
            raise DataLossError(
                f"the cache queue {self._queue!r} ends at offset {backlog.next_offset}, but run {last.run} of export "
                f"{self._options.name!r} has it up to {end}: the store was set back to an earlier state; to drain what "
                "waits there now, give the export another name"
            )
        counts = self._held.counts_up_to(end)
        self._held.confirm(end, counts)
        return counts.confirmed

    def _publish(self, state: ExportState, planned: DrainResult, backlog: Backlog) -> DrainResult:
        """Publish the records between the offsets; does nothing if there are none."""
        first, end = planned.first_offset, planned.next_offset
        with abandoned_on_failure(self._target):
            rows = self._waiting(backlog, first, end)
            records = write_aside(
                self._session, self._target, rows, self._options, state.run, self._report, permission=self._held
            )
            if records:
                self._report(ExportProgress("publishing"))
                # As late as possible: it is not checked again after this.
                self._held.require()
                self._target.publish(state)
        if records:
            self._report(ExportProgress("published"))
            clean_up(self._target, state.run)
        else:
            self._target.abandon()
        return attrs.evolve(planned, run=state.run if records else None, records=records)

    def _waiting(self, backlog: Backlog, first: int, end: int) -> DataFrame:
        """The records between two offsets that the queue's driver would get."""
        origin = attrs.evolve(self._options.origin, fail_on_data_loss=False)
        options = {
            **origin.options(),
            "asQueue": "true",
            "startingOffsets": json.dumps({self._shard: first}),
            "endingOffsets": json.dumps({self._shard: end}),
            "shardIds": json.dumps({self._shard: backlog.shard_id}),
            "minPartitions": str(self._session.sparkContext.defaultParallelism),
        }
        rows = self._session.read.format("journal").options(**options).load()
        dead = [offset for begin, behind in backlog.dead_offsets for offset in range(begin, behind)]
        return rows.where(~rows["offset"].isin(dead)) if dead else rows
