"""A store whose files lie in a place of their own."""

from __future__ import annotations

from typing import Final

import pytest

from journal.logstore.driver import run
from journal.logstore.errors import ForeignStoreError
from journal.logstore.keys import FileName, Position, file_folder, piece_key, slot_key
from journal.logstore.ownership import Member
from journal.logstore.pieces import Piece, get_piece, list_files, put_piece
from journal.logstore.probe import Holds, identify
from journal.logstore.store import Created
from journal.logstore.stores.divided import DividedLogStore
from journal.logstore.stores.memory import MemoryLogStore

MEMBER: Final = Member("plant", bytes(16), bytes(range(16)))
NAME: Final = FileName(20_784, 7)


def test_files_lie_in_the_one_place_and_all_else_in_the_other() -> None:
    log, objects = MemoryLogStore(), MemoryLogStore()
    store = DividedLogStore(log, "plant", objects, "files/of/plant")
    run(store, put_piece(MEMBER, bytes(16), NAME, 0, Piece(b"content", 1)))
    slot = slot_key("plant", Position(1, 0))
    assert store.create(slot, b"slot") is Created.OURS
    assert run(store, get_piece(MEMBER, NAME, 0)) == Piece(b"content", 1)
    assert run(store, list_files("plant")) == {NAME: 1}
    assert store.list_after("plant/log/0000000001/") == [slot]
    assert log.list_after(file_folder("plant")) == []
    assert objects.list_after(file_folder("files/of/plant")) == [piece_key("files/of/plant", NAME, 0)]
    assert objects.get(slot) is None

    assert store.list_after(piece_key("plant", NAME, 0)) == []
    store.delete(piece_key("plant", NAME, 0))
    store.delete(slot)
    assert objects.list_after(file_folder("files/of/plant")) == store.list_after("plant/log/0000000001/") == []


@pytest.mark.parametrize("made", Holds)
@pytest.mark.parametrize("wanted", Holds)
def test_a_place_is_used_for_what_it_was_made_for(made: Holds, wanted: Holds) -> None:
    store = MemoryLogStore()
    run(store, identify("plant", b"1" * 16, b"a" * 16, b"n" * 16, made))
    again = identify("plant", b"2" * 16, b"b" * 16, b"m" * 16, wanted)
    if made is wanted:
        assert run(store, again).store_id == b"1" * 16
    else:
        with pytest.raises(ForeignStoreError, match=r"plant/store is the identity of .*; this server is started for"):
            run(store, again)
