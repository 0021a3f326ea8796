"""Start positions in a shard or in a set of shards. The store resolves them to offsets."""

from __future__ import annotations

from typing import Literal, Self

import attrs

StartKind = Literal["earliest", "latest", "offset", "time", "lsn"]


@attrs.frozen(slots=True)
class Start:
    """A position at which a client begins to read.

    Attributes:
        kind: The kind of ``value``.
        value: The offset, the time in microseconds since the epoch, or the lsn; 0 for ``earliest`` and ``latest``.
    """

    kind: StartKind
    value: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    @classmethod
    def earliest(cls) -> Self:
        """The first record that was not trimmed."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> Self:
        """After the newest committed record: only later records."""
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> Self:
        """The record with this offset in its shard. Not valid for a topic filter."""
        return cls("offset", offset)

    @classmethod
    def time(cls, time_us: int) -> Self:
        """The first record whose timestamp is not before ``time_us`` (microseconds since the epoch)."""
        return cls("time", time_us)

    @classmethod
    def lsn(cls, lsn: int) -> Self:
        """The first record whose batch has this lsn or a later one: a position over all shards of a group."""
        return cls("lsn", lsn)
