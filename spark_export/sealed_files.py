"""Names of sealed files: the shard and the range of offsets in them, or the day, and which belong to the history.

Nothing is read here. In a copy or an object store, the names of segments with files of their own are the only
information about what belongs together. A shared file has only the day in its name: of which shards it has records is
in its rows (`spark_export.shared_files`). Layout and names are those of `shards.segments.segment_paths`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

import attrs

from shards.segments.segment_paths import day_of_date, shared_path
from shards.topics.names import shard_name
from spark_export.errors import UnreadableError

DATE_PREFIX: Final = "date="
"""Beginning of the names of the directories that have shared files."""

_FILE = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{16})\.parquet")
_SHARED = re.compile(r"(?:.*/)?date=([0-9-]{10})/([0-9a-f]{16})\.parquet")
_MARK = re.compile(r"_start-([0-9a-f]{16})")


@attrs.frozen(slots=True, order=True)
class SealedName:
    """One Parquet segment, by its path.

    Attributes:
        directory: Name of its directory, ``shard=...``.
        base_offset: First offset.
        next_offset: Offset after the last one.
        shard_id: The shard's id; a later shard of the same name has another.
        file: Name of the file.
    """

    directory: str
    base_offset: int
    next_offset: int
    shard_id: int
    file: str

    @property
    def shard(self) -> str | None:
        """Name of the shard; None if the directory's name is a hash: then the file's metadata has it."""
        return shard_name(self.directory)


@attrs.frozen(slots=True, order=True)
class SharedName:
    """One shared file, by its path.

    Attributes:
        day: Days since 1970 of the appends in it.
        file_id: Its number; files of several days may have the same one.
    """

    day: int
    file_id: int

    @property
    def path(self) -> str:
        """Its path below the directory of all sealed segments."""
        return shared_path("", self.day, self.file_id).removeprefix("/")


def parse_shared(path: str) -> SharedName | None:
    """The shared file of a path; None for another file."""
    found = _SHARED.fullmatch(path)
    if found is None:
        return None
    try:
        return SharedName(day_of_date(found[1]), int(found[2], 16))
    except ValueError:
        return None


def parse_file(path: str) -> SealedName | None:
    """The Parquet segment of a path; None for another file."""
    directory, _, file = path.rpartition("/")
    found = _FILE.fullmatch(file)
    if found is None:
        return None
    return SealedName(directory.rpartition("/")[2], int(found[1]), int(found[2]), int(found[3], 16), file)


def parse_mark(path: str) -> tuple[str, int] | None:
    """Directory and shard id of a file with the start of a trimmed shard; None for another file."""
    directory, _, file = path.rpartition("/")
    found = _MARK.fullmatch(file)
    return None if found is None else (directory.rpartition("/")[2], int(found[1], 16))


def partition_value(directory: str) -> str:
    """The partition value that Spark reads from a directory name: it decodes each ``%XX`` to a character of its own."""
    return unquote_to_bytes(directory.partition("=")[2]).decode("latin-1")


def counted(files: Iterable[SealedName], starts: dict[tuple[str, int], int]) -> list[SealedName]:
    """The files that have the history of the present shards.

    Of several shards of the same name only the newest counts (ids grow). A file that is completely below its shard's
    start, or inside the range of another, does not count.

    Args:
        files: All files that were found.
        starts: By directory and shard id: first offset that was not trimmed.

    Raises:
        UnreadableError: Two files of a shard overlap in another way.
    """
    kept: list[SealedName] = []
    # Within a directory the newest shard's files come first, the wider of two with the same base before the other.
    for file in sorted(files, key=lambda one: (one.directory, -one.shard_id, one.base_offset, -one.next_offset)):
        last = kept[-1] if kept and kept[-1].directory == file.directory else None
        if last is not None:
            if file.shard_id != last.shard_id or file.next_offset <= last.next_offset:
                continue
            if file.base_offset < last.next_offset:
                raise UnreadableError(
                    f"sealed segments {last.file} and {file.file} in {file.directory} overlap, which those of one "
                    "shard never do; `journal check` on the data directory tells which of them belongs there"
                )
        kept.append(file)
    return [file for file in kept if file.next_offset > starts.get((file.directory, file.shard_id), 0)]
