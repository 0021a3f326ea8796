"""Under which names the parts of a cache queue lie in the store."""

from __future__ import annotations

import re
from typing import Final

from broker_adapter.errors import InvalidNameError
from shards.topics.reserved_names import (
    DEAD_LETTERS_SUFFIX,
    QUEUE_DEFINITIONS,
    QUEUE_LEASES,
    QUEUE_LETTERS_DONE,
    QUEUE_PREFIX,
    QUEUE_PROGRESS,
    QUEUE_STATUSES,
)

NO_WRITER: Final = ""
"""In place of a writer's name: what is known of a queue's offsets since its mode was changed last."""

_REQUESTS: Final = b"queue-request/"
_KNOWN_ENDS: Final = b"queue-end/"
_WRITERS: Final = b"queue-writer/"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return the name of a queue.

    Raises:
        InvalidNameError: It cannot be one.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidNameError(
            f"queue name {name!r} is not valid: use 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter "
            "or digit"
        )
    return name


def shard_of(queue: str) -> str:
    """The shard that holds what waits."""
    return f"{QUEUE_PREFIX}{queue}"


def dead_letters_of(queue: str) -> str:
    """The shard that holds what the sink refused."""
    return f"{shard_of(queue)}{DEAD_LETTERS_SUFFIX}"


def definition_key(queue: str) -> bytes:
    """What the queue is; see `stored.Definition`."""
    return QUEUE_DEFINITIONS + queue.encode()


def queue_of(definition_key: bytes) -> str:
    """The queue that a key made by `definition_key` is of."""
    return definition_key.removeprefix(QUEUE_DEFINITIONS).decode()


def lease_key(queue: str) -> bytes:
    """Who drives the queue; see `stored.Lease`."""
    return QUEUE_LEASES + queue.encode()


def request_key(queue: str) -> bytes:
    """Who asks for the lease; see `stored.Request`."""
    return _REQUESTS + queue.encode()


def status_key(queue: str) -> bytes:
    """What its driver says of itself; see `stored.Status`."""
    return QUEUE_STATUSES + queue.encode()


def progress_key(queue: str) -> bytes:
    """How far it is done with; see `stored.Progress`."""
    return QUEUE_PROGRESS + queue.encode()


def known_ends_prefix(queue: str) -> bytes:
    """What the keys of what writers know of its offsets begin with."""
    return _KNOWN_ENDS + queue.encode() + b"/"


def known_end_key(queue: str, writer: str) -> bytes:
    """What one writer knows of its offsets; see `stored.KnownEnd`."""
    return known_ends_prefix(queue) + writer.encode()


def letters_done_key(queue: str) -> bytes:
    """Which of its dead letters are done with; see `stored.LettersDone`."""
    return QUEUE_LETTERS_DONE + queue.encode()


def writers_prefix(queue: str) -> bytes:
    """What the keys of all writers' counts begin with."""
    return _WRITERS + queue.encode() + b"/"


def writer_key(queue: str, writer: str) -> bytes:
    """What one writer did not put into it; see `stored.WriterCounts`."""
    return writers_prefix(queue) + writer.encode()
