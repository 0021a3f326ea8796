"""The index of keys and tags knows every offset of a word, in order, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import CorruptionError
from shards.format.record import Record
from shards.model import ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.views.inverted_index import LONGEST_WORD_BYTES, InvertedIndex, decode_index_key, words_of
from tests.shards.batches import encode_stamped

KEYS = st.sampled_from(
    [b"", b"a", b"ab", b"b\x00", b"a\xff", b"x" * LONGEST_WORD_BYTES, b"y" * (LONGEST_WORD_BYTES + 1)]
)
TAGS = st.sampled_from(["a", "ab", "\u00fc", "long" * 300])
indexed_records = st.builds(Record, value=st.just(b"v"), key=KEYS, tags=st.lists(TAGS, max_size=2).map(tuple))
shards = st.dictionaries(st.integers(1, 3), st.lists(indexed_records, min_size=1, max_size=8), min_size=1)
BOTH = ShardConfig(index_keys=True, index_tags=True)


def folded(content: dict[int, list[Record]], *, times: int = 1) -> tuple[MemoryStore, InvertedIndex]:
    store = MemoryStore()
    index = InvertedIndex(store)
    for _ in range(times):
        for shard_id, records in content.items():
            mutations = Mutations()
            index.fold(mutations, shard_id, 100, words_of(BOTH, memoryview(encode_stamped(records, 100))))
            store.write(mutations)
    return store, index


@given(shards, st.integers(95, 110), st.integers(1, 2))
def test_a_word_gives_its_offsets_in_order_and_folding_twice_is_folding_once(
    content: dict[int, list[Record]], first: int, times: int
) -> None:
    _, index = folded(content, times=times)
    for shard_id in (1, 2, 3):
        records = list(enumerate(content.get(shard_id, []), 100))
        for key in {record.key for _, record in records if record.key} | {b"unknown"}:
            expected = [offset for offset, record in records if record.key == key]
            assert list(index.offsets(shard_id, "key", key, first)) == [each for each in expected if each >= first]
            assert next(index.newest_first(shard_id, "key", key), None) == (expected[-1] if expected else None)
        for tag in {tag for _, record in records for tag in record.tags}:
            expected = [offset for offset, record in records if tag in record.tags]
            assert list(index.offsets(shard_id, "tag", tag.encode(), first)) == [
                each for each in expected if each >= first
            ]
            assert next(index.newest_first(shard_id, "tag", tag.encode())) == expected[-1]


def test_only_what_the_shard_asks_for_is_indexed() -> None:
    batch = memoryview(encode_stamped([Record(value=b"v", key=b"k", tags=("t",))]))
    assert words_of(ShardConfig(), batch) == []
    assert [word[:1] for _, word in words_of(ShardConfig(index_keys=True), batch)] == [b"k"]
    assert [word[:1] for _, word in words_of(ShardConfig(index_tags=True), batch)] == [b"t"]


@given(shards, st.integers(95, 110), st.integers(1, 5))
def test_entries_of_trimmed_records_go_in_small_steps_and_the_others_stay(
    content: dict[int, list[Record]], start: int, limit: int
) -> None:
    store, index = folded(content)
    shard_id = min(content)
    before = {key for key, _ in store.scan(Family.KEY_INDEX)}
    after: bytes | None = b""
    while after is not None:
        mutations = Mutations()
        after = index.drop_below(mutations, shard_id, start, limit, after)
        assert len(mutations) <= limit
        store.write(mutations)
    kept = {key for key in before if decode_index_key(key)[0] != shard_id or decode_index_key(key)[2] >= start}
    assert {key for key, _ in store.scan(Family.KEY_INDEX)} == kept


@given(shards)
def test_a_key_has_shard_word_and_offset_and_a_cut_one_is_refused(content: dict[int, list[Record]]) -> None:
    store, _ = folded(content)
    for key, _ in store.scan(Family.KEY_INDEX):
        shard_id, word, offset = decode_index_key(key)
        assert shard_id in content
        assert word[:1] in (b"k", b"t")
        assert 100 <= offset < 108
        for size in (0, 8, 12, len(key) - 1):
            with pytest.raises(CorruptionError, match="malformed"):
                decode_index_key(key[:size])
