"""What a cache queue says when it does not do what it was asked."""

from __future__ import annotations

from broker_adapter.errors import StorageError


class QueueFullError(StorageError):
    """The queue is full and its overflow policy is to tell producers; they may try again when it has drained."""

    code = "queue_full"
    retriable = True


class QueueNotFoundError(StorageError):
    """The store has no cache queue of that name."""

    code = "queue_not_found"


class QueueLostError(StorageError):
    """Somebody else drives the queue now, or its cursor was moved from outside: what was read is not ours any more."""

    code = "queue_lost"
