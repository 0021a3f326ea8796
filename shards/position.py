"""Where a reader starts in a shard or in a set of shards. Resolving a start to an offset is the store's work."""

from __future__ import annotations

from typing import Literal, Self

import attrs

StartKind = Literal["earliest", "latest", "offset", "time", "lsn"]


@attrs.frozen(slots=True)
class Start:
    """A position to read from, as a client names it.

    Attributes:
        kind: What ``value`` counts.
        value: The offset, the time in microseconds since the epoch, or the lsn; 0 for ``earliest`` and ``latest``.
    """

    kind: StartKind
    value: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    @classmethod
    def earliest(cls) -> Self:
        """The first record that is still there."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> Self:
        """Behind the newest committed record: only what is appended from now on."""
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> Self:
        """The record with this offset in its shard. Means nothing for a topic filter."""
        return cls("offset", offset)

    @classmethod
    def time(cls, time_us: int) -> Self:
        """The first record whose timestamp is not before ``time_us`` (microseconds since the epoch)."""
        return cls("time", time_us)

    @classmethod
    def lsn(cls, lsn: int) -> Self:
        """The first record whose batch has this lsn or a later one: a position over all shards of a group."""
        return cls("lsn", lsn)
