"""A server that has much of the log to read asks for several slots at a time, and gets the log as it is."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Final

import pytest
import trio

from journal.engine import Addresses, Claim, SharedLog
from journal.engine.following import joined
from journal.engine.shared_log import read_ahead
from journal.engine.shared_log.log import NOWHERE, Decision
from journal.engine.shared_log.slot_groups import SlotGroup, encode_group
from journal.engine.wal.entry import encode_entry
from journal.engine.wal.entry_payloads import KINDS, Trimmed, encode_payload
from journal.logstore import run
from journal.logstore.errors import StoreCredentialsError, StoreUnreachableError
from journal.logstore.keys import Position, slot_key
from journal.logstore.ownership import Member, own
from journal.logstore.stores.memory import MemoryLogStore
from journal.logstore.writing import SlotWriter

OWNER: Final = Member("root", b"S" * 16, b"N" * 16)
RIVAL: Final = Member("root", b"S" * 16, b"R" * 16)
SLOTS: Final = 500


class Store(MemoryLogStore):
    """Counts the reads of slots, and those under way at a time. Reads of the keys in `refused` fail once.

    Listings are refused as long as `refuses_lists`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.missing = self.under_way = self.most_under_way = 0
        self.refused: set[str] = set()
        self.refuses_lists = False
        self._lock = threading.Lock()

    def list_after(self, key: str) -> list[str]:
        if self.refuses_lists:
            raise StoreCredentialsError("no right to list")
        return super().list_after(key)

    def get(self, key: str) -> bytes | None:
        if "/log/" not in key:
            return super().get(key)
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.under_way, self.most_under_way)
            self.reads += 1
            is_refused = key in self.refused
            self.refused.discard(key)
        time.sleep(0.001)  # as long as a request takes
        with self._lock:
            self.under_way -= 1
        if is_refused:
            raise StoreUnreachableError("no connection")
        found = super().get(key)
        self.missing += found is None
        return found


class Following:
    """Follows for ever."""

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        await trio.lowlevel.checkpoint()
        return Decision.FOLLOW


class Log:
    """A log with an owner, and a server that reads it."""

    def __init__(self) -> None:
        self.store = Store()
        self.lsn = 1
        self.take_over(OWNER)
        self.reader = SharedLog(self.store, RIVAL, Addresses("", "", False), Following(), 1 << 20)
        self.reader.begin(NOWHERE)

    def take_over(self, member: Member) -> None:
        epoch = run(self.store, own(member, secrets.token_bytes(16))).epoch
        self.slots = SlotWriter(member, epoch, self.lsn)

    def write(self, count: int) -> None:
        for _ in range(count):
            decision = Trimmed(self.lsn)
            entry = encode_entry(KINDS[type(decision)], self.lsn, 7, encode_payload(decision))
            body = encode_group([entry], len(entry), self.lsn, self.lsn + 1)
            write = self.slots.prepare(body, self.lsn + 1, secrets.token_bytes(16))
            self.store.create(write.key, write.data)
            self.slots.settle(write.position, True)
            self.lsn += 1

    async def read(self, next_lsn: int = 1) -> list[SlotGroup]:
        """All groups up to the end of the log."""
        groups: list[SlotGroup] = []
        while (some := await self.reader.read(groups[-1].next_lsn if groups else next_lsn)) is not None:
            groups += some
        return groups


def require(groups: list[SlotGroup], first_lsn: int, next_lsn: int) -> None:
    assert [group.first_lsn for group in groups] == list(range(first_lsn, next_lsn))
    assert [group.next_lsn for group in groups] == list(range(first_lsn + 1, next_lsn + 1))


async def test_many_slots_are_read_several_at_a_time_and_in_order() -> None:
    log = Log()
    log.write(SLOTS)
    require(await log.read(), 1, SLOTS + 1)
    assert 4 <= log.store.most_under_way <= read_ahead.MOST_AT_A_TIME
    assert log.reader.slots_read == SLOTS


async def test_at_most_a_sixteenth_more_requests_are_made_than_one_for_each_slot() -> None:
    log = Log()
    for count in (1, 15, 16, 40, SLOTS, 3):
        log.store.reads, seen = 0, log.lsn
        log.write(count)
        require(await log.read(seen), seen, seen + count)
        # The one after the last is asked for early, and once more at the end.
        assert log.store.reads <= count + count / read_ahead.FOUND_FOR_EACH + 2
    log.store.reads = 0
    assert await log.read(log.lsn) == []
    assert log.store.reads == 1, "at the end of the log one slot is asked for"


async def test_a_slot_that_was_missing_when_it_was_read_early_is_found_later() -> None:
    log = Log()
    for _ in range(20):
        seen = log.lsn
        log.write(20)
        require(await log.read(seen), seen, log.lsn)
    assert log.store.missing > 20, "some were missing beside the one at the end"


async def test_reading_goes_on_in_the_epoch_after_a_fence_though_slots_behind_it_were_read_early() -> None:
    """A slot behind a fence is not part of the log."""
    log = Log()
    log.write(SLOTS)
    log.take_over(RIVAL)
    log.store.create(slot_key("root", Position(1, SLOTS + 1)), b"what a former owner had under way")
    log.write(SLOTS)
    require(await log.read(), 1, 2 * SLOTS + 1)


async def test_a_slot_that_cannot_be_read_early_is_read_when_it_is_needed() -> None:
    log = Log()
    log.write(SLOTS)
    log.store.refused = {slot_key("root", Position(1, slot)) for slot in range(0, SLOTS, 7)}
    require(await log.read(), 1, SLOTS + 1)
    assert not log.store.refused


async def test_slots_that_were_read_are_not_lost_when_the_store_refuses_what_comes_after_them() -> None:
    """At a fence the reader lists checkpoints. What it had read up to there was forgotten when that was refused."""
    log = Log()
    log.write(SLOTS)
    log.take_over(RIVAL)
    log.write(20)
    log.store.refuses_lists = True
    groups: list[SlotGroup] = []
    refusals = 0
    while not groups or groups[-1].next_lsn < log.lsn:
        try:
            groups += await log.reader.read(groups[-1].next_lsn if groups else 1) or ()
        except StoreCredentialsError:
            refusals += 1
            log.store.refuses_lists = False
    require(groups, 1, log.lsn)
    assert refusals == 1


async def test_what_is_read_early_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(SLOTS)
    slot_bytes = len(log.store.get(slot_key("root", Position(1, 0))) or b"")
    monkeypatch.setattr(read_ahead, "MOST_BYTES", 3 * slot_bytes)
    most = 3 + read_ahead.MOST_AT_A_TIME
    groups: list[SlotGroup] = []
    while (some := await log.reader.read(groups[-1].next_lsn if groups else 1)) is not None:
        assert len(some) <= most
        groups += some
    require(groups, 1, SLOTS + 1)


async def test_what_the_journal_of_the_server_has_is_passed_over() -> None:
    log = Log()
    log.write(SLOTS)
    require(await log.read(SLOTS // 2), SLOTS // 2, SLOTS + 1)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([1, 2, 3], [[1, 2, 3]]), ([9, 2, 8], [[9], [2, 8]]), ([11, 1], [[11], [1]]), ([1, 11], [[1], [11]])],
)
def test_groups_are_copied_together_as_far_as_they_fit(sizes: list[int], expected: list[list[int]]) -> None:
    groups = [SlotGroup(memoryview(bytes(size)), [], n, n + 1) for n, size in enumerate(sizes)]
    runs = list(joined(groups, 10))
    assert [[len(group.data) for group in run] for run in runs] == expected
