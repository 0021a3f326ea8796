"""The memory of a segment gives back exactly what was put in, whatever is dropped, and counts what it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shards.segments.chunks import FIRST_CHUNK_BYTES, FULL_CHUNK_BYTES, ChunkList, ChunkPool

sizes = st.lists(st.integers(1, 700), min_size=1, max_size=40)


def filled(start: int, pieces: list[bytes], pool: ChunkPool) -> ChunkList:
    chunks = ChunkList(start, pool)
    for piece in pieces:
        chunks.append(piece)
    return chunks


def pieces_of(lengths: list[int]) -> list[bytes]:
    return [bytes((number % 251,)) * length for number, length in enumerate(lengths)]


@given(sizes, st.integers(0, 10_000), st.data())
def test_any_range_comes_back_as_it_was_appended(lengths: list[int], start: int, data: st.DataObject) -> None:
    pieces = pieces_of(lengths)
    whole = b"".join(pieces)
    chunks = filled(start, pieces, ChunkPool(0))
    assert (chunks.start, chunks.end) == (start, start + len(whole))
    first = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(first, len(whole)))
    assert b"".join(chunks.views(start + first, start + stop)) == whole[first:stop]


@given(sizes, st.data())
def test_a_batch_never_spans_two_chunks(lengths: list[int], data: st.DataObject) -> None:
    chunks = filled(0, pieces_of(lengths), ChunkPool(0))
    position = 0
    for length in lengths:
        assert len(chunks.views(position, position + length)) == 1
        assert chunks.chunk_end(position) >= position + length
        position += length


@given(sizes, st.data())
def test_the_part_behind_a_dropped_one_stays_readable_and_appendable(lengths: list[int], data: st.DataObject) -> None:
    pieces = pieces_of(lengths)
    whole = b"".join(pieces)
    pool = ChunkPool(0)
    chunks = filled(0, pieces, pool)
    cut = data.draw(st.integers(0, len(whole)))
    chunks.drop_before(cut)
    assert chunks.start <= cut
    assert b"".join(chunks.views(cut, len(whole))) == whole[cut:]
    chunks.append(b"more")
    assert b"".join(chunks.views(cut, chunks.end)) == whole[cut:] + b"more"
    assert pool.held_bytes == sum(map(len, chunks.chunks))


@given(sizes)
def test_nothing_is_held_after_a_release_or_a_drop_of_everything(lengths: list[int]) -> None:
    pool = ChunkPool(FULL_CHUNK_BYTES)
    released, dropped = (filled(7, pieces_of(lengths), pool) for _ in range(2))
    released.release()
    dropped.drop_before(dropped.end)
    assert pool.held_bytes == 0
    assert (released.chunks, dropped.chunks) == ([], [])
    assert dropped.start == dropped.end == 7 + sum(lengths)


def test_a_quiet_shard_holds_little_and_a_busy_one_full_chunks() -> None:
    pool = ChunkPool(0)
    chunks = filled(0, [b"x" * 100], pool)
    assert pool.held_bytes == FIRST_CHUNK_BYTES
    for _ in range(8000):
        chunks.append(b"x" * 100)
    assert len(chunks.chunks[-1]) == FULL_CHUNK_BYTES
    assert pool.held_bytes <= 2 * (chunks.end - chunks.start) + FULL_CHUNK_BYTES


def test_a_batch_larger_than_a_full_chunk_gets_a_chunk_of_its_own() -> None:
    chunks = filled(0, [b"a" * 10, b"b" * (FULL_CHUNK_BYTES + 1), b"c"], ChunkPool(0))
    assert [bytes(view[:1]) for view in chunks.views(10, chunks.end)] == [b"b", b"c"]


def test_a_full_chunk_is_used_again_unless_a_reader_still_holds_it() -> None:
    pool = ChunkPool(4 * FULL_CHUNK_BYTES)
    chunks = filled(0, [b"a" * FULL_CHUNK_BYTES, b"b" * FULL_CHUNK_BYTES], pool)
    read = chunks.views(0, 10)[0]
    kept, free = chunks.chunks
    kept_id, free_id = id(kept), id(free)
    del kept, free
    chunks.release()
    taken = [pool.take(), pool.take()]
    assert free_id in map(id, taken)
    assert kept_id not in map(id, taken)
    assert bytes(read) == b"a" * 10


def test_the_pool_keeps_no_more_than_its_capacity() -> None:
    pool = ChunkPool(FULL_CHUNK_BYTES)
    chunks = filled(0, [b"a" * FULL_CHUNK_BYTES, b"b" * FULL_CHUNK_BYTES], pool)
    ids = set(map(id, chunks.chunks))
    chunks.release()
    again = [pool.take()]
    assert id(again[0]) in ids
    assert pool._free == []
