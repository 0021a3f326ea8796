"""Registered producers: the newest epoch of a name and of an id, now and when the store is opened again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError, UnknownProducerError
from shards.model import ProducerIdentity
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.views import producers as producers_module
from shards.views.producers import Producers

NAMES = ["i", "n", "s", "bridge-\u00fc"]


@given(st.lists(st.sampled_from(NAMES), max_size=20))
def test_the_newest_epoch_is_known_by_name_and_by_id(opened: list[str]) -> None:
    store = MemoryStore()
    producers = Producers(store)
    model: dict[str, ProducerIdentity] = {}
    for lsn, name in enumerate(opened, 1):
        known = model.get(name)
        model[name] = (
            ProducerIdentity(lsn, 1) if known is None else ProducerIdentity(known.producer_id, known.epoch + 1)
        )
        mutations = Mutations()
        producers.fold_use(mutations, name, model[name].producer_id, model[name].epoch, 5)
        store.write(mutations)
    for each in (producers, Producers(store)):
        assert {name: each.get(name) for name in NAMES} == {name: model.get(name) for name in NAMES}
        assert all(each.epoch(identity.producer_id) == identity.epoch for identity in model.values())


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(UnknownProducerError, match="producer id 9 was never opened"):
        Producers(MemoryStore()).epoch(9)


def test_an_id_belongs_to_its_name_and_one_without_a_name_to_none() -> None:
    store, mutations = MemoryStore(), Mutations()
    Producers(store).fold_use(mutations, "anna:bridge-\u00fc", 7, 1, 5)
    # As a program wrote it that did not store names.
    mutations.put(Family.PRODUCERS, b"i" + (8).to_bytes(8, "big"), bytes(3) + b"\x01")
    store.write(mutations)
    producers = Producers(store)
    producers.check_name_begins(7, "anna:")
    assert producers.epoch(8) == 1
    for producer_id, beginning in ((7, "ann:"), (7, "bob:"), (8, "anna:"), (9, "anna:")):
        with pytest.raises(UnknownProducerError, match=f"producer id {producer_id} was never opened"):
            producers.check_name_begins(producer_id, beginning)


def test_ids_beyond_what_is_remembered_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers_module, "_MOST_CACHED", 2)
    store = MemoryStore()
    mutations = Mutations()
    writer = Producers(store)
    for producer_id in range(1, 6):
        writer.fold_use(mutations, f"p{producer_id}", producer_id, producer_id * 10, 5)
    store.write(mutations)
    producers = Producers(store)
    for _ in range(2):
        assert [producers.epoch(producer_id) for producer_id in range(1, 6)] == [10, 20, 30, 40, 50]


def test_a_damaged_record_is_an_error_of_ours() -> None:
    store = MemoryStore()
    mutations = Mutations()
    mutations.put(Family.PRODUCERS, b"nshort", b"\x01\x00")
    mutations.put(Family.PRODUCERS, b"nnewer", b"\x03" + bytes(20))
    mutations.put(Family.PRODUCERS, b"i" + (7).to_bytes(8, "big"), b"\x00")
    store.write(mutations)
    producers = Producers(store)
    with pytest.raises(CorruptionError, match="2 bytes, expected 13"):
        producers.get("short")
    with pytest.raises(FormatVersionError, match="reads formats 1 and 2"):
        producers.get("newer")
    with pytest.raises(CorruptionError, match="1 bytes, expected at least 4"):
        producers.epoch(7)


def test_a_deleted_producer_is_unknown_and_its_name_may_begin_anew() -> None:
    store, mutations = MemoryStore(), Mutations()
    producers = Producers(store)
    producers.fold_use(mutations, "anna:a", 7, 3, 11)
    producers.fold_use(mutations, "anna:b", 8, 1, 12)
    producers.fold_use(mutations, "b", 9, 1, 13)
    producers.fold_use(mutations, "anna:a", 7, 4, 14)
    store.write(mutations)
    assert (producers.count("anna:"), producers.count("")) == (2, 3)
    mutations = Mutations()
    producers.fold_delete(mutations, "anna:a", 7)
    store.write(mutations)
    for each in (producers, Producers(store)):
        assert each.get("anna:a") is None
        assert not each.is_registered(7)
        with pytest.raises(UnknownProducerError, match="or has expired"):
            each.epoch(7)
        assert [(found.name, found.used_us) for found in each.registered()] == [("anna:b", 12), ("b", 13)]
    assert (producers.count("anna:"), producers.count("")) == (1, 2)


def test_a_record_of_the_first_version_is_read_and_does_not_say_when_it_was_used() -> None:
    store, mutations = MemoryStore(), Mutations()
    mutations.put(Family.PRODUCERS, b"nold", b"\x01" + (7).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    store.write(mutations)
    assert Producers(store).get("old") == ProducerIdentity(7, 2)
    assert [found.used_us for found in Producers(store).registered()] == [0]
