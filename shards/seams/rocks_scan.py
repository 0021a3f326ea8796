"""Scans of an ordered store in RocksDB: in chunks, together with the writes that wait in the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

from rocksdict import Rdict, RdictIter, ReadOptions

from shards.seams.store import prefix_end
from shards.seams.write_queue import WriteQueue

_SKIPPED_TOO_MANY = "Result incomplete: Too many internal keys skipped"

_FIRST_CHUNK_KEYS = 32
_CHUNK_KEYS = 512
_CHUNK_BYTES = 1 << 20
_STEP_KEYS = 128
_STEP_SKIPPED_KEYS = 500
"""Largest number of versions and deletions that one step of `items_in_steps` skips to find its next key: some tenths of
a millisecond. In the worst case a step skips this many before each of its keys."""
_LARGEST_KEY_BITS = 8 << 16


class RocksScan:
    """One scan. All keys begin with the byte of their family, which is left out of the keys that it returns.

    Args:
        open_db: Returns the database; an error if the store is closed.
        queue: Writes that RocksDB has not accepted yet.
        fail: Raises the error for an exception of rocksdict.
    """

    def __init__(self, open_db: Callable[[], Rdict], queue: WriteQueue, fail: Callable[[Exception], NoReturn]) -> None:
        self._open_db = open_db
        self._queue = queue
        self._raise = fail

    def items(self, whole_prefix: bytes, start: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """See `OrderedStore.scan`."""
        end = prefix_end(whole_prefix)
        assert end is not None, "no family prefix is 0xff"
        place = end if reverse else whole_prefix
        if start is not None:
            place = min(place, start) if reverse else max(place, start)
        if place < whole_prefix or (place >= end and not reverse):
            return
        skip_place = reverse and place == end
        # No iterator is kept from one chunk to the next: an abandoned scan would hold RocksDB's lock after close().
        limit = _FIRST_CHUNK_KEYS
        # Bounds keep iterators from skipping deleted keys of other ranges that are not compacted yet.
        bounds = ReadOptions()
        bounds.set_iterate_lower_bound(whole_prefix)
        bounds.set_iterate_upper_bound(end)
        while True:
            written = self._queue.written
            stored, is_last = self._chunk(whole_prefix, place, limit, bounds, reverse=reverse, skip_place=skip_place)
            chunk = stored
            if self._queue:
                last = (whole_prefix if reverse else end) if is_last else stored[-1][0]
                chunk = self._with_queued(stored, whole_prefix, place, last, reverse=reverse, skip_place=skip_place)
            if written != self._queue.written:
                # A batch moved from the queue to RocksDB in the meantime, and may have been missed in both.
                continue
            for key, value in chunk:
                yield key[1:], value
            if is_last:
                return
            place = stored[-1][0]
            skip_place = True
            limit = _CHUNK_KEYS

    def items_in_steps(self, whole_prefix: bytes, start: bytes | None) -> Iterator[tuple[bytes, bytes] | None]:
        """See `OrderedStore.scan_in_steps`."""
        end = prefix_end(whole_prefix)
        assert end is not None, "no family prefix is 0xff"
        place = whole_prefix if start is None else max(whole_prefix, start)
        skip_place = False
        # RocksDB can stop after a number of deleted keys, but does not report its position then. So a stopped step is
        # repeated with a smaller range: the keys that share their first ``bits`` bits with the position; 0 for all.
        least_bits = 8 * len(whole_prefix)
        bits, has_grown = 0, False
        while place < end:
            bound = min(_range_end(place, bits) or end, end) if bits else end
            options = ReadOptions()
            options.set_iterate_lower_bound(whole_prefix)
            options.set_iterate_upper_bound(bound)
            if bits <= _LARGEST_KEY_BITS:
                options.set_max_skippable_internal_keys(_STEP_SKIPPED_KEYS)
            written = self._queue.written
            found = self._step(whole_prefix, place, bound, options, skip_place=skip_place)
            if written != self._queue.written:
                # As in `items`.
                continue
            if found is None:
                bits = bits + (1 if has_grown else 8) if bits else least_bits + 8
                has_grown = False
                yield None
                continue
            items, place, skip_place = found
            has_grown = bits > 0
            bits = bits - 1 if bits > least_bits + 1 else 0
            for key, value in items:
                yield key[1:], value
            if not items and place < end:
                yield None

    def _step(
        self, prefix: bytes, place: bytes, bound: bytes, options: ReadOptions, *, skip_place: bool
    ) -> tuple[list[tuple[bytes, bytes]], bytes, bool] | None:
        """Some items, the next position and whether it was read; None if too many deleted keys precede the first."""
        try:
            items, is_last = self._chunk(prefix, place, _STEP_KEYS, options, reverse=False, skip_place=skip_place)
        except _TooManySkippedError as stopped:
            items, is_last = stopped.found, False
            if not items:
                return None
        last = bound if is_last else items[-1][0]
        if self._queue:
            queued = self._with_queued(items, prefix, place, last, reverse=False, skip_place=skip_place)
            # The bound belongs to the next step.
            items = [(key, value) for key, value in queued if not is_last or key < bound]
        return items, last, not is_last

    def _with_queued(
        self,
        stored: list[tuple[bytes, bytes]],
        prefix: bytes,
        place: bytes,
        last: bytes,
        *,
        reverse: bool,
        skip_place: bool,
    ) -> list[tuple[bytes, bytes]]:
        """The items of a chunk from ``place`` to ``last``, including those of waiting batches."""
        queued = self._queue.between(min(place, last), max(place, last))
        merged: dict[bytes, bytes | None] = {**dict(stored), **queued}
        return [
            (key, value)
            for key in sorted(merged, reverse=reverse)
            if (value := merged[key]) is not None and key.startswith(prefix) and not (skip_place and key == place)
        ]

    def _chunk(
        self, prefix: bytes, place: bytes, limit: int, bounds: ReadOptions, *, reverse: bool, skip_place: bool
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Read up to `limit` items with `prefix` from `place` on; without `place` itself if `skip_place`.

        Returns:
            The items, fewer than the limit if they are large, and whether these were the last ones.

        Raises:
            _TooManySkippedError: The iterator stopped at the bound on deleted keys in `bounds`.

        Rdict.items() would be faster but simply ends at a damaged block; an RdictIter has a status to check.
        """
        chunk: list[tuple[bytes, bytes]] = []
        db = self._open_db()
        try:
            iterator: RdictIter = db.iter(bounds)
            step = iterator.prev if reverse else iterator.next
            if reverse:
                iterator.seek_for_prev(place)
            else:
                iterator.seek(place)
            if skip_place and iterator.valid() and iterator.key() == place:
                step()
            room_bytes = _CHUNK_BYTES
            while iterator.valid():
                key: bytes = iterator.key()
                if not key.startswith(prefix):
                    break
                if len(chunk) >= limit or room_bytes <= 0:
                    return chunk, False
                value: bytes = iterator.value()
                chunk.append((key, value))
                room_bytes -= len(value)
                step()
            iterator.status()
        except Exception as error:
            if str(error).startswith(_SKIPPED_TOO_MANY):
                raise _TooManySkippedError(chunk) from error
            self._raise(error)
        return chunk, True


class _TooManySkippedError(Exception):
    """An iterator stopped before it had skipped all deleted keys.

    Attributes:
        found: The items that it found before.
    """

    def __init__(self, found: list[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self.found = found


def _range_end(place: bytes, bits: int) -> bytes | None:
    """The lowest key above all that share their first bits with a position; None if there is none."""
    size_bytes = (bits + 7) // 8
    unused = 8 * size_bytes - bits
    number = (int.from_bytes(place[:size_bytes].ljust(size_bytes, b"\0")) >> unused) + 1
    return None if number >> bits else (number << unused).to_bytes(size_bytes)
