"""The storage adapter: the one interface through which a broker stores and reads, whatever engine is behind it.

The interface has three parts, with their guarantees: records, subscriptions and producers are here, shards in
`shard_admin`, cursors, state and transactions in `state_store`. The types of arguments and results are in `results`,
`subscription`, `feed` and `changes`. Engines are in `broker_adapter.engines`; they all pass the contract suite in
``tests/adapter_contract``. Errors are those of `broker_adapter.errors`, on every engine.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol, Self

import trio

from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.shard_admin import ShardAdmin
from broker_adapter.state_store import StateStore
from broker_adapter.subscription import Delivery, Feed, Subscription
from shards.errors import StorageFailedError
from shards.format.record import Record, StoredRecord
from shards.history import HistoryGap
from shards.model import AckLevel, Appended, ProducerIdentity, StateValue
from shards.position import Start

LATEST = Start.latest()

DEFAULT_READ_BYTES = 1 << 20
"""Default for the maximum of batch bytes that a read returns; at least one whole batch is always returned."""

DEFAULT_CREDIT_BYTES = 1 << 20
"""Default for the maximum of batch bytes that a subscription buffers for its consumer."""


class Reconnection(Protocol):
    """The store over the new connection, and the appends that were not acknowledged over earlier ones."""

    async def get_state(self, key: bytes) -> StateValue | None:
        """See `StorageAdapter.get_state`."""

    def scan_state(self, prefix: bytes = b"") -> AsyncGenerator[StateValue, None]:
        """See `StorageAdapter.scan_state`."""

    def unanswered_batches(self) -> Sequence[Sequence[PendingAppend]]:
        """The appends of each batch that may have been sent and is not acknowledged. A batch is stored as a whole."""

    def withdraw(self, appends: Collection[PendingAppend]) -> None:
        """Never send these appends again, nor those in the same batch as one of them.

        They fail with `ConnectionLostError`; whether those that were sent are stored is unknown.
        """


class StorageAdapter(ShardAdmin, StateStore):
    """Shards, cursors, state and producers of one store.

    Use it as ``async with open_adapter(url) as adapter``. All methods may be called from any number of trio tasks at
    once. A shard's name is like a topic, without ``+`` and ``#``; a *target* with one of them is a filter.
    """

    # Records

    @abc.abstractmethod
    async def append(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append records (or bare values) as one batch: all of them at consecutive offsets, or none.

        Must not return a level of `AckLevel.DURABLE` until the batch would survive a crash of the node at that moment.
        An acknowledged batch is readable, with one exception: a file-mode batch acknowledged as `MEMORY` is readable
        once it is durable. Calls that one task makes one after the other are stored in that order. When the call is
        cancelled the records may or may not be stored.

        Args:
            shard: Name of an existing shard; an append never creates one.
            records: At least one.
            ack: `DEFAULT` is durable in file mode, memory in memory mode. The engine may reach more than was asked.
            expected_offset: Append only if this is the shard's next offset.

        Raises:
            ShardNotFoundError: There is no such shard.
            OffsetConflictError: ``expected_offset`` is not the next offset.
            DurabilityUnavailableError: `DURABLE` was asked of a memory-mode shard or of an engine without a disk.
            LimitExceededError: The batch is larger than the engine's limit.
        """

    @abc.abstractmethod
    def append_nowait(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
        is_last: bool = False,
    ) -> PendingAppend:
        """Queue an append and return at once, for deep pipelines; the guarantees are those of `append`.

        With ``is_last`` the caller queues no other append in this step of the event loop, so an engine need not wait
        for one that it could send together with this one.

        Appends to one shard are stored in the order of the calls. Errors are raised by the result, except for those
        listed below. The amount of unacknowledged appends is bounded: on `OverloadedError` call `wait_for_room` and try
        again.

        Raises:
            OverloadedError: Too many bytes wait for their acknowledgement already; nothing of this append was kept.
            InvalidRequestError: There are no records, or they have a type that cannot be stored.
            trio.ClosedResourceError: The adapter is closed.
        """

    @abc.abstractmethod
    async def wait_for_room(self, size_bytes: int = 1) -> None:
        """Wait until `append_nowait` would accept about ``size_bytes``; another task may use the room first."""

    @abc.abstractmethod
    async def append_batch(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        """Append a batch made by `shards.format.batch.encode`; the guarantees are those of `append`.

        A batch that carries a producer id is stored at most once: a repeated sequence is answered with
        ``duplicate=True``. The journal engine refuses such batches (`InvalidRequestError`), because its client assigns
        the sequence numbers itself, so that appends are stored once across reconnects.

        Raises:
            BatchError: The bytes are not exactly one intact batch.
            UnknownProducerError, StaleEpochError, SequenceGapError: See `shards.errors`.
        """

    @abc.abstractmethod
    async def read(
        self,
        shard: str,
        start: Start | int,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        max_records: int | None = None,
        max_wait_s: float = 0.0,
    ) -> ReadResult:
        """Read records from a position on, in offset order.

        Only committed records are returned: a record of a file-mode shard that was read once is there after any crash.

        Args:
            shard: Name of an existing shard.
            start: A position, or an offset. The end of the shard is a valid offset, with nothing to read yet.
            max_bytes: Stop after about this many batch bytes; at least one batch is read.
            max_records: Stop after this many records and gaps.
            max_wait_s: If there is nothing to read yet, wait this long for an append, in seconds.

        Raises:
            OffsetOutOfRangeError: The offset was trimmed or is past the end; the error gives the valid range.
        """

    @abc.abstractmethod
    async def find_offset(self, shard: str, start: Start) -> int:
        """The offset at which a reader with this start position begins; the shard's end if there is nothing yet.

        For a time it may be the offset of an earlier record of the same batch: the batch is found by its header,
        without decoding it, and the reader skips records inside it.

        Raises:
            OffsetOutOfRangeError: An offset was given that was trimmed or is past the end.
        """

    @abc.abstractmethod
    async def read_batches(
        self, shard: str, offset: int, *, max_bytes: int = DEFAULT_READ_BYTES, max_wait_s: float = 0.0
    ) -> StoredBatches:
        """Read whole batches without decoding them, beginning with the batch that contains ``offset``.

        Like `read`, but nothing is filtered: expired records are included, with their time of expiry.

        Args:
            shard: Name of an existing shard.
            offset: The end of the shard is a valid offset, with nothing to read yet.
            max_bytes: Stop after about this many bytes; at least one batch is read.
            max_wait_s: If there is nothing to read yet, wait this long for an append, in seconds.

        Raises:
            OffsetOutOfRangeError: The offset was trimmed or is past the end; the error gives the valid range.
        """

    @abc.abstractmethod
    async def read_by_key(
        self, shard: str, key: bytes, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        """Records with that key, in offset order. ``next_offset`` is the shard's end when there are no more.

        Raises:
            IndexMissingError: The shard was created without ``index_keys``.
        """

    @abc.abstractmethod
    async def read_by_tag(
        self, shard: str, tag: str, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        """Records with that tag, like `read_by_key`; needs ``index_tags``."""

    @abc.abstractmethod
    async def read_latest(self, shard: str, key: bytes) -> StoredRecord | None:
        """The newest record with that key that has not expired; needs ``index_keys``."""

    @abc.abstractmethod
    def subscribe(
        self,
        target: str,
        start: Start = LATEST,
        *,
        group: str | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AbstractAsyncContextManager[Subscription]:
        """Receive the records of a shard, or of all shards that match a filter, as they are committed.

        The start position is taken before the context is entered, so nothing that is appended inside it is missed. A
        shard that is created later is delivered from its first record. Order holds within a shard. A slow consumer
        delays no other; it costs at most ``credit_bytes`` and one batch of memory, however much is appended.

        Args:
            target: Shard name or topic filter.
            start: Where to begin in each shard; a group that has a committed position continues from there.
            group: Share the records with the other members of this group. Each delivery goes to one member, which
                acknowledges it; unacknowledged deliveries of a lost member go to the others. Members take turns. In a
                group whose name begins with ``sticky/`` a shard stays with one member while that member is connected
                and preferred.
            credit_bytes: Maximum of batch bytes that are sent and not consumed yet.
        """

    async def tail(self, target: str, start: Start = LATEST) -> AsyncGenerator[Delivery, None]:
        """Iterate over deliveries; a short form of `subscribe`. Close it (`contextlib.aclosing`) to leave it early."""
        async with self.subscribe(target, start) as subscription:
            async for delivery in subscription:
                yield delivery

    @abc.abstractmethod
    def follow(
        self,
        topic_filter: str,
        after_lsn: int | None = None,
        *,
        until_lsn: int | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AbstractAsyncContextManager[Feed]:
        """Receive every record above an lsn from all matching shards, and the lsn reached so far; see `Feed`.

        One lsn is a position in all shards of the store. Shards are read only if they have something newer, so a filter
        that matches a million idle shards costs nothing. A memory-mode shard may show records while file-mode records
        with lower lsns are still being written to disk; such records may be above the current lsn, and then they are
        delivered too.

        Args:
            topic_filter: Topic filter or shard name; shards that are created later are included.
            after_lsn: Only records with a higher lsn; None: from now on. If retention has dropped some of them there is
                no error and no gap: the remaining ones are delivered.
            until_lsn: End after this lsn, with a last `Progress` of at least that: nothing above it is delivered.
                Entries that are not committed yet are waited for, without a limit, until an lsn this high has been
                assigned.
            credit_bytes: Maximum of batch bytes sent and not consumed yet. A slow consumer delays no other, and costs
                this much memory and one batch.

        Raises:
            InvalidNameError: The filter is not valid.
            InvalidRequestError: An lsn is negative.
        """

    # Other clients of the store

    @property
    def client_name(self) -> str:
        """The name of this client in the store; empty where the store is in this process and has no other clients."""
        return ""

    async def end_client(self, name: str) -> int:
        """Close the connections of another client of the store, and with them its shares in groups.

        A client that is alive connects again. Each request that it had sent is carried out by then, or never will be.

        Returns:
            How many connections it had.

        Raises:
            StorageError: The store does not answer, or does not allow it.
        """
        await trio.lowlevel.checkpoint()
        return 0

    # Connections to the store

    def before_resending(self, check: Callable[[Reconnection], Awaitable[None]]) -> AbstractContextManager[None]:
        """Register a check that runs after each loss of the connection to the store, before the next one is used.

        While it runs every call waits, and no append is sent again. If it raises an error of the store, it runs again
        over another connection. A store in this process has no connection to lose, so the check never runs.

        Returns:
            A context manager; the check is registered inside it.
        """
        return nullcontext()

    # Producers and life cycle

    @abc.abstractmethod
    async def open_producer(self, name: str) -> ProducerIdentity:
        """Register a producer, or take over its name: the epoch rises and all holders of an older epoch are refused.

        Must not return until the new epoch would survive a crash.
        """

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        """The newest restores of the store from backups that this client knows, oldest first."""
        return ()

    @property
    def failed_shard_count(self) -> int:
        """How many shards subscriptions and feeds skip because the store cannot read them; each is logged."""
        return 0

    @property
    def unreadable_range_count(self) -> int:
        """How many ranges of records subscriptions and feeds have passed over because the store cannot read them."""
        return 0

    def append_state(self, shard: str) -> str:
        """What unacknowledged appends to a shard wait for, for operators; empty if that is not known."""
        return ""

    async def wait_failed(self) -> StorageFailedError:
        """Wait until the store has failed in a way that only reopening it can repair; return the failure.

        This concerns stores in this process. For a store in another process it returns only if the adapter was opened
        with ``ends_at_restore`` (`open_adapter`) and the store was restored from a backup.
        """
        await trio.sleep_forever()

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End all subscriptions and release everything.

        Calls still waiting raise `trio.ClosedResourceError`, and so does every call afterwards. Closing twice does
        nothing.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
