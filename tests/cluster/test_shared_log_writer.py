"""The writer of a shared log: a group is durable when its slot is in the log, whatever the store answers in between."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import pytest

from journal.engine.shared_log.slot_groups import decode_groups
from journal.engine.shared_log.writer import ResumePoint, SharedLogWriter
from journal.engine.wal.entry import encode_entry
from journal.engine.wal.entry_payloads import KINDS, Trimmed, encode_payload
from journal.engine.wal.journal_writer import JournalWriter
from journal.engine.wal.recovery import Recovered, read_journal
from journal.logstore import run
from journal.logstore.counting import CountedLogStore
from journal.logstore.errors import (
    LogStoreError,
    StoreDeposedError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.keys import Position, slot_key
from journal.logstore.objects import Kind, decode_object
from journal.logstore.ownership import Member, own
from journal.logstore.store import Created
from journal.logstore.stores.memory import MemoryLogStore
from journal.logstore.writing import SlotWriter
from shards.errors import LogUnavailableError, NotOwnerError
from shards.seams.memory_file_system import MemoryFileSystem

MEMBER: Final = Member("root", b"S" * 16, b"N" * 16)
RIVAL: Final = Member("root", b"S" * 16, b"R" * 16)
MANY: Final = 100


class FaultyStore(MemoryLogStore):
    """Each create raises the next error in `failures`; with `applies` the object is stored nevertheless."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Callable[[], LogStoreError]] = []
        self.applies = False

    def create(self, key: str, data: bytes) -> Created:
        if not self.failures or "/log/" not in key:
            return super().create(key, data)
        failure = self.failures.pop()
        if self.applies:
            super().create(key, data)
        raise failure()


class Log:
    """A store with an owner, and the writer of that owner."""

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.files = MemoryFileSystem()
        self.files.mkdir("/journal")
        self.epoch = run(self.store, own(MEMBER, secrets.token_bytes(16))).epoch
        journal = JournalWriter(self.files, "/journal", 1 << 20, lambda: 1, [])
        journal.begin(1)
        self.positions: list[ResumePoint] = []
        slots = SlotWriter(MEMBER, self.epoch, 1)
        self.writer = SharedLogWriter(CountedLogStore(self.store), slots, journal, 1 << 16, self.positions.append)

    def write(self, lsn: int) -> None:
        decision = Trimmed(lsn)
        entry = encode_entry(KINDS[type(decision)], lsn, 7, encode_payload(decision))
        self.writer.write_group([entry], len(entry), lsn, lsn + 1)

    def lsns_in_the_store(self) -> list[int]:
        found: list[int] = []
        slot = 0
        while (data := self.store.get(slot_key("root", Position(self.epoch, slot)))) is not None:
            value = decode_object("slot", data)
            if value.kind is Kind.FENCE:
                break
            found += [entry.lsn for group in decode_groups("slot", value.body) for entry in group.entries]
            slot += 1
        return found

    def lsns_in_the_journal(self) -> list[int]:
        return [entry.lsn for group in read_journal(self.files, "/journal", Recovered()) for entry in group.entries]


@pytest.fixture
def log() -> Log:
    return Log()


def test_groups_are_in_the_store_and_in_the_journal(log: Log) -> None:
    for lsn in (1, 2, 3):
        log.write(lsn)
    assert log.lsns_in_the_store() == log.lsns_in_the_journal() == [1, 2, 3]
    assert [(point.position.slot, point.next_lsn) for point in log.positions] == [(1, 2), (2, 3), (3, 4)]


def test_a_later_start_reads_on_behind_what_is_kept_and_not_behind_what_was_written_since(log: Log) -> None:
    log.write(1)
    log.write(2)
    assert log.writer.resume(3) == ResumePoint(Position(log.epoch, 2), 3)
    # The event loop knows of the first group alone.
    assert log.writer.resume(2) == ResumePoint(Position(log.epoch, 1), 2)


@pytest.mark.parametrize(
    ("failure", "applies"),
    [
        (UnknownOutcomeError, False),
        (UnknownOutcomeError, True),
        (StoreUnreachableError, False),
        (StoreFullError, False),
    ],
)
def test_a_group_that_the_store_does_not_take_is_in_neither_until_it_is_written_again(
    log: Log, failure: type[LogStoreError], applies: bool
) -> None:
    log.write(1)
    log.store.failures = [lambda: failure("the store is away")] * MANY
    log.store.applies = applies
    with pytest.raises(LogUnavailableError, match=r"does not take root/log/.*the store is away.*reads continue"):
        log.write(2)
    assert log.lsns_in_the_journal() == [1]
    log.store.failures = []
    log.write(2)
    log.write(3)
    assert log.lsns_in_the_store() == log.lsns_in_the_journal() == [1, 2, 3]


def test_an_owner_that_lost_the_store_writes_nothing_more(log: Log) -> None:
    log.write(1)
    run(log.store, own(RIVAL, secrets.token_bytes(16)))
    for lsn in (2, 2, 3):
        with pytest.raises(NotOwnerError):
            log.write(lsn)
    assert log.lsns_in_the_store() == log.lsns_in_the_journal() == [1]


def test_a_group_whose_slot_was_written_before_the_takeover_is_not_written_again(log: Log) -> None:
    log.store.failures = [lambda: UnknownOutcomeError("the answer was lost")] * MANY
    log.store.applies = True
    with pytest.raises(LogUnavailableError):
        log.write(1)
    log.store.failures = []
    run(log.store, own(RIVAL, secrets.token_bytes(16)))
    # It is before the fence, so it is in the log: the new owner has it, too.
    log.write(1)
    with pytest.raises(NotOwnerError):
        log.write(2)
    assert log.lsns_in_the_store() == [1]


def test_of_several_that_take_over_from_the_same_owner_one_does() -> None:
    store = MemoryLogStore()
    first = run(store, own(MEMBER, secrets.token_bytes(16), gives_way=True))
    assert first.epoch == 1
    with pytest.raises(StoreDeposedError, match="epoch 1 does"):
        run(store, own(RIVAL, secrets.token_bytes(16), gives_way=True))
    assert run(store, own(RIVAL, secrets.token_bytes(16), 1, gives_way=True)).epoch == 2


def test_a_rival_that_claims_the_same_epoch_first_is_left_the_store() -> None:
    class Rival(MemoryLogStore):
        """Another server claims the epoch between the listing and the create."""

        def create(self, key: str, data: bytes) -> Created:
            if "/epoch/" in key and self.get(key) is None:
                super().create(key, b"".join((data[:32], RIVAL.node_id, data[48:])))
            return super().create(key, data)

    with pytest.raises(StoreDeposedError):
        run(Rival(), own(MEMBER, secrets.token_bytes(16), gives_way=True))
