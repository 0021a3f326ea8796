"""The slots that an owner writes: their order, how many are under way, and which are acknowledged. Pure."""

from __future__ import annotations

from collections import OrderedDict

import attrs

from journal.logstore.keys import Position, slot_key
from journal.logstore.objects import Kind, LogObject, encode_object
from journal.logstore.ownership import MOST_UNDER_WAY, Member


@attrs.frozen(slots=True)
class SlotWrite:
    """A slot that is to be created with `journal.logstore.settling.settle_create`.

    Attributes:
        position: Where it lies.
        next_lsn: The lsn of the first entry after it.
    """

    position: Position
    key: str
    data: bytes
    next_lsn: int


class SlotWriter:
    """The slots of one epoch, which is owned and whose log before it was read.

    Invariant: at most ``window`` slots after the last acknowledged one were ever sent. So a fence in the first free
        slot of the epoch stops the writer there.

    Args:
        member: The owner.
        epoch: Its epoch.
        next_lsn: The lsn of the first entry that is written.
        window: How many writes may be under way at a time.

    Attributes:
        window: See above.
        acknowledged: The slot after the last one that is known to be in the log, with all before it.
        acknowledged_lsn: The lsn after the last entry that is known to be in the log.
        is_fenced: Whether a slot was found to have the object of another node. Then nothing more is written or
            acknowledged.
    """

    def __init__(self, member: Member, epoch: int, next_lsn: int, window: int = 1) -> None:
        if not 1 <= window <= MOST_UNDER_WAY:
            raise ValueError(f"{window} writes under way; allowed are 1 to {MOST_UNDER_WAY}")
        self._member = member
        self.window = window
        self._next = Position(epoch, 0)
        self._next_lsn = next_lsn
        self._under_way: OrderedDict[Position, tuple[SlotWrite, bool]] = OrderedDict()
        self.acknowledged = Position(epoch, 0)
        self.acknowledged_lsn = next_lsn
        self.is_fenced = False

    @property
    def can_write(self) -> bool:
        """Whether another write may be sent now."""
        return not self.is_fenced and len(self._under_way) < self.window

    def prepare(self, body: bytes, next_lsn: int, nonce: bytes) -> SlotWrite:
        """The next slot. It counts as under way from now on.

        Args:
            body: Its commit groups.
            next_lsn: The lsn of the first entry after it.
            nonce: 16 random bytes that were not used before.
        """
        assert self.can_write
        assert next_lsn >= self._next_lsn
        position = self._next
        value = LogObject(
            Kind.SLOT,
            self._member.store_id,
            self._member.node_id,
            nonce,
            position.epoch,
            position.slot,
            self._next_lsn,
            next_lsn,
            body,
        )
        write = SlotWrite(position, slot_key(self._member.root, position), encode_object(value), next_lsn)
        self._under_way[position] = (write, False)
        self._next = attrs.evolve(position, slot=position.slot + 1)
        self._next_lsn = next_lsn
        return write

    def settle(self, position: Position, is_ours: bool) -> list[SlotWrite]:
        """Take note of what became of a write.

        Returns:
            The writes that are acknowledged by it, in order: those that are in the log and have all before them in
            it. A slot after the object of another node is not part of the log, even if this node created it.
        """
        write, _ = self._under_way[position]
        self._under_way[position] = (write, is_ours)
        if not is_ours:
            self.is_fenced = True
        acknowledged = []
        while self._under_way:
            first, is_known = next(iter(self._under_way.values()))
            if not is_known:
                break
            del self._under_way[first.position]
            acknowledged.append(first)
            self.acknowledged = attrs.evolve(first.position, slot=first.position.slot + 1)
            self.acknowledged_lsn = first.next_lsn
        return acknowledged
