"""Counts and measurements of an engine, as plain values."""

from __future__ import annotations

from typing import Self

import attrs
import trio

from journal.engine.parquet.gathering_queue import Waiting
from journal.engine.parquet.history_table import TableStatus
from journal.engine.parquet.scheduler import ConversionCounts
from journal.engine.parts import EngineParts
from journal.engine.shared_log.writer import SharedLogWriter
from journal.logstore.counting import RequestCounts
from journal.telemetry.histogram import Histogram
from shards.errors import LogUnavailableError
from shards.views.shared_files import SharedTotals


@attrs.frozen(slots=True)
class LogFigures:
    """The log of a store, as its owner writes it.

    Attributes:
        epoch: The epoch that this server owns.
        slots: Slots written since the start.
        size_bytes: Their bytes.
        is_unavailable: Whether the log store does not take writes at present, no request to it succeeds, or it has not
            given all files of the history yet.
        trouble: Says for how long no request has succeeded, and why; empty if nothing is wrong.
        isolation: Why appends in memory mode are refused, as this server may not be the owner any more; empty if not.
        file_bytes: Bytes of files that were stored in the log store since the start: Parquet, and those of checkpoints.
        checkpoint_age_s: Seconds since a checkpoint was stored in the log store, or nothing was new, or the start.
        requests: Requests of this server to the log store since it joined.
    """

    epoch: int
    slots: int
    size_bytes: int
    is_unavailable: bool
    trouble: str
    isolation: str
    file_bytes: int
    checkpoint_age_s: float
    requests: RequestCounts


@attrs.frozen(slots=True)
class EngineStatistics:
    """Values of an engine at one moment. Counts are since its start; histograms are live and keep changing.

    Attributes:
        shard_count: Shards in the catalogue.
        subscription_count: Open subscriptions.
        committed_lsn: Newest lsn that is durable and published.
        commit_groups: Commit groups made durable.
        group_bytes: Bytes of each commit group.
        group_appends: Appends acknowledged with each commit group.
        acknowledge_s: From the arrival of a group's oldest entry to the acknowledgement of all of it, in seconds.
        sync_s: Seconds that the fdatasync of each commit group took.
        journal_bytes: Bytes of journal files in use.
        tail_bytes: Memory of committed batches that are not written to files yet.
        memory_bytes: Memory of memory segments.
        checkpoints: Checkpoints made.
        checkpoint_s: Seconds that each checkpoint took.
        checkpoint_age_s: Seconds since the last checkpoint, or since the start.
        checkpoint_lag_entries: Entries that a recovery would have to read.
        disk_free_bytes: Bytes left on the fullest disk that holds a part of the data directory.
        disk_full: Whether appends are refused for lack of disk.
        sealed_segments: Segments that were converted to Parquet.
        conversion_failure: Error of the last conversion, otherwise which shared file or shard cannot be read; or empty.
        conversions: How often segments were gathered and rewritten, and how often that or a conversion failed.
        waiting: Closed segments that wait until they are gathered.
        shared_files: Number and bytes of the shared files.
        clock_difference_s: How far the system's clock is ahead of the node's time, in seconds.
        append_time_ahead_s: How far the newest append time is ahead of the node's time, in seconds.
        log: The log of the store; None for a server on its own.
    """

    shard_count: int
    subscription_count: int
    committed_lsn: int
    commit_groups: int
    group_bytes: Histogram
    group_appends: Histogram
    acknowledge_s: Histogram
    sync_s: Histogram
    journal_bytes: int
    tail_bytes: int
    memory_bytes: int
    checkpoints: int
    checkpoint_s: Histogram
    checkpoint_age_s: float
    checkpoint_lag_entries: int
    disk_free_bytes: int
    disk_full: bool
    sealed_segments: int
    conversion_failure: str
    conversions: ConversionCounts
    waiting: Waiting
    shared_files: SharedTotals
    table: TableStatus
    clock_difference_s: float
    append_time_ahead_s: float
    log: LogFigures | None

    @classmethod
    def of(cls, parts: EngineParts) -> Self:
        """Read the values from the parts of an engine."""
        committer, checkpointer, table = parts.committer, parts.checkpointer, parts.table
        # The lsns that a restore skipped have no entries.
        recovered_lsn = max(checkpointer.checkpoint_lsn, parts.restores.newest_lsn - 1)
        return cls(
            shard_count=len(table.catalogue),
            subscription_count=parts.subscriptions.count,
            committed_lsn=committer.committed_lsn,
            commit_groups=committer.groups_committed,
            group_bytes=committer.group_bytes,
            group_appends=committer.group_appends,
            acknowledge_s=committer.acknowledge_s,
            sync_s=parts.writer.sync_s,
            journal_bytes=parts.writer.used_bytes,
            tail_bytes=table.tail_pool.held_bytes,
            memory_bytes=table.memory_pool.held_bytes,
            checkpoints=checkpointer.checkpoints,
            checkpoint_s=checkpointer.checkpoint_s,
            checkpoint_age_s=trio.current_time() - checkpointer.checkpointed_at,
            checkpoint_lag_entries=max(0, committer.journal_lsn - recovered_lsn),
            disk_free_bytes=parts.disk_space.free_bytes,
            disk_full=parts.disk_space.full is not None,
            sealed_segments=parts.conversion.sealed_segments,
            conversion_failure=parts.conversion.failure or parts.history.failure,
            conversions=parts.conversion.counts,
            waiting=parts.conversion.waiting,
            shared_files=parts.views.files.totals(checkpointer.checkpoint_lsn),
            table=parts.history.status,
            clock_difference_s=parts.time.difference_us / 1e6,
            append_time_ahead_s=parts.time.append_time_ahead_us / 1e6,
            log=_log_figures(parts),
        )


def _log_figures(parts: EngineParts) -> LogFigures | None:
    writer = parts.group_writer
    if not isinstance(writer, SharedLogWriter):
        return None
    if parts.stored is None or parts.store_checkpoints is None:
        return None
    trouble, isolation = writer.trouble, writer.isolation
    return LogFigures(
        epoch=writer.epoch,
        slots=writer.slots_written,
        size_bytes=writer.bytes_written,
        is_unavailable=isinstance(parts.committer.disk_full, LogUnavailableError)
        or trouble is not None
        or bool(parts.views.unfetched),
        trouble="" if trouble is None else str(trouble),
        isolation="" if isolation is None else str(isolation),
        file_bytes=parts.stored.files.stored_bytes,
        checkpoint_age_s=trio.current_time() - parts.store_checkpoints.stored_at,
        requests=writer.requests,
    )
