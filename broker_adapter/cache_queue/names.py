"""Under which names the parts of a cache queue lie in the store."""

from __future__ import annotations

import re
from typing import Final

from shards.errors import InvalidNameError

SHARD_PREFIX: Final = "$queue/"
"""What the names of all shards of cache queues begin with. MQTT clients can neither publish nor subscribe there."""

CURSOR: Final = "drained"
"""Cursor of a queue's shard, for people and for the server's metrics: it follows `Progress.offset` within a second."""

DEFINITIONS: Final = b"queue/"
"""What the state keys of queues begin with, followed by the queue's name."""

NO_WRITER: Final = ""
"""In place of a writer's name: what is known of a queue's offsets since its mode was changed last."""

_LEASES: Final = b"queue-lease/"
_REQUESTS: Final = b"queue-request/"
_STATUSES: Final = b"queue-status/"
_PROGRESS: Final = b"queue-progress/"
_KNOWN_ENDS: Final = b"queue-end/"
_WRITERS: Final = b"queue-writer/"
_LETTERS_DONE: Final = b"queue-letters-done/"
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
    return f"{SHARD_PREFIX}{queue}"


def dead_letters_of(queue: str) -> str:
    """The shard that holds what the sink refused."""
    return f"{SHARD_PREFIX}{queue}/dead-letters"


def definition_key(queue: str) -> bytes:
    """What the queue is; see `stored.Definition`."""
    return DEFINITIONS + queue.encode()


def queue_of(definition_key: bytes) -> str:
    """The queue that a key made by `definition_key` is of."""
    return definition_key.removeprefix(DEFINITIONS).decode()


def lease_key(queue: str) -> bytes:
    """Who drives the queue; see `stored.Lease`."""
    return _LEASES + queue.encode()


def request_key(queue: str) -> bytes:
    """Who asks for the lease; see `stored.Request`."""
    return _REQUESTS + queue.encode()


def status_key(queue: str) -> bytes:
    """What its driver says of itself; see `stored.Status`."""
    return _STATUSES + queue.encode()


def progress_key(queue: str) -> bytes:
    """How far it is done with; see `stored.Progress`."""
    return _PROGRESS + queue.encode()


def known_ends_prefix(queue: str) -> bytes:
    """What the keys of what writers know of its offsets begin with."""
    return _KNOWN_ENDS + queue.encode() + b"/"


def known_end_key(queue: str, writer: str) -> bytes:
    """What one writer knows of its offsets; see `stored.KnownEnd`."""
    return known_ends_prefix(queue) + writer.encode()


def letters_done_key(queue: str) -> bytes:
    """Which of its dead letters are done with; see `stored.LettersDone`."""
    return _LETTERS_DONE + queue.encode()


def writers_prefix(queue: str) -> bytes:
    """What the keys of all writers' counts begin with."""
    return _WRITERS + queue.encode() + b"/"


def writer_key(queue: str, writer: str) -> bytes:
    """What one writer did not put into it; see `stored.WriterCounts`."""
    return writers_prefix(queue) + writer.encode()
