"""The metadata in the footer of a shared file.

The layout of the whole file is in docs/formats.md, section "Shared file (Parquet)".
"""

from __future__ import annotations

import attrs
import msgspec

from shards.parquet.schema import FORMAT_VERSION
from shards.segments.segment_paths import date_of_day, day_of_date

METADATA_PREFIX = "journal."


@attrs.frozen
class GroupEntry:
    """The metadata of one row group.

    Attributes:
        row_count: Number of its rows.
        last_lsn: Highest lsn in it, of all shards.
        newest_us: Newest record timestamp in it.
        value_bytes: Size of its values together.
        start: Position of its first page.
        end: Position after its last page.
        crc: CRC-32C of the bytes in between.
    """

    row_count: int
    last_lsn: int
    newest_us: int
    value_bytes: int
    start: int
    end: int
    crc: int


@attrs.frozen
class FileMetadata:
    """The ``journal.*`` keys of a shared file's metadata, all of them texts. Nothing here grows with the shards.

    Attributes:
        format: Version of this layout.
        file_id: Random number of the file.
        day: Days since 1970 of the append times; the key ``journal.date`` has it as a date.
        record_count: Number of its rows.
        value_bytes: Size of all values together.
        data_bytes: Size of the part of the file up to the end of the last page.
        data_sha256: Digest of that part, in hexadecimal digits.
        row_groups: JSON: for each row group a list of the fields of `GroupEntry`, in order.
        rewritten_from: JSON: paths, relative to the directory of all Parquet segments, of the shared files in which all
            rows were before. The key is missing if any row was in none.
    """

    format: int
    file_id: int
    day: int
    record_count: int
    value_bytes: int
    data_bytes: int
    data_sha256: str
    row_groups: tuple[GroupEntry, ...]
    rewritten_from: tuple[str, ...] = ()

    def rows_of(self, index: int) -> str:
        """Which rows a row group has, for messages."""
        first = sum(entry.row_count for entry in self.row_groups[:index])
        return f"rows {first} to {first + self.row_groups[index].row_count}"

    def encode(self) -> dict[str, str]:
        """Return the keys and texts to write."""
        texts = {
            "format": str(self.format),
            "file_id": f"{self.file_id:016x}",
            "date": date_of_day(self.day),
            "record_count": str(self.record_count),
            "value_bytes": str(self.value_bytes),
            "data_bytes": str(self.data_bytes),
            "data_sha256": self.data_sha256,
            "row_groups": msgspec.json.encode([attrs.astuple(group) for group in self.row_groups]).decode(),
        }
        if self.rewritten_from:
            texts["rewritten_from"] = msgspec.json.encode(self.rewritten_from).decode()
        return {f"{METADATA_PREFIX}{name}": text for name, text in texts.items()}

    @classmethod
    def decode(cls, stored: dict[bytes, bytes]) -> FileMetadata:
        """Decode the metadata from the keys and texts of a file.

        Raises:
            ValueError: A key is missing, or its text is not valid.
        """

        def text(name: str) -> str:
            found = stored.get(f"{METADATA_PREFIX}{name}".encode())
            if found is None:
                raise ValueError(f"the metadata has no {METADATA_PREFIX}{name}")
            return found.decode()

        version = int(text("format"))
        if version != FORMAT_VERSION:
            raise ValueError(f"the file has sealed format {version}, this program reads only {FORMAT_VERSION}")
        groups = msgspec.json.decode(text("row_groups"), type=list[tuple[int, int, int, int, int, int, int]])
        sources = stored.get(f"{METADATA_PREFIX}rewritten_from".encode(), b"[]")
        metadata = cls(
            format=version,
            file_id=int(text("file_id"), 16),
            day=day_of_date(text("date")),
            record_count=int(text("record_count")),
            value_bytes=int(text("value_bytes")),
            data_bytes=int(text("data_bytes")),
            data_sha256=text("data_sha256"),
            row_groups=tuple(GroupEntry(*group) for group in groups),
            rewritten_from=msgspec.json.decode(sources, type=tuple[str, ...]),
        )
        rows = sum(entry.row_count for entry in metadata.row_groups)
        if rows != metadata.record_count:
            raise ValueError(f"the metadata has {metadata.record_count} records, its row groups {rows}")
        return metadata
