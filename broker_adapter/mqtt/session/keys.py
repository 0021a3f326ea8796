"""Keys of the parts of sessions in the state store. Their values are in `stored`.

A client identifier or a topic that is too long for a key is cut and ends in a hash, behind a byte that UTF-8 never has;
the value has the full name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import attrs

from broker_adapter.errors import CorruptionError

_ROOT: Final = b"mqtt/"
BROKERS: Final = _ROOT + b"broker/"
TIMERS: Final = _ROOT + b"timer/"
RETAINED: Final = _ROOT + b"retained/"
SESSIONS: Final = _ROOT + b"session/"
_PROGRESS: Final = _ROOT + b"progress/"
_OWNED: Final = _ROOT + b"owned/"
_SHARE: Final = _ROOT + b"share/"
_MEMBER: Final = _ROOT + b"member/"
DELAYED: Final = _ROOT + b"delayed/"
_CLAIM: Final = _ROOT + b"claim/"

MAX_PART_BYTES: Final = 1024
"""Longest name in a key; four of them fit into the longest key that the journal accepts."""

_CUT: Final = b"\xff"
_DUE_DIGITS: Final = 16
_TIMER_KEY: Final = re.compile(rb"%b([0-9a-f]{%d})/([a-z]+)/(.*)" % (TIMERS, _DUE_DIGITS), re.DOTALL)


def part(name: str) -> bytes:
    """A name as a part of a key. Names with a common prefix have parts with a common prefix, up to `MAX_PART_BYTES`."""
    encoded = name.encode()
    if len(encoded) <= MAX_PART_BYTES:
        return encoded
    return encoded[:MAX_PART_BYTES] + _CUT + hashlib.sha256(encoded).hexdigest().encode()


def broker(broker_id: str) -> bytes:
    """Lease of a broker."""
    return BROKERS + broker_id.encode()


def session(client_id: str) -> bytes:
    """Record of a session."""
    return SESSIONS + part(client_id)


def progress(client_id: str) -> bytes:
    """Progress of a session."""
    return _PROGRESS + part(client_id)


def owned(broker_id: str, client_id: str = "") -> bytes:
    """Key that marks a session as open at a broker; without a client, the prefix of all such keys of that broker."""
    return _OWNED + broker_id.encode() + b"/" + part(client_id)


def share(group: str, topic_filter: str) -> bytes:
    """Record of a shared subscription."""
    return _SHARE + part(group) + b"/" + part(topic_filter)


def member(group: str, topic_filter: str, client_id: str) -> bytes:
    """Key that marks a member of a shared subscription. Neither part before the client has a U+0000."""
    return _MEMBER + part(group) + b"/" + part(topic_filter) + b"\0" + part(client_id)


def claims_of(store_group: str) -> bytes:
    """Prefix of the claims of a group of the store."""
    return _CLAIM + part(store_group) + b"\0"


def claim(store_group: str, shard: str, offset: int, lsn: int) -> bytes:
    """Claim of one message of a group. The lsn distinguishes it from one of a deleted shard of the same name."""
    return claims_of(store_group) + part(shard) + b"\0%016x%016x" % (offset, lsn)


def delayed(name: str) -> bytes:
    """A delayed message that waits for its timer."""
    return DELAYED + name.encode()


def retained(topic: str) -> bytes:
    """The retained message of a topic."""
    return RETAINED + part(topic)


def retained_prefix(topic_prefix: str) -> bytes:
    """Prefix of the keys of all topics that begin with ``topic_prefix``."""
    return RETAINED + topic_prefix.encode()[:MAX_PART_BYTES]


@attrs.frozen(slots=True)
class TimerKey:
    """Key of a timer; the keys sort by due time.

    Attributes:
        kind: ``will``, ``expiry``, ``delayed`` or ``cleanup``.
        name: Key part of the client, or the name of the delayed message or cleanup.
    """

    due_us: int
    kind: str
    name: bytes

    def encode(self) -> bytes:
        """The key in the state store."""
        return TIMERS + b"%0*x/%b/%b" % (_DUE_DIGITS, self.due_us, self.kind.encode(), self.name)

    @classmethod
    def decode(cls, key: bytes) -> TimerKey:
        """Parse a key.

        Raises:
            CorruptionError: It is not a key of a timer.
        """
        found = _TIMER_KEY.fullmatch(key)
        if found is None:
            raise CorruptionError(
                f"timer {key!r}", 0, f"expected {_DUE_DIGITS} hex digits, a kind and a name between slashes"
            )
        due, kind, name = found.groups()
        return cls(int(due, 16), kind.decode(), name)


def session_timer(due_us: int, kind: str, client_id: str) -> bytes:
    """Key of a timer of a session."""
    return TimerKey(due_us, kind, part(client_id)).encode()


def session_of_part(key_part: bytes) -> bytes:
    """Record of a session, by the key part of its client."""
    return SESSIONS + key_part
