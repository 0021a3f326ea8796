"""A commit group: entries of any shards that are made durable together, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from journal.engine.wal.entry_payloads import Decision
from journal.engine.wal.pending_ack import AppendResult
from shards.errors import StorageFailedError
from shards.model import Appended
from shards.segments.chunks import Readable
from shards.segments.shard import Published, Shard
from shards.views.inverted_index import Words


class AckSink(Protocol):
    """Receiver of acknowledgements: the connection that sent the frames.

    Attributes:
        number: Number of the connection, rising.
        producers: Prefix of the names of the producers that it may use; empty for all names.
    """

    number: int
    producers: str

    def acknowledge(self, acks: bytearray) -> None:
        """Accept packed ``protocol.ACK`` entries; called on the event loop, must not block."""

    def fail(self, error: StorageFailedError) -> None:
        """Note that the engine failed: nothing outstanding will be acknowledged."""


class Group:
    """Entries that are made durable together.

    Attributes:
        number: Place in the sequence of groups.
        buffers: Encoded entries in order.
        touched: Shards with batches or segments in it, each once.
        decisions: (lsn, shard id, decision) of the entries that are not batches.
        words: (shard, base offset, words) of batches whose shard has an index.
        word_count: Number of these words.
        acks: Packed acknowledgements by sink, sent after the commit.
        results: Outcomes of appends from inside the process, passed on after the commit.
        held: Called after the commit, or when the engine has failed.
        lent: Called when the memory is not needed any more in which received entries lie.
        published: The next offset of each touched shard that becomes visible when the group is durable.
        committed: It is durable and published.
        taken_at_s: When the oldest of its entries arrived, on the monotonic clock; 0 before the first.
    """

    __slots__ = (
        "_done",
        "_is_finished",
        "acks",
        "buffers",
        "committed",
        "decisions",
        "first_lsn",
        "held",
        "lent",
        "next_lsn",
        "number",
        "published",
        "results",
        "size_bytes",
        "taken_at_s",
        "touched",
        "word_count",
        "words",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffers: list[Readable] = []
        self.size_bytes = 0
        self.touched: list[Shard] = []
        self.decisions: list[tuple[int, int, Decision]] = []
        self.words: list[tuple[Shard, int, Words]] = []
        self.word_count = 0
        self.acks: dict[AckSink, bytearray] = {}
        self.results: list[tuple[AppendResult, Appended]] = []
        self.held: list[Callable[[], None]] = []
        self.lent: list[Callable[[], None]] = []
        self.published: list[tuple[Shard, Published]] = []
        self.first_lsn = 0
        self.next_lsn = 0
        self.committed = False
        self.taken_at_s = 0.0
        self._done: trio.Event | None = None
        self._is_finished = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write and nothing to publish."""
        return not self.buffers and not self.touched and not self.acks and not self.results and not self.held

    def touch(self, shard: Shard) -> None:
        """Note that this group changes the shard."""
        if shard.group_number != self.number:
            shard.group_number = self.number
            shard.pending_groups += 1
            self.touched.append(shard)

    def done(self) -> trio.Event:
        """Set when the group is published or has failed."""
        if self._done is None:
            self._done = trio.Event()
            if self._is_finished:
                self._done.set()
        return self._done

    def copy_out(self) -> None:
        """Copy the entries into memory of their own, and give back that in which they were received.

        REQUIRES: no other thread reads them now. The list stays the same, for those that read them later.
        """
        if self.lent:
            self.buffers[:] = [b"".join(self.buffers)] if self.buffers else []
            self._give_back()

    def _give_back(self) -> None:
        for give_back in self.lent:
            give_back()
        self.lent.clear()

    def finish(self) -> None:
        """Wake the tasks that wait for the group, and release its buffers."""
        self._give_back()
        for committed in self.held:
            committed()
        self.held.clear()
        self._is_finished = True
        if self._done is not None:
            self._done.set()
