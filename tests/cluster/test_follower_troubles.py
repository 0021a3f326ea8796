"""A follower whose log store refuses it for a while: it goes on, and nothing that it has read is lost."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import pytest
import trio

from journal.engine import Addresses, Claim, Decision, SharedLog
from journal.engine.segments import file_fetching
from journal.engine.shared_log import log as log_module
from journal.engine.shared_log.log import NOWHERE
from journal.engine.wal.entry_payloads import ConvertedFile, FilesConverted
from journal.logstore import Created, LogStore
from journal.logstore.errors import (
    MAY_PASS,
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
)
from journal.logstore.ownership import Member
from journal.logstore.stores.memory import MemoryLogStore
from shards.errors import FileUnavailableError, NotOwnerError
from tests.cluster import fetching
from tests.cluster.test_follower_engine import FILE_MODE, STORE_ID, append, pair, values_in
from tests.patience import PATIENCE_S

MEMBER: Final = Member("root", b"S" * 16, b"N" * 16)


class Troubled:
    """Passes calls to a store that others use as well, as long as nothing refuses them.

    Attributes:
        store: The store.
        refuses: The error of all requests.
        refuses_creates: The error of creates.
        refuses_slots: The error of creates of slots and fences.
        refuses_files: The error of reads of files.
    """

    def __init__(self, store: MemoryLogStore) -> None:
        self.store = store
        self.refuses: type[LogStoreError] | None = None
        self.refuses_creates: type[LogStoreError] | None = None
        self.refuses_slots: type[LogStoreError] | None = None
        self.refuses_files: type[LogStoreError] | None = None
        self.refused = 0

    def _meet(self, error: type[LogStoreError] | None) -> MemoryLogStore:
        if error is not None:
            self.refused += 1
            raise error("refused by the test")
        return self.store

    def create(self, key: str, data: bytes) -> Created:
        refuses_it = self.refuses_slots if "/log/" in key else None
        return self._meet(self.refuses or self.refuses_creates or refuses_it).create(key, data)

    def get(self, key: str) -> bytes | None:
        return self._meet(self.refuses or (self.refuses_files if "/file/" in key else None)).get(key)

    def list_after(self, key: str) -> list[str]:
        return self._meet(self.refuses).list_after(key)

    def delete(self, key: str) -> None:
        self._meet(self.refuses).delete(key)

    def close(self) -> None:
        """Others use the store."""

    async def wait_refused(self, count: int = 3) -> None:
        """Until so many more requests were refused."""
        target = self.refused + count
        with trio.fail_after(PATIENCE_S):
            while self.refused < target:
                await trio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_LOOK_S", 0.1)
    monkeypatch.setattr(log_module, "_REFUSED_S", 0.2)


@pytest.mark.parametrize("error", MAY_PASS)
async def test_a_follower_goes_on_after_any_refusal_that_may_pass_and_is_read_meanwhile(
    tmp_path: Path, error: type[LogStoreError]
) -> None:
    """Its process ended when credentials were revoked, or when it was to take over a store that was full."""
    troubled = Troubled(MemoryLogStore())

    def through(store: MemoryLogStore) -> LogStore:
        troubled.store = store
        return troubled

    async with pair(tmp_path, through) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0")
        engine = await both.caught_up("a", 1)
        troubled.refuses = error
        await troubled.wait_refused()
        await append(both.owner, "a", b"1")
        assert await values_in(engine, "a") == [b"0"]
        troubled.refuses = None
        assert await both.caught_up("a", 2) is engine
        troubled.refuses_creates = error
        both.watch.takes_over = True
        await troubled.wait_refused(1)
        # The owner still owns the store.
        await append(both.owner, "a", b"2")
        assert not both.owned
        troubled.refuses_creates = None
        with trio.fail_after(PATIENCE_S):
            while not both.owned:
                await trio.sleep(0.01)
        assert await values_in(engine, "a") == [b"0", b"1", b"2"]
        assert not both.readers.ended


@pytest.mark.parametrize("error", MAY_PASS)
async def test_a_follower_goes_on_and_takes_over_without_a_file_that_the_store_refuses(
    tmp_path: Path, error: type[LogStoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited at the entry that names the file, and at a takeover, until it got the file."""
    monkeypatch.setattr(file_fetching, "PATIENCE_S", 0.2)
    store, troubled = MemoryLogStore(), Troubled(MemoryLogStore())

    def through(made: MemoryLogStore) -> LogStore:
        nonlocal store
        troubled.store = store = made
        return troubled

    async with pair(tmp_path, through) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0")
        engine = await both.caught_up("a", 1)
        troubled.refuses_files = error
        digest = hashlib.sha256(fetching.CONTENT).digest()
        file = ConvertedFile(fetching.DAY, 7, size_bytes=len(fetching.CONTENT), record_count=1, digest=digest)
        await both.owner.parts.commands.record_files_converted(FilesConverted((file,), ()))
        await append(both.owner, "a", b"1")
        assert await both.caught_up("a", 2) is engine
        both.watch.takes_over = True
        with trio.fail_after(PATIENCE_S):
            while not both.owned:
                await trio.sleep(0.01)
        assert both.owned == [engine]
        await append(engine, "a", b"2")
        assert await values_in(engine, "a") == [b"0", b"1", b"2"]
        with pytest.raises(FileUnavailableError, match="does not have their Parquet file"):
            async with engine.take_snapshot():
                pytest.fail("a backup would be made without the file")
        fetching.put(store, Member("root", STORE_ID, bytes([1]) * 16), 7)
        troubled.refuses_files = None
        place = tmp_path / "b" / fetching.record_of(7).path("sealed")
        with trio.fail_after(PATIENCE_S):
            while engine.parts.views.unfetched:
                await trio.sleep(0.01)
        assert place.read_bytes() == fetching.CONTENT
        async with engine.take_snapshot():
            pass
        assert not both.readers.ended


async def test_a_server_with_an_empty_directory_goes_on_when_its_store_does_not_refuse_it_any_more(
    tmp_path: Path,
) -> None:
    """It ended if the store refused the checkpoint with which it begins again after it was away for long."""
    troubled = Troubled(MemoryLogStore())

    def through(store: MemoryLogStore) -> LogStore:
        troubled.store, troubled.refuses = store, StoreCredentialsError
        return troubled

    async with pair(tmp_path, through) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0")
        await troubled.wait_refused(1)
        troubled.refuses = None
        assert await values_in(await both.caught_up("a", 1), "a") == [b"0"]


async def test_files_that_were_not_fetched_when_the_store_refused_are_fetched_later() -> None:
    """All counted as fetched when one could not be: the follower would have served reads without the others."""
    store = Troubled(MemoryLogStore())
    records = [fetching.record_of(file_id) for file_id in (7, 8)]
    follower = fetching.Follower(store, MEMBER, records[:1])
    fetching.put(store, MEMBER, 7)
    assert await follower.fetcher.fetch(is_last=False) == []
    follower.name(records[1])
    fetching.put(store, MEMBER, 8)
    store.refuses = StoreCredentialsError
    for _ in range(20):
        with pytest.raises(StoreCredentialsError):
            await follower.fetcher.fetch(is_last=False)
    assert follower.files.listdir("/data/sealing") == [], "parts of files are left over"
    store.refuses = None
    assert await follower.fetcher.fetch(is_last=False) == []
    assert [follower.has(record) for record in records] == [True, True]


class Deciding:
    """Takes the store over whenever it is asked, as long as `decision` says so.

    Attributes:
        claims: Those that it was asked about.
    """

    def __init__(self) -> None:
        self.decision = Decision.TAKE_OVER
        self.claims: list[Claim] = []

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        await trio.lowlevel.checkpoint()
        self.claims.append(claim)
        return self.decision


def log_with(store: LogStore, number: int = 1, deciding: Deciding | None = None) -> SharedLog:
    member = Member("root", b"S" * 16, bytes([number]) * 16)
    addresses = Addresses(f"host-{number}:7420", f"host-{number}:7422")
    log = SharedLog(store, member, addresses, deciding or Deciding(), 1 << 16)
    log.begin(NOWHERE)
    return log


@pytest.mark.parametrize("error", [StoreCredentialsError, StoreFullError])
async def test_a_claim_that_the_store_does_not_take_leaves_the_server_a_follower(error: type[LogStoreError]) -> None:
    troubled = Troubled(MemoryLogStore())
    troubled.refuses_creates = error
    log = log_with(troubled)
    assert not await log.wait()
    assert log.epoch is None
    troubled.refuses_creates = None
    assert await log.wait()
    assert log.epoch == 1


async def test_a_server_whose_claim_is_written_and_whose_fence_is_refused_tries_again_after_a_pause() -> None:
    """It asked a store that was full as fast as that could refuse."""
    store = MemoryLogStore()
    first = log_with(store)
    assert await first.wait()
    troubled = Troubled(store)
    troubled.refuses_slots = StoreFullError
    log = log_with(troubled, 2)
    with trio.move_on_after(0.15):
        while True:
            assert not await log.wait()
    assert (troubled.refused, log.epoch) == (1, None)
    troubled.refuses_slots = None
    assert await log.wait()
    assert log.epoch == 3
    assert log.former == first.claim, "it is the one that has clients, and has to be told"


async def test_an_owner_that_its_log_store_does_not_answer_hears_of_the_next_one() -> None:
    """Its clients waited with it until the store answered, though another server had taken over."""
    store = MemoryLogStore()
    cut_off = Troubled(store)
    deciding = Deciding()
    former, following = log_with(cut_off, deciding=deciding), log_with(store, 2)
    assert await former.wait()
    cut_off.refuses = StoreUnreachableError
    assert await following.wait()
    assert following.former.server_id == former.claim.server_id
    reasons: list[NotOwnerError] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(former.watch, reasons.append)
            await cut_off.wait_refused(1)
            for epoch, nonce in ((2, bytes(16)), (2, b""), (1, following.former.nonce)):
                former.accept_notice(epoch, "forged:1", nonce)
            await cut_off.wait_refused(1)
            assert (reasons, former.epoch) == ([], 1), "not every one who can send a request is believed"
            former.accept_notice(2, "host-2:7420", following.former.nonce)
    assert [reason.owner for reason in reasons] == ["host-2:7420"]
    assert former.epoch is None
    await former.lose()
    # Clients get the new address, although the store still does not answer.
    assert former.claim.addresses.tcp == "host-2:7420"
    cut_off.refuses, deciding.decision = None, Decision.FOLLOW
    former.begin(NOWHERE)
    assert not await former.wait()
    assert deciding.claims[-1] == following.claim, "it has to ask the next owner whether it is alive"


async def test_an_owner_that_was_deposed_by_a_false_notice_claims_the_store_again() -> None:
    """Who can read the log store, or changes a notice on its way, costs a takeover: no epoch is left out."""
    log = log_with(MemoryLogStore())
    assert await log.wait()
    nonce = log.claim.nonce
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.watch, lambda _: None)
            log.accept_notice(1000, "forged:1", nonce)
    await log.lose()
    log.begin(NOWHERE)
    assert await log.wait()
    assert log.epoch == 2
