"""The catalogue: what was folded is there by name, id and filter, now and when it is opened again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError
from shards.model import Mode, Retention, ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.topics.topic_filters import matches
from shards.views.catalogue import Catalogue, CatalogueRecord

NAMES = ["a", "a/b", "a/c", "\u00fc/b", "$SYS/x"]
configs = st.builds(
    ShardConfig,
    mode=st.sampled_from(Mode),
    retention=st.builds(Retention, max_age_s=st.integers(0, 9), max_bytes=st.integers(0, 1 << 62)),
    segment_bytes=st.integers(0, 1 << 40),
    index_keys=st.booleans(),
    index_tags=st.booleans(),
)
# Shard ids are lsns: a name that is used again has a higher one.
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | configs), max_size=25)


def run(
    wanted: list[tuple[str, ShardConfig | None]],
) -> tuple[MemoryStore, Catalogue, dict[str, tuple[int, CatalogueRecord]]]:
    store = MemoryStore()
    catalogue = Catalogue(store)
    model: dict[str, tuple[int, CatalogueRecord]] = {}
    for lsn, (name, config) in enumerate(wanted, 1):
        mutations = Mutations()
        if config is None and name in model:
            catalogue.fold_delete(mutations, model.pop(name)[0], name)
        elif config is not None:
            shard_id = model[name][0] if name in model else lsn
            model[name] = (shard_id, CatalogueRecord(name, config, lsn * 1000))
            catalogue.fold_put(mutations, *model[name])
        store.write(mutations)
    return store, catalogue, model


@given(steps, st.sampled_from(["#", "a/+", "+", "+/b", "a", "nothing"]))
def test_it_holds_what_was_folded_and_a_new_one_over_the_same_store_too(
    wanted: list[tuple[str, ShardConfig | None]], topic_filter: str
) -> None:
    store, catalogue, model = run(wanted)
    for each in (catalogue, Catalogue(store)):
        assert len(each) == len(model)
        assert dict(each.records()) == dict(model.values())
        assert {name: each.id_of(name) for name in NAMES} == {name: model.get(name, (None,))[0] for name in NAMES}
        for shard_id, record in model.values():
            assert each.record(shard_id) == record
        assert each.matching(topic_filter) == sorted(name for name in model if matches(topic_filter, name))
    assert catalogue.record(1000) is None


def test_deleting_an_older_shard_leaves_the_newer_one_of_the_same_name() -> None:
    store = MemoryStore()
    catalogue = Catalogue(store)
    mutations = Mutations()
    catalogue.fold_put(mutations, 1, CatalogueRecord("a", ShardConfig(), 1))
    catalogue.fold_put(mutations, 5, CatalogueRecord("a", ShardConfig(), 5))
    catalogue.fold_delete(mutations, 1, "a")
    store.write(mutations)
    assert catalogue.id_of("a") == 5
    assert catalogue.matching("#") == ["a"]


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        (b"", FormatVersionError, "shard 7 .* format none"),
        (b"\x02\x80", FormatVersionError, "format 02"),
        (b"\x01\x80", CorruptionError, "shard 7"),
        (b"\x01garbage", CorruptionError, "shard 7"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(value: bytes, error: type[Exception], told: str) -> None:
    store = MemoryStore()
    mutations = Mutations()
    mutations.put(Family.CATALOGUE, (7).to_bytes(8, "big"), value)
    store.write(mutations)
    with pytest.raises(error, match=told):
        Catalogue(store)
