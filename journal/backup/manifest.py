"""The format of a manifest: the files of a backup, one line of JSON each, and a last line with their digest.

Only the format: lines in, values out. A manifest is written and read line by line, since a node may have millions of
files; so its last line has their number, and the digest of everything before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import msgspec

from shards.errors import CorruptionError, FormatVersionError

VERSION: Final = 2
_LONGEST_LINE_BYTES: Final = 64 * 1024


@attrs.frozen(slots=True)
class Header:
    """The first line.

    Attributes:
        version: Version of the format.
        number: Number of the backup in its directory, from 1.
        node_id: The node that the files belong to.
        lsn: The backup contains every entry up to this one and none after it.
        made_us: When the backup was begun, by the clock of the process that made it, in microseconds since 1970.
    """

    version: int
    number: int
    node_id: str
    lsn: int
    made_us: int


@attrs.frozen(slots=True)
class FileEntry:
    """One file.

    Attributes:
        path: Path in the data directory, with slashes.
        size_bytes: Its size.
        modified_ns: Its modification time on the original file system; with the size, it tells whether a file is
            unchanged.
        sha256: Digest of its content, in hexadecimal digits; the name of its object.
    """

    path: str
    size_bytes: int
    modified_ns: int
    sha256: str


@attrs.frozen(slots=True)
class LastLine:
    """The last line.

    Attributes:
        files: Number of files.
        size_bytes: Size of all of them together.
        lines_sha256: Digest of all lines before this one.
    """

    files: int
    size_bytes: int
    lines_sha256: str


@attrs.frozen(slots=True)
class _LastLineOfVersion1:
    """The last line in version 1, which has another name for `lines_sha256`."""

    files: int
    size_bytes: int
    sealed_sha256: str


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of the library for a line that is not JSON, not UTF-8, or nested too deeply."""

# With a fixed order of keys: the last line is recognised by its first key.
_encoder = msgspec.json.Encoder(order="deterministic")
_headers = msgspec.json.Decoder(Header)
_entries = msgspec.json.Decoder(FileEntry)
_last_lines = msgspec.json.Decoder(LastLine)
_last_lines_of_version_1 = msgspec.json.Decoder(_LastLineOfVersion1)


class ManifestEncoder:
    """Encodes the lines of one manifest.

    Attributes:
        files: Number of entries so far.
        size_bytes: Size of their files together.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.files = 0
        self.size_bytes = 0

    def header(self, header: Header) -> bytes:
        """The first line."""
        return self._line(header)

    def entry(self, entry: FileEntry) -> bytes:
        """The line of a file; files must be in the order of `order_of`."""
        self.files += 1
        self.size_bytes += entry.size_bytes
        return self._line(entry)

    def last_line(self) -> bytes:
        """The last line."""
        return _encoder.encode(LastLine(self.files, self.size_bytes, self._digest.hexdigest())) + b"\n"

    def _line(self, value: Header | FileEntry) -> bytes:
        line = _encoder.encode(value) + b"\n"
        self._digest.update(line)
        return line


class ManifestDecoder:
    """Decodes the lines of one manifest; `header` at once, `entries` once, and then `last_line`.

    The entries are valid only after the iteration has ended without an error: then the digest was compared.

    Args:
        path: Path for errors.
        lines: The file's lines, with their ends.

    Attributes:
        header: The first line.
        last_line: The last line, after `entries` has ended.

    Raises:
        CorruptionError: It is damaged; `entries` raises this, too.
        FormatVersionError: A newer program made it.
    """

    def __init__(self, path: str, lines: Iterable[bytes]) -> None:
        self._path = path
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        self._position = 0
        self.last_line: LastLine | None = None
        first = self._take(next(self._lines, b""))
        try:
            self.header = _headers.decode(first)
        except _UNREADABLE as error:
            raise CorruptionError(path, 0, f"the first line is not the header of a manifest: {error}") from error
        if self.header.version > VERSION:
            raise FormatVersionError(
                f"{path} has manifest format {self.header.version}, this program knows up to {VERSION}; use a newer one"
            )

    def _take(self, line: bytes) -> bytes:
        self._digest.update(line)
        self._position += len(line)
        return line

    def entries(self) -> Iterator[FileEntry]:
        """The files, in order."""
        size_bytes = 0
        for files, line in enumerate(self._lines):
            if line.startswith(b'{"files":'):
                self._compare(line, files, size_bytes)
                return
            try:
                entry = _entries.decode(line)
            except _UNREADABLE as error:
                raise CorruptionError(self._path, self._position, f"not an entry of a manifest: {error}") from error
            if not _is_plain(entry):
                raise CorruptionError(
                    self._path, self._position, f"{entry.path!r} with digest {entry.sha256!r} does not name a file"
                )
            self._take(line)
            size_bytes += entry.size_bytes
            yield entry
        raise CorruptionError(self._path, self._position, "the last line is missing; the file is truncated")

    def _compare(self, line: bytes, files: int, size_bytes: int) -> None:
        try:
            stored = _decode_last_line(line, self.header.version)
        except _UNREADABLE as error:
            raise CorruptionError(self._path, self._position, f"not the last line of a manifest: {error}") from error
        found = LastLine(files, size_bytes, self._digest.hexdigest())
        if stored != found:
            raise CorruptionError(self._path, self._position, f"expected {stored}, found {found}")
        self.last_line = stored


def _decode_last_line(line: bytes, version: int) -> LastLine:
    """The last line of a manifest of any version that can be read."""
    if version > 1:
        return _last_lines.decode(line)
    old = _last_lines_of_version_1.decode(line)
    return LastLine(old.files, old.size_bytes, old.sealed_sha256)


def _is_plain(entry: FileEntry) -> bool:
    """Whether its path stays inside the directory and its digest is valid, whatever the file contains."""
    return (
        all(part not in ("", ".", "..") and "\0" not in part for part in entry.path.split("/"))
        and len(entry.sha256) == 64
        and not set(entry.sha256) - set("0123456789abcdef")
    )


def order_of(path: str) -> tuple[str, ...]:
    """Sort key of entries: the order of a directory walk in which names are sorted at every level."""
    return tuple(path.split("/"))


def lines_of(chunks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Split a file's content into lines, each with its line feed; the last one may lack it.

    Raises:
        CorruptionError: A line is longer than any line of a manifest.
    """
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) > _LONGEST_LINE_BYTES:
            raise CorruptionError(path, 0, f"a line has more than {_LONGEST_LINE_BYTES} bytes")
    if rest:
        yield rest
