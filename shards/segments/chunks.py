"""The bytes of a segment that are in memory: adjacent batches in a few buffers, addressed by segment position.

Small batches are copied into shared buffers, so a million of them need their bytes and not a million objects. Buffers
grow with the data, so a quiet shard needs little memory. Allocating memory is the most expensive operation here (page
faults), so full-size buffers are reused through a pool.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import TypeAlias

FULL_CHUNK_BYTES = 256 * 1024
FIRST_CHUNK_BYTES = 256

Readable: TypeAlias = bytes | bytearray | memoryview

# References to a buffer that only the pool's caller uses: its variable here, and the argument of getrefcount.
_UNSHARED_REFERENCES = 2


class MemoryAccount:
    """The memory of the segments that one principal began.

    Attributes:
        owner: Whose account it is, for messages.
        held_bytes: Memory of their chunk lists, filled or not.
        limit_bytes: Its owner may append to memory while it holds less; 0 means no limit.
    """

    __slots__ = ("held_bytes", "limit_bytes", "owner")

    def __init__(self, owner: str, limit_bytes: int = 0) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.limit_bytes = limit_bytes

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return 0 < self.limit_bytes <= self.held_bytes


class ChunkPool:
    """Keeps up to ``capacity_bytes`` of full-size buffers for reuse.

    Attributes:
        held_bytes: Memory of all chunk lists of this pool, filled or not.
        account: The account that segments count for whose first bytes come now; None for none.
    """

    __slots__ = ("_capacity", "_free", "account", "held_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes // FULL_CHUNK_BYTES
        self._free: list[bytearray] = []
        self.account: MemoryAccount | None = None
        self.held_bytes = 0

    def take(self) -> bytearray:
        """A buffer of FULL_CHUNK_BYTES with undefined content."""
        return self._free.pop() if self._free else bytearray(FULL_CHUNK_BYTES)

    def give_back(self, chunks: list[bytearray]) -> None:
        """Remove the buffers from the list and keep those that no reader uses any more.

        A reader that is still sending from a buffer has a memoryview, which refers to the buffer; such a buffer is left
        to the garbage collector.
        """
        while chunks:
            chunk = chunks.pop()
            self.held_bytes -= len(chunk)
            if (
                len(chunk) == FULL_CHUNK_BYTES
                and len(self._free) < self._capacity
                and sys.getrefcount(chunk) == _UNSHARED_REFERENCES
            ):
                self._free.append(chunk)


# Shared by all empty chunk lists, and never changed: a node has a million of them.
_NO_CHUNKS: list[bytearray] = []
_NO_STARTS: list[int] = []


class ChunkList:
    """Batches from position ``start`` up to ``end`` of one segment.

    Invariant: a batch never spans two chunks; ``starts[i]`` is the segment position of the first byte of ``chunks[i]``,
    and the chunk is filled up to ``starts[i + 1]`` (or ``end``).
    """

    __slots__ = ("_account", "_pool", "capacity", "chunks", "end", "fill", "starts")

    def __init__(self, start: int, pool: ChunkPool) -> None:
        self._pool = pool
        self._account: MemoryAccount | None = None
        self.chunks = _NO_CHUNKS
        self.starts = _NO_STARTS
        self.end = start
        self.fill = 0
        self.capacity = 0

    @property
    def start(self) -> int:
        """Position of the first byte in memory, or ``end`` if there is none."""
        return self.starts[0] if self.starts else self.end

    def append(self, data: memoryview | bytes) -> None:
        """Copy whole batches to the end."""
        size = len(data)
        fill = self.fill
        if fill + size > self.capacity:
            self.add_chunk(size)
            fill = 0
        self.chunks[-1][fill : fill + size] = data
        self.fill = fill + size
        self.end += size

    def add_chunk(self, needed_bytes: int) -> None:
        """Continue in a new buffer with room for at least this many bytes."""
        # Doubling bounds the unused memory by the used one, for one shard and for a million.
        wanted = max(FIRST_CHUNK_BYTES, min(FULL_CHUNK_BYTES, self.end - self.start), needed_bytes)
        chunk = self._pool.take() if wanted == FULL_CHUNK_BYTES else bytearray(wanted)
        self._pool.held_bytes += len(chunk)
        if self.chunks is _NO_CHUNKS:
            self.chunks, self.starts = [], []
            self._account = self._pool.account
        if self._account is not None:
            self._account.held_bytes += len(chunk)
        self.chunks.append(chunk)
        self.starts.append(self.end)
        self.fill = 0
        self.capacity = wanted

    def views(self, position: int, end: int) -> list[memoryview]:
        """The bytes from ``position`` up to ``end``, without a copy; both must be in memory."""
        at = bisect_right(self.starts, position) - 1
        found = []
        while position < end:
            start = self.starts[at]
            chunk_end = self.starts[at + 1] if at + 1 < len(self.starts) else self.end
            stop = min(chunk_end, end)
            found.append(memoryview(self.chunks[at])[position - start : stop - start])
            position = stop
            at += 1
        return found

    def chunk_end(self, position: int) -> int:
        """Segment position of the end of the chunk that contains ``position``."""
        at = bisect_right(self.starts, position)
        return self.starts[at] if at < len(self.starts) else self.end

    def drop_before(self, position: int) -> None:
        """Drop whole chunks before the position (they are in the file now); all of them if it is the end."""
        if position >= self.end:
            dropped = len(self.chunks)
            self.fill = self.capacity = 0
        else:
            dropped = bisect_right(self.starts, position) - 1
        if dropped <= 0:
            return
        if dropped == len(self.chunks):
            gone, self.chunks, self.starts = self.chunks, _NO_CHUNKS, _NO_STARTS
        else:
            gone = self.chunks[:dropped]
            del self.chunks[:dropped]
            del self.starts[:dropped]
        self._give_back(gone)

    def release(self) -> None:
        """Drop everything: the segment was dropped. Readers keep the views that they have."""
        gone, self.chunks, self.starts = self.chunks, _NO_CHUNKS, _NO_STARTS
        self.fill = self.capacity = 0
        self._give_back(gone)

    def _give_back(self, gone: list[bytearray]) -> None:
        if self._account is not None:
            self._account.held_bytes -= sum(map(len, gone))
        self._pool.give_back(gone)
