"""Names that are reserved by parts of the product, each defined only here.

Other parts, above all the server's metrics and console, use the same definitions.
"""

from __future__ import annotations

from typing import Final

BROKER_PREFIX: Final = "$mqtt/"
"""Prefix of the names of the MQTT broker's own shards. Clients can neither publish nor subscribe there."""

QUEUE_PREFIX: Final = "$queue/"
"""Prefix of the names of all shards of cache queues. MQTT clients can neither publish nor subscribe there."""

DEAD_LETTERS_SUFFIX: Final = "/dead-letters"
"""Suffix of the name of a queue's shard for the shard with the records that its sink refused."""

QUEUE_CURSOR: Final = "drained"
"""Cursor of a queue's shard, for people and for the server's metrics: it follows the stored position within a
second."""

QUEUE_DEFINITIONS: Final = b"queue/"
QUEUE_LEASES: Final = b"queue-lease/"
QUEUE_STATUSES: Final = b"queue-status/"
QUEUE_PROGRESS: Final = b"queue-progress/"
QUEUE_LETTERS_DONE: Final = b"queue-letters-done/"
"""Prefix of the keys of the state store with the state of a queue, followed by the queue's name."""

_GROUP_PREFIX: Final = "group/"


def group_cursor(group: str) -> str:
    """Name of the cursor with a group's position in each shard."""
    return _GROUP_PREFIX + group


def group_of_cursor(name: str) -> str | None:
    """The group that a cursor with this name belongs to; None for any other cursor."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None
