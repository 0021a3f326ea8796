"""Reading a log in order: by a new owner up to its own epoch, by a follower for ever."""

from __future__ import annotations

import attrs

from journal.logstore.checkpoints import Checkpoint, checkpoint_after
from journal.logstore.errors import LogDamagedError
from journal.logstore.keys import BEGINNING, Position, slot_key
from journal.logstore.objects import Kind, LogObject, check_object
from journal.logstore.ownership import Member
from journal.logstore.settling import settle_get
from journal.logstore.steps import Steps


@attrs.frozen(slots=True)
class SlotRead:
    """The next slot of the log."""

    slot: LogObject


@attrs.frozen(slots=True)
class Restarted:
    """The reader was slower than the collector: what it has of the log is replaced by a checkpoint."""

    checkpoint: Checkpoint


@attrs.frozen(slots=True)
class AtTail:
    """Nothing follows at present."""

    position: Position


class LogReader:
    """Reads the slots of a log in order.

    Args:
        member: The store.
        checkpoint: Where to begin; the beginning of the log by default.
        first_lsn: The lsn of the first entry of a log without a checkpoint.

    Attributes:
        position: The slot that is read next.
        next_lsn: The lsn of the next entry.
    """

    def __init__(self, member: Member, checkpoint: Checkpoint | None = None, first_lsn: int = 1) -> None:
        self._member = member
        self.position = checkpoint.position if checkpoint else BEGINNING
        self.next_lsn = checkpoint.next_lsn if checkpoint else first_lsn

    def read(
        self, end_epoch: int | None = None, *, looks_for_checkpoints: bool = True
    ) -> Steps[SlotRead | Restarted | AtTail]:
        """Read what comes next.

        Args:
            looks_for_checkpoints: Whether to find out if a slot that is missing was collected. A follower does so from
                time to time only: until then it takes the place for the end of the log.
            end_epoch: An owner reads all that is before its own epoch; `AtTail` is the answer when that is done.

        Raises:
            LogDamagedError: A slot is damaged or does not continue the one before it, or an epoch before `end_epoch`
                is not closed.
            ForeignStoreError: An object belongs to another store.
        """
        while end_epoch is None or self.position.epoch < end_epoch:
            position = self.position
            key = slot_key(self._member.root, position)
            data = yield from settle_get(key)
            if data is None and not looks_for_checkpoints:
                return AtTail(position)
            if data is None:
                newest = yield from self._newest_checkpoint()
                if newest is not None and newest.next_lsn == self.next_lsn:
                    # What was collected is known here.
                    self.position = newest.position
                    continue
                if newest is not None:
                    return self._begin_at(newest)
                if end_epoch is not None:
                    raise LogDamagedError(f"{key} is missing: epoch {position.epoch} is not closed by a fence")
                return AtTail(position)
            store_id = self._member.store_id
            found = check_object(key, data, store_id, position.epoch, position.slot, Kind.SLOT, Kind.FENCE)
            if found.kind is Kind.SLOT:
                return self._advance(key, found)
            restarted = yield from self._restart_at_fence()
            if restarted is not None:
                return restarted
            self.position = Position(position.epoch + 1, 0)
        return AtTail(self.position)

    def _advance(self, key: str, slot: LogObject) -> SlotRead:
        if slot.first_lsn != self.next_lsn or slot.next_lsn < slot.first_lsn:
            raise LogDamagedError(
                f"{key} holds lsns from {slot.first_lsn} up to but not including {slot.next_lsn}; "
                f"expected is {self.next_lsn}"
            )
        self.position = attrs.evolve(self.position, slot=slot.slot + 1)
        self.next_lsn = slot.next_lsn
        return SlotRead(slot)

    def _restart_at_fence(self) -> Steps[Restarted | None]:
        """A fence that is before a checkpoint can have taken the place of a deleted slot: it does not end its epoch.

        But if the next slot of a later epoch continues what is known here, none was deleted before it.
        """
        newest = yield from self._newest_checkpoint()
        if newest is None or newest.next_lsn == self.next_lsn:
            return None
        for epoch in range(self.position.epoch + 1, newest.position.epoch + 1):
            key = slot_key(self._member.root, Position(epoch, 0))
            data = yield from settle_get(key)
            if data is None:
                break
            found = check_object(key, data, self._member.store_id, epoch, 0, Kind.SLOT, Kind.FENCE)
            if found.kind is Kind.SLOT:
                if found.first_lsn == self.next_lsn:
                    return None
                break
        return self._begin_at(newest)

    def _newest_checkpoint(self) -> Steps[Checkpoint | None]:
        """The newest checkpoint, if it is after the position."""
        return (yield from checkpoint_after(self._member.root, self._member.store_id, self.position))

    def _begin_at(self, checkpoint: Checkpoint) -> Restarted:
        self.position = checkpoint.position
        self.next_lsn = checkpoint.next_lsn
        return Restarted(checkpoint)
