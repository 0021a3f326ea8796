"""A server that reads on behind a fence begins with a checkpoint only if something of the log is gone for it."""

from __future__ import annotations

from typing import Final

import pytest

from journal.logstore.checkpoints import Checkpoint, create_checkpoint
from journal.logstore.driver import run
from journal.logstore.keys import Position, slot_key
from journal.logstore.objects import Kind, LogObject, encode_object
from journal.logstore.ownership import Member
from journal.logstore.reading import AtTail, LogReader, Restarted, SlotRead
from journal.logstore.stores.memory import MemoryLogStore

MEMBER: Final = Member("plant", bytes(16), bytes(range(16)))


class Log:
    """A log whose objects are put there by hand."""

    def __init__(self) -> None:
        self.store = MemoryLogStore()

    def put(self, kind: Kind, epoch: int, slot: int, first_lsn: int = 0, next_lsn: int = 0) -> None:
        value = LogObject(kind, MEMBER.store_id, MEMBER.node_id, bytes(16), epoch, slot, first_lsn, next_lsn)
        self.store.create(slot_key(MEMBER.root, Position(epoch, slot)), encode_object(value))

    def checkpoint(self, epoch: int, slot: int, next_lsn: int) -> Checkpoint:
        made = Checkpoint(Position(epoch, slot), next_lsn, b"manifest")
        run(self.store, create_checkpoint(MEMBER.root, MEMBER.store_id, MEMBER.node_id, bytes(16), made))
        return made

    def read(self, reader: LogReader, end_epoch: int | None = None) -> SlotRead | Restarted | AtTail:
        return run(self.store, reader.read(end_epoch))


def reader_at(epoch: int, slot: int, next_lsn: int) -> LogReader:
    reader = LogReader(MEMBER, first_lsn=next_lsn)
    reader.position = Position(epoch, slot)
    return reader


def test_a_reader_that_has_everything_before_a_fence_goes_on_behind_it() -> None:
    log = Log()
    log.put(Kind.FENCE, 1, 7)
    log.put(Kind.FENCE, 2, 0)
    log.put(Kind.SLOT, 3, 0, 20, 30)
    log.checkpoint(3, 1, 30)
    found = log.read(reader_at(1, 7, 20))
    assert isinstance(found, SlotRead)
    assert (found.slot.epoch, found.slot.first_lsn) == (3, 20)


def test_a_fence_in_the_place_of_a_deleted_slot_makes_the_reader_begin_with_the_checkpoint() -> None:
    log = Log()
    log.put(Kind.FENCE, 1, 7)
    log.put(Kind.SLOT, 2, 0, 25, 30)
    made = log.checkpoint(2, 1, 30)
    reader = reader_at(1, 7, 20)
    assert log.read(reader) == Restarted(made)
    assert (reader.position, reader.next_lsn) == (Position(2, 1), 30)


def test_a_reader_begins_with_the_checkpoint_if_what_follows_the_fence_was_deleted() -> None:
    log = Log()
    log.put(Kind.FENCE, 1, 7)
    made = log.checkpoint(2, 1, 30)
    assert log.read(reader_at(1, 7, 20)) == Restarted(made)


@pytest.mark.parametrize("end_epoch", [None, 2])
def test_a_reader_that_has_all_that_is_in_a_checkpoint_goes_on_behind_it(end_epoch: int | None) -> None:
    log = Log()
    log.put(Kind.FENCE, 1, 7)
    log.checkpoint(2, 1, 30)
    reader = reader_at(1, 7, 30)
    assert isinstance(log.read(reader, end_epoch), AtTail)
    if end_epoch is None:
        assert reader.position == Position(2, 1)
        log.put(Kind.SLOT, 2, 1, 30, 40)
        assert isinstance(log.read(reader), SlotRead)


def test_a_reader_that_has_all_of_a_collected_epoch_goes_on_behind_the_checkpoint() -> None:
    log = Log()
    log.checkpoint(1, 9, 30)
    log.put(Kind.SLOT, 1, 9, 30, 40)
    reader = reader_at(1, 7, 30)
    assert isinstance(log.read(reader), SlotRead)
    assert reader.next_lsn == 40
