"""Files in the log store: they are stored whole before anything names them, and deleted only by the owner."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.shared_log import transfers
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.transfers import Content, DirectTransfers
from journal.engine.wal.disk import at_once
from journal.logstore import pieces, run
from journal.logstore.errors import LogDamagedError, StoreDeposedError
from journal.logstore.keys import LAST_DAY, LAST_PIECE, FileName, file_folder, piece_key, piece_of
from journal.logstore.ownership import Member, own
from journal.logstore.pieces import PIECE_BYTES, Piece, delete_unneeded, get_piece, piece_count, put_piece
from journal.logstore.steps import Answer, Delete, ListAfter
from journal.logstore.stores.memory import Fault, MemoryLogStore
from shards.errors import ConversionFailedError
from shards.seams.memory_file_system import MemoryFileSystem
from tests.patience import PATIENCE_S

MEMBER: Final = Member("root", b"S" * 16, b"N" * 16)
RIVAL: Final = Member("root", b"S" * 16, b"R" * 16)
NONCE: Final = bytes(16)
OLD, NEW, OTHER = FileName(20_784, 1), FileName(20_784, 2), FileName(20_785, 2**64 - 1)

names = st.builds(FileName, st.integers(0, LAST_DAY), st.integers(0, 2**64 - 1))


def store_of(*stored: FileName) -> MemoryLogStore:
    store = MemoryLogStore()
    for name in stored:
        run(store, put_piece(MEMBER, NONCE, name, 0, Piece(b"content", 1)))
    return store


def stored_in(store: MemoryLogStore) -> set[FileName]:
    found = map(piece_of, store.list_after(file_folder("root")))
    return {name for name, _ in filter(None, found)}


@given(names, st.integers(0, LAST_PIECE))
def test_a_key_says_which_piece_of_which_file_it_is(name: FileName, piece: int) -> None:
    assert piece_of(piece_key("root", name, piece)) == (name, piece)


@pytest.mark.parametrize("key", ["root/file/x", "root/file/0020784-000000000000000A-000000", "root/log/1/2"])
def test_a_key_of_something_else_is_no_piece(key: str) -> None:
    assert piece_of(key) is None


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(0, 1), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (5 * PIECE_BYTES, 5)]
)
def test_every_file_has_a_piece_even_an_empty_one(size_bytes: int, count: int) -> None:
    assert piece_count(size_bytes) == count


def test_a_piece_is_never_replaced() -> None:
    store = store_of(OLD)
    with pytest.raises(LogDamagedError, match="exists already, with other bytes"):
        run(store, put_piece(MEMBER, NONCE, OLD, 0, Piece(b"other", 1)))
    assert run(store, get_piece(MEMBER, OLD, 0)) == Piece(b"content", 1)


def test_a_piece_under_the_key_of_another_file_is_refused() -> None:
    store = store_of(OLD)
    data = store.get(piece_key("root", OLD, 0))
    assert data is not None
    store.create(piece_key("root", NEW, 0), data)
    with pytest.raises(LogDamagedError, match="holds a piece of the file 0000000000000001"):
        run(store, get_piece(MEMBER, NEW, 0))


def test_an_owner_deletes_what_nothing_refers_to() -> None:
    store = store_of(OLD, NEW, OTHER)
    epoch = run(store, own(MEMBER, NONCE)).epoch
    assert run(store, delete_unneeded(MEMBER, epoch, {NEW}.__contains__)) == 2
    assert stored_in(store) == {NEW}


def test_a_former_owner_deletes_nothing() -> None:
    """It does not know of the files that the new owner has stored, and would delete them."""
    store = store_of(OLD)
    epoch = run(store, own(MEMBER, NONCE)).epoch
    run(store, own(RIVAL, secrets.token_bytes(16)))
    with pytest.raises(StoreDeposedError):
        run(store, delete_unneeded(MEMBER, epoch, lambda _: False))
    assert stored_in(store) == {OLD}


@pytest.mark.parametrize("sleeps_before", [ListAfter, Delete])
def test_an_owner_that_sleeps_while_it_deletes_takes_nothing_from_the_next_one(sleeps_before: type) -> None:
    store = store_of(OLD)
    epoch = run(store, own(MEMBER, NONCE)).epoch
    steps = delete_unneeded(MEMBER, epoch, lambda _: False)
    slept = False
    answer: Answer = None
    try:
        while True:
            operation = steps.send(answer)
            if isinstance(operation, sleeps_before) and not slept:
                slept = True
                run(store, own(RIVAL, secrets.token_bytes(16)))
                run(store, put_piece(RIVAL, NONCE, NEW, 0, Piece(b"new", 1)))
            match operation:
                case ListAfter(key):
                    answer = store.list_after(key)
                case Delete(key):
                    store.delete(key)
                    answer = None
    except (StopIteration, StoreDeposedError):
        pass
    assert slept
    assert NEW in stored_in(store)


class Files:
    """Files of this server, and those in a log store."""

    def __init__(self, store: MemoryLogStore) -> None:
        self.store = store
        self.here = MemoryFileSystem()
        self.here.mkdir("/sealing")
        self.stored = StoredFiles(store, MEMBER, self.here, at_once, DirectTransfers(store, MEMBER, self.here, at_once))

    def write(self, path: str, content: bytes) -> str:
        self.here.open(path, create=True).pwritev([content], 0)
        return path

    async def fetched(self, name: FileName) -> bytes | None:
        content = await self.stored.fetch(name, "/sealing/fetched")
        if content is None:
            assert not any(path.startswith("fetched.") for path in self.here.listdir("/sealing"))
            return None
        found = self.here.open("/sealing/fetched", write=False).pread(1 << 20, 0)
        assert content == Content(len(found), hashlib.sha256(found).hexdigest())
        return found


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, 65, 1000])
async def test_a_file_comes_back_as_it_was_stored(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, transfers):
        monkeypatch.setattr(module, "PIECE_BYTES", 64)
    files = Files(MemoryLogStore())
    content = secrets.token_bytes(size_bytes)
    async with files.stored.stored([(OLD, files.write("/sealing/a", content))]):
        assert await files.fetched(OLD) == content
    assert len(files.store.list_after(file_folder("root"))) == piece_count(size_bytes)


async def test_a_file_of_which_a_piece_is_missing_is_not_there() -> None:
    files = Files(MemoryLogStore())
    run(files.store, put_piece(MEMBER, NONCE, OLD, 0, Piece(b"x", 2)))
    assert await files.fetched(OLD) is None
    assert await files.fetched(NEW) is None


def refusing() -> Callable[[str], Fault]:
    return lambda key: Fault.REFUSED if "/file/" in key else Fault.NONE


async def test_a_conversion_fails_and_is_tried_again_later_if_the_store_does_not_take_its_file(
    autojump_clock: trio.testing.MockClock,
) -> None:
    files = Files(MemoryLogStore(refusing()))
    with pytest.raises(ConversionFailedError, match=r"the log store does not take the file 0020784-0{15}1"):
        async with files.stored.stored([(OLD, files.write("/sealing/a", b"content"))]):
            raise AssertionError("nothing may name the file")


async def test_a_conversion_fails_if_its_file_cannot_be_read() -> None:
    files = Files(MemoryLogStore())
    with pytest.raises(ConversionFailedError, match="/sealing/a cannot be read"):
        async with files.stored.stored([(OLD, "/sealing/a")]):
            raise AssertionError("nothing may name the file")


async def test_what_no_entry_names_in_the_end_is_deleted_and_what_is_being_stored_is_not(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    files = Files(store_of(OLD, OTHER))
    epoch = run(files.store, own(MEMBER, secrets.token_bytes(16))).epoch
    needed, generation = {OLD}, 1
    nursery.start_soon(files.stored.delete_unneeded, epoch, lambda: generation, needed.__contains__)
    with pytest.raises(ConversionFailedError):
        async with files.stored.stored([(NEW, files.write("/sealing/a", b"content"))]):
            await until(lambda: files.stored.deleted == 1)
            assert stored_in(files.store) == {OLD, NEW}
            raise ConversionFailedError("nothing is named")
    await until(lambda: files.stored.deleted == 2)
    assert stored_in(files.store) == {OLD}
    needed.clear()
    await trio.sleep(1000)
    assert files.stored.deleted == 2, "nothing has changed, so nothing is listed"
    generation += 1
    await until(lambda: files.stored.deleted == 3)
    assert stored_in(files.store) == set()


async def until(condition: Callable[[], bool]) -> None:
    """The clock runs ahead while a request is in its thread, so no time of it says when that has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await trio.sleep(1)
