"""Which appends are refused because of budgets, quotas and limits, before anything of them is stored."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from journal.engine.state.node_time import NodeTime
from journal.engine.wal.group_commit import MOST_WORDS, Committer
from journal.engine.write.appender import Appender
from journal.protocol.errors import QuotaExceededError
from shards.errors import DiskFullError, LimitExceededError, OverloadedError, StorageError
from shards.format.batch_header import BatchHeader
from shards.quantities import format_size
from shards.segments.chunks import ChunkPool, MemoryAccount
from shards.segments.shard import Shard
from shards.views.inverted_index import Words, word_count, words_of


class Admission:
    """Decides once for each received chunk, not for each append.

    Args:
        appender: Gets the decision.
        committer: If it has failed, everything is refused.
        time: The time of appends.
        memory_pool: The memory of shards in memory mode.
        memory_budget_bytes: The most that it may hold.
        disk_full: Returns the error for appends to files; None if there is space.
        isolation: Returns the error for appends in memory mode of an owner that may not be one any more; None if it is.
    """

    def __init__(
        self,
        appender: Appender,
        committer: Committer,
        time: NodeTime,
        memory_pool: ChunkPool,
        memory_budget_bytes: int,
        disk_full: Callable[[], DiskFullError | None],
        isolation: Callable[[], StorageError | None],
    ) -> None:
        self._appender = appender
        self._committer = committer
        self._time = time
        self._memory_pool = memory_pool
        self._memory_budget_bytes = memory_budget_bytes
        self._disk_full = disk_full
        self._isolation = isolation

    def begin_chunk(self, account: MemoryAccount | None = None) -> None:
        """Set the append time, and which appends are refused, for the `Appender.append` calls that follow.

        Args:
            account: What the memory of segments counts for that they begin.
        """
        appender, pool = self._appender, self._memory_pool
        appender.append_time_us = self._time.append_time_us()
        self._committer.chunk_taken_at_s = perf_counter()
        failure: StorageError | None = self._committer.failure
        appender.refuse_files = failure or self._disk_full()
        failure = failure or self._isolation()
        if failure is None and pool.held_bytes >= self._memory_budget_bytes:
            failure = OverloadedError(
                f"memory-mode shards hold {format_size(pool.held_bytes)}, the limit is "
                f"{format_size(self._memory_budget_bytes)} (storage.memory_budget_bytes); shorten their retention or "
                "switch some to file mode"
            )
        if failure is None and account is not None and account.is_full:
            failure = QuotaExceededError(
                f"memory-mode shards hold {format_size(account.held_bytes)} of {account.owner}, whose share is "
                f"{format_size(account.limit_bytes)} (quotas.memory_bytes); shorten their retention, or ask for a "
                "higher quota"
            )
        pool.account = account
        appender.refuse_memory = failure


def words_to_index(max_batch_bytes: int, shard: Shard, batch: memoryview) -> Words:
    """Words of a batch for the shard's index. Only for this the server decodes the body of a batch.

    Args:
        max_batch_bytes: The most bytes that it may have before compression.
        shard: The shard.
        batch: The batch.

    Raises:
        LimitExceededError: The batch is too large for an indexed shard, or has too many words.
    """
    raw_bytes = BatchHeader.unpack(batch).raw_size
    if raw_bytes > max_batch_bytes:
        raise LimitExceededError(
            f"record batch of {raw_bytes} bytes before compression is over the limit of {max_batch_bytes} for an "
            f"indexed shard (limits.max_batch_bytes); split it"
        )
    # Millions of tags fit into a batch: they are counted before they are decoded. Each takes four bytes and more.
    if raw_bytes > 4 * MOST_WORDS and (count := word_count(shard.config, batch)) > MOST_WORDS:
        raise LimitExceededError(
            f"record batch for the indexed shard {shard.name!r} has {count} keys and tags to index, over the limit of "
            f"{MOST_WORDS} in one batch; send fewer records in a batch"
        )
    return words_of(shard.config, batch)
