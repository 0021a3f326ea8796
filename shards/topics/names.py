"""Rules for names, and reserved names. Topic filters are in `topic_filters`."""

from __future__ import annotations

import re
from typing import Final

from shards.errors import InvalidNameError

MAX_SHARD_NAME_BYTES = 1024
MAX_NAME_BYTES = 255

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

_GROUP_PREFIX = "group/"
_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
_FORBIDDEN_ANYWHERE = re.compile(f"[{_CONTROL}]")
_FORBIDDEN_IN_SHARD_NAMES = re.compile(f"[+#{_CONTROL}]")


def validate_shard_name(name: str) -> str:
    """Return the name if it is a valid shard name, by the rules of MQTT topic names.

    Raises:
        InvalidNameError: It is empty, over `MAX_SHARD_NAME_BYTES` in UTF-8, or has a forbidden character.
    """
    return _validate("shard name", name, MAX_SHARD_NAME_BYTES, _FORBIDDEN_IN_SHARD_NAMES)


def validate_name(what: str, name: str) -> str:
    """Return the name if it is valid for a cursor, group or producer.

    Args:
        what: The kind of name for the message, such as "cursor name".

    Raises:
        InvalidNameError: It is empty, over `MAX_NAME_BYTES` in UTF-8, or has a control character.
    """
    return _validate(what, name, MAX_NAME_BYTES, _FORBIDDEN_ANYWHERE)


def validate_text(what: str, text: str, max_bytes: int) -> str:
    """Return the text if it is from 1 to ``max_bytes`` of UTF-8 without control characters.

    Raises:
        InvalidNameError: It is not.
    """
    return _validate(what, text, max_bytes, _FORBIDDEN_ANYWHERE)


def _validate(what: str, name: str, max_bytes: int, forbidden: re.Pattern[str]) -> str:
    if not name:
        raise InvalidNameError(f"{what} is empty, it must have from 1 to {max_bytes} bytes")
    if found := forbidden.search(name):
        kinds = "control characters or lone surrogates"
        if forbidden is _FORBIDDEN_IN_SHARD_NAMES:
            kinds = f"'+', '#', {kinds}"
        raise InvalidNameError(
            f"{what} {_shown(name)} has {found[0]!a} at character {found.start()}, it must not have {kinds}"
        )
    size_bytes = len(name.encode())
    if size_bytes > max_bytes:
        raise InvalidNameError(
            f"{what} {_shown(name)} has {size_bytes} bytes in UTF-8, it must have from 1 to {max_bytes}"
        )
    return name


def _shown(name: str) -> str:
    return f"{name!a}" if len(name) <= 60 else f"{name[:60]!a}..."


def group_cursor(group: str) -> str:
    """Name of the cursor with a group's position in each shard."""
    return _GROUP_PREFIX + group


def group_of_cursor(name: str) -> str | None:
    """The group that a cursor with this name belongs to; None for any other cursor."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None
