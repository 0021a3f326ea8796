"""What a client knows: everything it asked for and what was acknowledged. It says whether a store kept its promises.

Values are unique, so a record that is read back shows which append it belongs to. What was asked for but not
acknowledged may be there or not, but only as a whole, once, and in its place.
"""

from __future__ import annotations

import attrs

from shards.format.record import Gap, StoredRecord
from shards.model import AckLevel, Cursor, ProducerIdentity, StateValue


class BrokenPromiseError(AssertionError):
    """The store does not hold what it acknowledged, or holds what was not appended."""


def require(holds: bool, what: str, *values: object) -> None:
    """Fail with everything that is needed to see why."""
    if not holds:
        raise BrokenPromiseError(f"{what}: {', '.join(map(repr, values))}")


@attrs.define(eq=False)
class Sent:
    """One append.

    Attributes:
        stream: Who sent it; the appends of one stream to one shard keep their order.
        offset: Where it was acknowledged to lie, or was found; -1 when that is not known.
        level: What was acknowledged; None while it is not.
        sequence: Its producer's sequence, or -1.
    """

    values: tuple[bytes, ...]
    stream: str
    sequence: int = -1
    offset: int = -1
    level: AckLevel | None = None


@attrs.define(eq=False)
class Register:
    """A versioned value: cursor or state key. Versions rise with every change."""

    value: object = None
    version: int = 0
    attempted: list[object] = attrs.Factory(list)

    def attempt(self, value: object) -> None:
        """It was asked to become this (None: to be removed)."""
        self.attempted.append(value)

    def acknowledge(self, value: object, version: int) -> None:
        """It was acknowledged to be this."""
        require(version > self.version or value is None, "a version does not rise", value, version, self.version)
        self.value, self.version = value, max(version, self.version)
        self.attempted.clear()

    def check(self, name: object, value: object, version: int) -> None:
        """This was found: the acknowledged value or one that was asked for later."""
        if value is not None and version == self.version:
            require(value == self.value, "a version has another value", name, value, version, self.value)
        elif value != self.value or value is not None:
            require(value in self.attempted, "this value was never written", name, value, version, self)
            require(value is None or version > self.version, "an older version came back", name, value, version, self)
        self.value, self.version = value, max(version, self.version)
        self.attempted.clear()


@attrs.define(eq=False)
class ShardLedger:
    """One life of one shard, from its creation to its deletion."""

    name: str
    shard_id: int = 0
    creating: bool = False
    deleting: bool = False
    ever_in_memory: bool = False
    retention_trims: bool = False
    sent: list[Sent] = attrs.Factory(list)
    owners: dict[bytes, Sent] = attrs.Factory(dict)
    contents: dict[int, bytes] = attrs.Factory(dict)
    durable: dict[int, bytes] = attrs.Factory(dict)
    trimmed: int = 0
    trims_asked: list[int] = attrs.Factory(list)
    cursors: dict[str, Register] = attrs.Factory(dict)

    def send(self, values: tuple[bytes, ...], stream: str, sequence: int = -1) -> Sent:
        """An append was asked for."""
        sent = Sent(values, stream, sequence)
        self.sent.append(sent)
        for value in values:
            self.owners[value] = sent
        return sent

    def acknowledge(self, sent: Sent, offset: int, level: AckLevel) -> None:
        """It was acknowledged."""
        sent.offset, sent.level = offset, level
        for place, value in enumerate(sent.values, offset):
            self._see(place, value)
            if level is AckLevel.DURABLE:
                self.durable[place] = value

    def _see(self, offset: int, value: bytes) -> None:
        known = self.contents.setdefault(offset, value)
        require(known == value, "an offset has two contents", self.name, offset, known, value)

    def read(self, found: list[StoredRecord | Gap], start_offset: int, next_offset: int) -> dict[int, bytes]:
        """Check what a reader was given for a range: without holes, one content per offset, only what was sent."""
        at = start_offset
        records: dict[int, bytes] = {}
        for item in found:
            if isinstance(item, Gap):
                require(self.ever_in_memory, "a gap in a shard that was always in file mode", self.name, item)
                require(item.first_offset == at, "a hole before a gap", self.name, at, item)
                at = item.next_offset
                continue
            require(item.offset == at, "a hole or a repetition", self.name, at, item.offset)
            owner = self.owners.get(item.value)
            require(owner is not None, "this was never sent", self.name, item.offset, item.value)
            self._see(item.offset, item.value)
            records[item.offset] = item.value
            at += 1
        require(at == next_offset, "the end does not come where it should", self.name, at, next_offset)
        return records

    def check(self, found: list[StoredRecord | Gap], start_offset: int, next_offset: int) -> None:
        """Check all that a shard holds after a start, when whatever was in memory alone is gone."""
        records = self.read(found, start_offset, next_offset)
        allowed = {self.trimmed, *self.trims_asked}
        by_retention = self.retention_trims and self.trimmed <= start_offset <= next_offset
        require(by_retention or start_offset in allowed, "never trimmed to here", self.name, start_offset, allowed)
        for offset, value in self.durable.items():
            if offset >= start_offset:
                require(records.get(offset) == value, "an acknowledged record is missing", self.name, offset, value)
        taken = max(self.contents, default=-1)
        require(next_offset > taken, "an offset that was given out is free again", self.name, next_offset, taken)
        self._check_batches(records, start_offset)
        self.trimmed = start_offset
        self.trims_asked.clear()
        self.durable.update(records)

    def _check_batches(self, records: dict[int, bytes], start_offset: int) -> None:
        places: dict[bytes, int] = {}
        for offset, value in records.items():
            require(value not in places, "a record is there twice", self.name, value, places.get(value), offset)
            places[value] = offset
        newest: dict[str, int] = {}
        for sent in self.sent:
            present = [(number, places[value]) for number, value in enumerate(sent.values) if value in places]
            if not present:
                continue
            base = present[0][1] - present[0][0]
            require(
                [offset for _, offset in present] == list(range(max(base, start_offset), base + len(sent.values))),
                "a batch is torn",
                self.name,
                sent,
                present,
            )
            require(base > newest.get(sent.stream, -1), "appends changed their order", self.name, sent, base, newest)
            newest[sent.stream] = base
            sent.offset = base


@attrs.define(eq=False)
class ProducerLedger:
    """A producer and what it sent to one shard."""

    name: str
    identity: ProducerIdentity | None = None
    opening: bool = False
    next_sequence: int = 0
    last: Sent | None = None
    outstanding: list[Sent] = attrs.Factory(list)


@attrs.define(eq=False)
class Ledger:
    """All that the clients of one store know."""

    shards: dict[str, ShardLedger] = attrs.Factory(dict)
    state: dict[bytes, Register] = attrs.Factory(dict)
    producers: dict[str, ProducerLedger] = attrs.Factory(dict)
    number: int = 0
    newest_shard_id: int = 0

    def value(self, size: int) -> bytes:
        """A value that was never used before."""
        self.number += 1
        return b"%d." % self.number + b"x" * size

    def check_cursors(self, shard: ShardLedger, found: list[Cursor]) -> None:
        """Compare a shard's cursors."""
        by_name = {cursor.name: cursor for cursor in found}
        require(by_name.keys() <= shard.cursors.keys(), "a cursor that was never set", shard.name, found)
        for name, register in shard.cursors.items():
            cursor = by_name.get(name)
            register.check((shard.name, name), cursor and cursor.offset, cursor.version if cursor else 0)

    def check_state(self, found: list[StateValue]) -> None:
        """Compare the state store."""
        by_key = {value.key: value for value in found}
        require(by_key.keys() <= self.state.keys(), "a state key that was never set", found)
        for key, register in self.state.items():
            value = by_key.get(key)
            register.check(key, value and value.value, value.version if value else 0)
