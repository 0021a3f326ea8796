"""What the views know about shared files: the references to them are those of the records of segments, always."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError
from shards.model import ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.segments.chunks import ChunkPool
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.shard import Shard
from shards.views.shard_records import changed_references, load, save
from shards.views.shared_files import FileKey, SharedFileRecord, SharedFiles

DAY = 19_675
FILES = [(DAY, 1), (DAY, 2), (DAY + 1, 1)]


def record_of(key: FileKey, lsn: int = 5) -> SharedFileRecord:
    return SharedFileRecord(*key, 4096, 1000, lsn, 0, 0, bytes(range(32)))


def part(shard_id: int, base_offset: int, count: int, key: FileKey) -> ParquetSegment:
    return ParquetSegment(
        "/sealed",
        f"shard-{shard_id}",
        shard_id,
        base_offset=base_offset,
        next_offset=base_offset + count,
        size_bytes=10 * count,
        created_us=base_offset,
        newest_append_us=base_offset + 1,
        last_lsn=base_offset + 2,
        newest_us=base_offset + 3,
        place=SharedPlace(*key, first_row=base_offset * 7),
    )


def shard_with(shard_id: int, parts: list[tuple[int, FileKey]]) -> Shard:
    shard = Shard(shard_id, f"shard-{shard_id}", ShardConfig(), 1)
    for count, key in parts:
        shard.segments.append(part(shard_id, shard.next_offset, count, key))
        shard.next_offset += count
    shard.publish(shard.published_now())
    return shard


def change(shard: Shard, parts: list[tuple[int, FileKey]]) -> None:
    """Give a shard these parts; those at its beginning that are the same stay as they are."""
    new = shard_with(shard.shard_id, parts)
    same = 0
    for before, after in zip(shard.segments, new.segments, strict=False):
        assert isinstance(before, ParquetSegment)
        assert isinstance(after, ParquetSegment)
        if (before.next_offset, before.place) != (after.next_offset, after.place):
            break
        same += 1
    shard.segments[same:] = new.segments[same:]
    shard.next_offset = new.next_offset
    shard.publish(shard.published_now())


def test_it_is_recorded_since_when_a_file_has_dead_records() -> None:
    store = MemoryStore()
    files = SharedFiles(store)
    mutations = Mutations()
    for key, live in zip(FILES, (1000, 999, 0), strict=True):
        files.fold_put(mutations, attrs.evolve(record_of(key), live_records=live))
    files.note_dead(mutations, 4, 70)
    assert not any(each.dead_since_us for each in files), "their references may not be recorded yet"
    files.note_dead(mutations, 5, 80)
    files.note_dead(mutations, 6, 90)
    store.write(mutations)
    assert [each.dead_since_us for each in SharedFiles(store)] == [0, 80, 0]


def write(store: MemoryStore, files: SharedFiles, shard: Shard, recorded: dict[int, tuple[int, ...]]) -> None:
    mutations = Mutations()
    saved = save(mutations, shard, recorded=recorded.get(shard.shard_id, ()))
    files.refer(mutations, changed_references(store, mutations))
    store.write(mutations)
    saved.note_written()
    recorded[shard.shard_id] = saved.base_offsets


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.tuples(st.integers(1, 9), st.sampled_from(FILES)), max_size=4)),
        max_size=8,
    )
)
def test_references_are_those_of_the_recorded_segments(states: list[tuple[int, list[tuple[int, FileKey]]]]) -> None:
    store = MemoryStore()
    files = SharedFiles(store)
    mutations = Mutations()
    for key in FILES:
        files.fold_put(mutations, record_of(key))
    store.write(mutations)
    recorded: dict[int, tuple[int, ...]] = {}
    latest: dict[int, list[tuple[int, FileKey]]] = {}
    shards: dict[int, Shard] = {}
    for shard_id, parts in states:
        latest[shard_id] = parts
        shard = shards.setdefault(shard_id, shard_with(shard_id, []))
        change(shard, parts)
        write(store, files, shard, recorded)
    expected = {key: sum(count for parts in latest.values() for count, place in parts if place == key) for key in FILES}
    for known in (files, SharedFiles(store)):
        assert {each.key: each.live_records for each in known} == expected
        assert {each.key: each.live_bytes for each in known} == {key: 10 * count for key, count in expected.items()}
        assert {each.key for each in known.removable(5)} == {key for key, count in expected.items() if not count}


def test_only_the_head_of_a_shard_with_hundreds_of_parts_is_written_again() -> None:
    store = MemoryStore()
    files = SharedFiles(store)
    recorded: dict[int, tuple[int, ...]] = {}
    shard = shard_with(1, [(3, FILES[0])] * 500)
    write(store, files, shard, recorded)
    mutations = Mutations()
    assert save(mutations, shard, recorded=recorded[1]).base_offsets == recorded[1]
    assert [len(key) for _, key, _ in mutations] == [8]
    # The same after a start, and with one more part.
    loaded = Shard(1, "shard-1", ShardConfig(), 1)
    assert load(store, loaded, lambda *_: "", ChunkPool(0), sealed_root="/sealed") == recorded[1]
    loaded.segments.append(part(1, 1500, 3, FILES[1]))
    loaded.next_offset = 1503
    loaded.publish(loaded.published_now())
    mutations = Mutations()
    save(mutations, loaded, recorded=recorded[1])
    assert [key[8:] for _, key, _ in mutations] == [b"", (1500).to_bytes(8, "big")]


def test_the_segments_are_loaded_as_they_were_saved() -> None:
    store = MemoryStore()
    shard = shard_with(7, [(3, FILES[0]), (5, FILES[2])])
    write(store, SharedFiles(store), shard, {})
    loaded = Shard(7, "shard-7", ShardConfig(), 1)
    assert load(store, loaded, lambda *_: "", ChunkPool(0), sealed_root="/sealed") == (0, 3)
    for before, after in zip(shard.segments, loaded.segments, strict=True):
        assert isinstance(before, ParquetSegment)
        assert isinstance(after, ParquetSegment)
        names = [*ParquetSegment.__slots__, "base_offset", "next_offset", "created_us"]
        assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]
        assert (after.last_lsn, after.newest_us) == (before.last_lsn, before.newest_us)
    assert loaded.segments[0].path == "/sealed/date=2023-11-14/0000000000000001.parquet"  # type: ignore[attr-defined]


def test_a_file_that_is_put_again_keeps_what_refers_to_it() -> None:
    store = MemoryStore()
    files = SharedFiles(store)
    mutations = Mutations()
    files.fold_put(mutations, record_of(FILES[0]))
    files.refer(mutations, {FILES[0]: (7, 70)})
    files.fold_put(mutations, record_of(FILES[0], lsn=9))
    store.write(mutations)
    assert SharedFiles(store).get(FILES[0]) == attrs.evolve(record_of(FILES[0]), live_records=7, live_bytes=70)


def test_a_file_is_not_removed_before_a_checkpoint_contains_its_entry() -> None:
    files = SharedFiles(MemoryStore())
    files.fold_put(Mutations(), record_of(FILES[0], lsn=5))
    assert files.removable(4) == []
    assert files.removable(5) == [record_of(FILES[0])]
    files.fold_delete(Mutations(), FILES[0])
    assert (len(files), files.get(FILES[0])) == (0, None)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (struct.pack(">IQ", DAY, 1), b"\2" + bytes(79), FormatVersionError),
        (struct.pack(">IQ", DAY, 1), b"", FormatVersionError),
        (struct.pack(">IQ", DAY, 1), b"\1" + bytes(5), CorruptionError),
        (b"short", b"\1" + bytes(79), CorruptionError),
        (struct.pack(">IQ", 2**32 - 1, 1), b"\1" + bytes(79), CorruptionError),
        (struct.pack(">IQ", DAY, 1), struct.pack("<B7xQQQQQ32s", 1, 5, 6, 7, 8, 9, b""), CorruptionError),
    ],
)
def test_a_record_that_cannot_be_is_refused(key: bytes, value: bytes, error: type[Exception]) -> None:
    store = MemoryStore()
    mutations = Mutations()
    mutations.put(Family.FILES, key, value)
    store.write(mutations)
    with pytest.raises(error, match="record of the shared file"):
        SharedFiles(store)
