"""The shared files that segments of shards are in, and how many of their records and bytes the views refer to.

Family ``files``: key = day (u32, big-endian), file id (u64, big-endian); value: the struct below, little-endian. The
numbers of what is referred to change in the write that changes the records of segments. So they are right whatever was
replayed, and a file without references can be removed without looking at any shard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import attrs

from shards.errors import CorruptionError, FormatVersionError
from shards.seams.store import Family, Mutations, OrderedStore
from shards.segments.segment_paths import LAST_DAY, shared_path

_KEY = struct.Struct(">IQ")
# version, 7 zero bytes; bytes, records, lsn of the entry, records and bytes that are referred to, since when fewer
# records are referred to than there are; SHA-256 of the file
_VALUE = struct.Struct("<B7xQQQQQQ32s")
_VERSION = 1

FileKey: TypeAlias = tuple[int, int]
"""(day, file id)."""


@attrs.frozen(slots=True)
class SharedFileRecord:
    """One shared file.

    Attributes:
        day: Days since 1970 of the appends in it.
        file_id: Its number.
        size_bytes: Size of the file.
        record_count: Number of records in it.
        lsn: The entry that made it valid. Until a checkpoint contains that entry, references may be missing.
        live_records: Number of records that recorded segments have in it.
        live_bytes: Their share of the file's bytes.
        digest: SHA-256 of the whole file.
        dead_since_us: When a checkpoint first found that records in it are not referred to; 0 if all of them are.
    """

    day: int
    file_id: int
    size_bytes: int
    record_count: int
    lsn: int
    live_records: int
    live_bytes: int
    digest: bytes
    dead_since_us: int = 0

    @property
    def key(self) -> FileKey:
        return self.day, self.file_id

    def path(self, sealed_root: str) -> str:
        """Its place below the directory of all Parquet segments."""
        return shared_path(sealed_root, self.day, self.file_id)


@attrs.frozen(slots=True)
class SharedTotals:
    """All shared files together.

    Attributes:
        count: Their number.
        live_bytes: Bytes of records that segments refer to.
        dead_bytes: Bytes of the others.
    """

    count: int
    live_bytes: int
    dead_bytes: int


class SharedFiles:
    """All shared files of a node; there are few, so they are kept in memory.

    Attributes:
        generation: Grows whenever `valid` may return other files, unless only the checkpoint is another.

    Raises:
        CorruptionError: A record cannot be read.
        FormatVersionError: A newer program wrote it.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._records = {record.key: record for record in load_files(store)}
        # What entries did since the start, which the records of segments may not show yet: files that shards got, and
        # files whose segments were replaced by those of other files.
        self._placed: set[FileKey] = set()
        self._replaced: set[FileKey] = set()
        self.generation = 0

    def __iter__(self) -> Iterator[SharedFileRecord]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: FileKey) -> SharedFileRecord | None:
        """The file with this key; None if there is none."""
        return self._records.get(key)

    def fold_put(self, mutations: Mutations, record: SharedFileRecord) -> None:
        """Add a file. One that is there already keeps what refers to it."""
        # After a crash an entry may be folded into shards that are later than it, and then replace later files.
        self._replaced.discard(record.key)
        self.generation += 1
        if record.key not in self._records:
            self._put(mutations, record)

    def fold_delete(self, mutations: Mutations, key: FileKey) -> None:
        """Remove a file to which nothing refers."""
        if self._records.pop(key, None) is not None:
            mutations.delete(Family.FILES, _KEY.pack(*key))
            self._placed.discard(key)
            self._replaced.discard(key)
            self.generation += 1

    def refer(self, mutations: Mutations, references: dict[FileKey, tuple[int, int]]) -> None:
        """Change what refers to files, together with the records of segments in the same mutations.

        Args:
            references: Records and bytes more than before; negative if they are fewer.
        """
        for key, (records, size_bytes) in references.items():
            found = self._records.get(key)
            if found is not None and (records or size_bytes):
                live_records, live_bytes = found.live_records + records, found.live_bytes + size_bytes
                self._put(mutations, attrs.evolve(found, live_records=live_records, live_bytes=live_bytes))
                if not live_records:
                    self.generation += 1

    def note_replacement(self, placed: Iterable[FileKey], replaced: Iterable[FileKey]) -> None:
        """Note that segments in some files took the places of others, by an entry about all segments of the latter.

        Args:
            placed: Files of the new segments.
            replaced: Files of the old segments: all that was needed of them is elsewhere now.
        """
        self._placed.update(placed)
        self._replaced.update(replaced)
        self.generation += 1

    def valid(self, checkpoint_lsn: int) -> list[FileKey]:
        """Files that are needed, each of whose records is in no other one.

        Exact whenever no entry is half applied, also before a checkpoint has saved what refers to the files.
        """
        return [
            key
            for key, record in self._records.items()
            if key not in self._replaced
            and (record.live_records > 0 or (record.lsn > checkpoint_lsn and key in self._placed))
        ]

    def note_dead(self, mutations: Mutations, checkpoint_lsn: int, now_us: int) -> None:
        """Record since when files have records to which nothing refers, as of a checkpoint that contains their entries.

        Such a record is never referred to again.
        """
        for each in list(self._records.values()):
            has_dead = each.lsn <= checkpoint_lsn and 0 < each.live_records < each.record_count
            if has_dead and not each.dead_since_us:
                self._put(mutations, attrs.evolve(each, dead_since_us=now_us))

    def totals(self, checkpoint_lsn: int) -> SharedTotals:
        """Add up all files; one of which the references may not be recorded yet counts as live."""
        size_bytes = dead_bytes = 0
        for each in self._records.values():
            size_bytes += each.size_bytes
            if each.lsn <= checkpoint_lsn and each.record_count:
                dead_bytes += each.size_bytes * (each.record_count - each.live_records) // each.record_count
        return SharedTotals(len(self._records), size_bytes - dead_bytes, dead_bytes)

    def removable(self, checkpoint_lsn: int) -> list[SharedFileRecord]:
        """Files to which nothing refers, as of a checkpoint that contains their entries."""
        return [each for each in self._records.values() if not each.live_records and each.lsn <= checkpoint_lsn]

    def _put(self, mutations: Mutations, record: SharedFileRecord) -> None:
        self._records[record.key] = record
        value = _VALUE.pack(
            _VERSION,
            record.size_bytes,
            record.record_count,
            record.lsn,
            record.live_records,
            record.live_bytes,
            record.dead_since_us,
            record.digest,
        )
        mutations.put(Family.FILES, _KEY.pack(*record.key), value)


def load_files(store: OrderedStore) -> Iterator[SharedFileRecord]:
    """Read the records of all shared files.

    Raises:
        CorruptionError: A record cannot be read.
        FormatVersionError: A newer program wrote it.
    """
    for key, value in store.scan(Family.FILES):
        where = f"record of the shared file {key.hex()} in the views"
        if value[:1] != bytes([_VERSION]):
            raise FormatVersionError(f"{where} has format {value[:1].hex() or 'none'}, this program reads {_VERSION}")
        if len(key) != _KEY.size or len(value) != _VALUE.size:
            raise CorruptionError(
                where,
                0,
                f"key and value have {len(key)} and {len(value)} bytes, expected {_KEY.size} and {_VALUE.size}",
            )
        day, file_id = _KEY.unpack(key)
        _, size_bytes, record_count, lsn, live_records, live_bytes, dead_since_us, digest = _VALUE.unpack(value)
        if day > LAST_DAY or live_records > record_count:
            raise CorruptionError(
                where,
                0,
                f"day {day} and {live_records} live records of {record_count}; expected a day up to {LAST_DAY}, and at "
                f"most all records",
            )
        yield SharedFileRecord(
            day, file_id, size_bytes, record_count, lsn, live_records, live_bytes, digest, dead_since_us
        )
