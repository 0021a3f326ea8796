"""Errors of cache queues."""

from __future__ import annotations

from broker_adapter.errors import StorageError


class QueueFullError(StorageError):
    """The queue is full and its overflow policy is to refuse records; producers may try again when it has drained."""

    code = "queue_full"
    retriable = True


class QueueNotFoundError(StorageError):
    """The store has no cache queue of that name."""

    code = "queue_not_found"


class QueueLostError(StorageError):
    """The queue has another driver now, or its offset was changed by others: records read by this one are not valid."""

    code = "queue_lost"
