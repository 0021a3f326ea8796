"""Names of the parts of a cache queue in the store: shards, cursor, state keys."""

from __future__ import annotations

import re
from typing import Final

from broker_adapter.errors import InvalidNameError
from shards.topics.names import (
    DEAD_LETTERS_SUFFIX,
    QUEUE_DEFINITIONS,
    QUEUE_LEASES,
    QUEUE_LETTERS_DONE,
    QUEUE_PREFIX,
    QUEUE_PROGRESS,
    QUEUE_STATUSES,
)

NO_WRITER: Final = ""
"""Used instead of a writer's name: what is known about a queue's offsets since its mode was changed last."""

_REQUESTS: Final = b"queue-request/"
_KNOWN_ENDS: Final = b"queue-end/"
_WRITERS: Final = b"queue-writer/"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Check the name of a queue, and return it.

    Raises:
        InvalidNameError: The name is not valid.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidNameError(
            f"queue name {name!r} is not valid: use 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter "
            "or digit"
        )
    return name


def shard_of(queue: str) -> str:
    """The shard of the queue's records."""
    return f"{QUEUE_PREFIX}{queue}"


def dead_letters_of(queue: str) -> str:
    """The shard of the queue's dead letters."""
    return f"{shard_of(queue)}{DEAD_LETTERS_SUFFIX}"


def definition_key(queue: str) -> bytes:
    """Key of the queue's `stored.Definition`."""
    return QUEUE_DEFINITIONS + queue.encode()


def queue_of(definition_key: bytes) -> str:
    """The queue of a key that `definition_key` returned."""
    return definition_key.removeprefix(QUEUE_DEFINITIONS).decode()


def lease_key(queue: str) -> bytes:
    """Key of the queue's `stored.Lease`."""
    return QUEUE_LEASES + queue.encode()


def request_key(queue: str) -> bytes:
    """Key of the `stored.Request` for the lease."""
    return _REQUESTS + queue.encode()


def status_key(queue: str) -> bytes:
    """Key of the driver's `stored.Status`."""
    return QUEUE_STATUSES + queue.encode()


def progress_key(queue: str) -> bytes:
    """Key of the queue's `stored.Progress`."""
    return QUEUE_PROGRESS + queue.encode()


def known_ends_prefix(queue: str) -> bytes:
    """Prefix of the keys of all writers' `stored.KnownEnd`."""
    return _KNOWN_ENDS + queue.encode() + b"/"


def known_end_key(queue: str, writer: str) -> bytes:
    """Key of one writer's `stored.KnownEnd`."""
    return known_ends_prefix(queue) + writer.encode()


def letters_done_key(queue: str) -> bytes:
    """Key of the queue's `stored.LettersDone`."""
    return QUEUE_LETTERS_DONE + queue.encode()


def writers_prefix(queue: str) -> bytes:
    """Prefix of the keys of all writers' `stored.WriterCounts`."""
    return _WRITERS + queue.encode() + b"/"


def writer_key(queue: str, writer: str) -> bytes:
    """Key of one writer's `stored.WriterCounts`."""
    return writers_prefix(queue) + writer.encode()
