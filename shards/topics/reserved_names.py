"""Names that parts of the product keep for themselves: each is written here and nowhere else.

What other parts read of them, the server's metrics and console above all, finds the same names.
"""

from __future__ import annotations

from typing import Final

BROKER_PREFIX: Final = "$mqtt/"
"""What the names of the MQTT broker's own shards begin with. Clients can neither publish nor subscribe there."""

QUEUE_PREFIX: Final = "$queue/"
"""What the names of all shards of cache queues begin with. MQTT clients can neither publish nor subscribe there."""

DEAD_LETTERS_SUFFIX: Final = "/dead-letters"
"""What follows the name of a queue's shard in that of the shard with the records that its sink refused."""

QUEUE_CURSOR: Final = "drained"
"""Cursor of a queue's shard, for people and for the server's metrics: it follows the position in the store within a
second."""

QUEUE_DEFINITIONS: Final = b"queue/"
QUEUE_LEASES: Final = b"queue-lease/"
QUEUE_STATUSES: Final = b"queue-status/"
QUEUE_PROGRESS: Final = b"queue-progress/"
QUEUE_LETTERS_DONE: Final = b"queue-letters-done/"
"""What the keys of the state store begin with that say how a queue is, followed by the queue's name."""

_GROUP_PREFIX: Final = "group/"


def group_cursor(group: str) -> str:
    """Name of the cursor that holds a group's position in each shard."""
    return _GROUP_PREFIX + group


def group_of_cursor(name: str) -> str | None:
    """The group whose positions a cursor of this name holds; None for any other cursor."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None
