"""The appends to one shard: a queue of those that are not encoded yet, then the producer window."""

from __future__ import annotations

from collections.abc import Collection

from journal.client.append_future import AppendFuture
from journal.client.batching import AppendQueue
from journal.client.producer_window import Entry, ProducerWindow
from shards.errors import StorageError


class ShardAppends:
    """The unacknowledged appends to one shard, and whether they can be sent now."""

    __slots__ = (
        "attempts",
        "handle",
        "is_opening",
        "is_ready",
        "is_urgent",
        "is_waiting",
        "name",
        "queue",
        "refusal",
        "window",
    )

    def __init__(self, name: str, queue: AppendQueue) -> None:
        self.name = name
        self.queue = queue
        self.window: ProducerWindow | None = None
        self.handle: int | None = None
        self.is_ready = False
        self.is_urgent = False
        self.is_opening = False
        self.is_waiting = False
        self.attempts = 0
        # Why it waited the last time. Valid while there are attempts, so that an acknowledgement need not clear it.
        self.refusal: StorageError | None = None

    @property
    def has_work(self) -> bool:
        """Whether something waits to be sent, now or when the window permits."""
        return bool(self.queue.waiting) or (self.window is not None and bool(self.window.queued))

    @property
    def state(self) -> str:
        """What the appends wait for, as a text for operators."""
        in_flight, queued = (0, 0) if self.window is None else (len(self.window.in_flight), len(self.window.queued))
        if self.is_waiting:
            step = f"to be sent again after a pause, since the server refused: {self.refusal}"
        elif self.is_opening:
            step = "the shard is being opened"
        elif self.is_ready:
            step = "to be sent"
        elif in_flight:
            step = "sent, not answered"
        elif queued or self.queue.waiting:
            step = "neither sent nor marked as ready"
        else:
            return "all are answered"
        return f"{step} ({in_flight} batches sent, {queued} to be sent, {len(self.queue)} appends behind them)"

    def connection_lost(self) -> None:
        """Note the end of the connection: the handle is lost, and results of appends in flight are not known."""
        self.handle = None
        self.is_ready = False
        self.is_opening = False
        self.is_waiting = False
        if self.window is not None:
            self.window.connection_lost()

    def batches(self) -> list[list[AppendFuture]]:
        """The appends of each batch that is encoded and not answered."""
        if self.window is None:
            return []
        entries = (*self.window.in_flight, *self.window.queued)
        return [entry.token for entry in entries if not entry.is_done]

    def withdraw(self, appends: Collection[object]) -> list[AppendFuture]:
        """Remove appends, and those that share an encoded batch with one of them; returns all that were removed.

        REQUIRES: There is no connection, so that nothing is in flight.
        """

        def is_withdrawn(entry: Entry) -> bool:
            return any(pending in appends for pending in entry.token)

        entries = () if self.window is None else self.window.withdraw(is_withdrawn)
        return [pending for entry in entries for pending in entry.token] + self.queue.withdraw(appends)
