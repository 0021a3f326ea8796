"""Appends to a key-value store: whether a batch is taken, where it goes, and when it is acknowledged and shown.

Decisions take effect in one step between two awaits; nothing here waits. How a batch lies in the store is in
`broker_adapter.engines.stored_shard`, which sequences of a producer are due in `broker_adapter.engines.producer_table`,
and the bound on what is under way in `broker_adapter.engines.local_appends`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_adapter.engines.committed_lsn import CommittedLsn
from broker_adapter.engines.group_commit import CommitGroup, GroupCommit
from broker_adapter.engines.local_appends import AppendWindow, LocalAppend
from broker_adapter.engines.producer_table import ProducerTable
from broker_adapter.engines.shard_table import ShardTable
from broker_adapter.engines.stored_shard import StoredShard
from shards.errors import DurabilityUnavailableError, LimitExceededError, OffsetConflictError, StorageError
from shards.format.batch import BatchHeader
from shards.model import AckLevel, Appended, Mode
from shards.seams.clock import Clock
from shards.seams.store import Mutations


class StoredAppends:
    """All appends to one store.

    Args:
        table: The shards.
        commit: Makes batches durable.
        producers: Knows what is stored of them already.
        committed: Is told of the lsn that a batch is given.
        window: Holds the appends under way.
        clock: Tells the time that batches are stamped with.
        durable: Whether a flush makes anything safe. If not, every acknowledgement says `AckLevel.MEMORY`.
        max_batch_bytes: Largest batch that is taken.
        show: Lets readers see a shard up to an offset.
    """

    def __init__(
        self,
        *,
        table: ShardTable,
        commit: GroupCommit,
        producers: ProducerTable,
        committed: CommittedLsn,
        window: AppendWindow,
        clock: Clock,
        durable: bool,
        max_batch_bytes: int,
        show: Callable[[StoredShard, int], None],
    ) -> None:
        self._table = table
        self._commit = commit
        self._producers = producers
        self._committed = committed
        self._window = window
        self._clock = clock
        self._durable = durable
        self._max_batch_bytes = max_batch_bytes
        self._show = show

    def begin(self, name: str, batch: bytes, ack: AckLevel, expected_offset: int | None) -> LocalAppend:
        """Place a batch; the append is done when it is as safe as its shard's mode wants. A refusal is its result."""
        pending = self._window.begin(len(batch))
        try:
            appended, group = self._decide(name, batch, ack, expected_offset)
        except StorageError as error:
            self._window.reject(pending, error)
            return pending
        if group is None:
            self._window.resolve(pending, appended)
            return pending

        def finished(error: StorageError | None) -> None:
            if error is None:
                self._window.resolve(pending, appended)
            else:
                self._window.reject(pending, error)

        group.on_finished(finished)
        return pending

    def check_size(self, batch: bytes) -> None:
        """Raise `LimitExceededError` if a batch is larger than one may be."""
        if len(batch) > self._max_batch_bytes:
            raise LimitExceededError(f"a batch of {len(batch)} bytes exceeds max_batch_bytes ({self._max_batch_bytes})")

    def place(
        self, mutations: Mutations, batches: Sequence[tuple[StoredShard, bytes]]
    ) -> tuple[tuple[Appended, ...], Callable[[], None]]:
        """Put batches that `check_size` has passed into mutations that may change more.

        Returns:
            What is acknowledged once the mutations are durable, and what then shows the batches to readers.
        """
        appended: list[Appended] = []
        ends: dict[StoredShard, int] = {}
        for shard, batch in batches:
            in_memory = not self._durable or shard.config.mode is Mode.MEMORY
            base_offset = self._place(shard, mutations, batch, BatchHeader.unpack(batch))
            if in_memory and self._durable:
                shard.reserve(mutations)
            ends[shard] = shard.next_offset
            appended.append(Appended(base_offset, AckLevel.MEMORY if in_memory else AckLevel.DURABLE))

        def show() -> None:
            for shard, end in ends.items():
                self._show(shard, end)

        return tuple(appended), show

    def _decide(
        self, name: str, batch: bytes, ack: AckLevel, expected_offset: int | None
    ) -> tuple[Appended, CommitGroup | None]:
        """Place a batch and tell what to wait for, if anything, before it may be acknowledged."""
        shard = self._table[name]
        self._commit.require_working()
        in_memory = not self._durable or shard.config.mode is Mode.MEMORY
        if ack is AckLevel.DURABLE and in_memory:
            raise DurabilityUnavailableError(
                f"shard {name!r} cannot acknowledge durably: it is in memory mode or its engine keeps nothing; "
                f"switch it to file mode, or ask for the acknowledgement level 'memory'"
            )
        self.check_size(batch)
        # In file mode MEMORY may be asked for but is not given: an offset told before the flush could, after a crash,
        # be told again for another record.
        level = AckLevel.MEMORY if in_memory else AckLevel.DURABLE
        header = BatchHeader.unpack(batch)
        if header.producer_id:
            stored_at = self._producers.find_duplicate(name, shard.shard_id, header)
            if stored_at is not None:
                # The first sending may still wait for its flush: the repetition must promise no more than is true.
                return Appended(stored_at, level, duplicate=True), self._commit.last_wanted()
        if expected_offset is not None and expected_offset != shard.next_offset:
            raise OffsetConflictError(name, expected_offset, shard.next_offset)
        mutations = Mutations()
        base_offset = self._place(shard, mutations, batch, header)
        must_flush = in_memory and self._durable and shard.reserve(mutations)
        self._commit.write(mutations)
        group = self._make_visible(shard, base_offset, in_memory=in_memory and not must_flush)
        return Appended(base_offset, level), group

    def _place(self, shard: StoredShard, mutations: Mutations, batch: bytes, header: BatchHeader) -> int:
        lsn = self._table.next_lsn(mutations)
        base_offset = shard.append(mutations, batch, lsn, self._table.append_time_us(self._clock.now_us()))
        self._committed.placed(lsn, shard, shard.next_offset)
        if header.producer_id:
            self._producers.fold_append(mutations, shard.shard_id, header, base_offset)
        return base_offset

    def _make_visible(self, shard: StoredShard, base_offset: int, *, in_memory: bool) -> CommitGroup | None:
        """Show a batch to readers: in memory mode at once unless an earlier one waits, else when it is flushed."""
        next_offset = shard.next_offset
        if in_memory and shard.visible_offset == base_offset:
            self._show(shard, next_offset)
            return None
        return self._commit.request(lambda: self._show(shard, next_offset))
