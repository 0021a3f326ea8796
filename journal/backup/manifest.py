"""The format of a manifest: which files a backup consists of, a line of JSON each, and a last line that seals them.

Only the format: lines in, values out. A manifest is written and read line by line, since a node may have millions of
files; so its last line tells how many there were, and the digest of everything before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import msgspec

from shards.errors import CorruptionError, FormatVersionError

VERSION: Final = 1
_LONGEST_LINE_BYTES: Final = 64 * 1024


@attrs.frozen(slots=True)
class Header:
    """The first line.

    Attributes:
        version: Of the format.
        number: Place of the backup among those of its directory, from 1.
        node_id: Whose files they are.
        lsn: Every entry up to this one is in it, none after it.
        made_us: When it was begun, by the clock of whoever made it.
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
        path: In the data directory, with slashes.
        size_bytes: Its size.
        modified_ns: When it was last changed, by the file system it came from; with the size, it tells whether a file
            is unchanged.
        sha256: Digest of its content, in hexadecimal digits; the name of the object that holds it.
    """

    path: str
    size_bytes: int
    modified_ns: int
    sha256: str


@attrs.frozen(slots=True)
class Seal:
    """The last line.

    Attributes:
        files: How many there are.
        size_bytes: Of all of them together.
        sealed_sha256: Digest of all lines before this one.
    """

    files: int
    size_bytes: int
    sealed_sha256: str


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the library raises for a line that is no JSON, no UTF-8, or nested without end."""

# In one order of keys, whatever the library does by itself: the last line is known by its first key.
_encoder = msgspec.json.Encoder(order="deterministic")
_headers = msgspec.json.Decoder(Header)
_entries = msgspec.json.Decoder(FileEntry)
_seals = msgspec.json.Decoder(Seal)


class ManifestEncoder:
    """Makes the lines of one manifest.

    Attributes:
        files: Entries so far.
        size_bytes: Of their files together.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.files = 0
        self.size_bytes = 0

    def header(self, header: Header) -> bytes:
        """The first line."""
        return self._line(header)

    def entry(self, entry: FileEntry) -> bytes:
        """The line of a file; files come in the order of `order_of`."""
        self.files += 1
        self.size_bytes += entry.size_bytes
        return self._line(entry)

    def seal(self) -> bytes:
        """The last line."""
        return _encoder.encode(Seal(self.files, self.size_bytes, self._digest.hexdigest())) + b"\n"

    def _line(self, value: Header | FileEntry) -> bytes:
        line = _encoder.encode(value) + b"\n"
        self._digest.update(line)
        return line


class ManifestDecoder:
    """Reads the lines of one manifest; `header` at once, `entries` once, and then `seal`.

    Nothing that `entries` gives may be relied on before it has come to its end: then the seal has been compared.

    Args:
        path: Named in errors.
        lines: The file's lines, with their ends.

    Attributes:
        header: The first line.
        seal: The last line, when `entries` has come to its end.

    Raises:
        CorruptionError: It is not whole; so does `entries`.
        FormatVersionError: A newer program made it.
    """

    def __init__(self, path: str, lines: Iterable[bytes]) -> None:
        self._path = path
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        self._position = 0
        self.seal: Seal | None = None
        first = self._take(next(self._lines, b""))
        try:
            self.header = _headers.decode(first)
        except _UNREADABLE as error:
            raise CorruptionError(path, 0, f"the first line is no header of a manifest: {error}") from error
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
                raise CorruptionError(self._path, self._position, f"no entry of a manifest: {error}") from error
            if not _is_plain(entry):
                raise CorruptionError(
                    self._path, self._position, f"{entry.path!r} with digest {entry.sha256!r} names no file"
                )
            self._take(line)
            size_bytes += entry.size_bytes
            yield entry
        raise CorruptionError(self._path, self._position, "the last line is missing; the file was cut")

    def _compare(self, line: bytes, files: int, size_bytes: int) -> None:
        try:
            stored = _seals.decode(line)
        except _UNREADABLE as error:
            raise CorruptionError(self._path, self._position, f"no last line of a manifest: {error}") from error
        found = Seal(files, size_bytes, self._digest.hexdigest())
        if stored != found:
            raise CorruptionError(self._path, self._position, f"expected {stored}, found {found}")
        self.seal = stored


def _is_plain(entry: FileEntry) -> bool:
    """Whether it stays inside of a directory, whatever somebody may have written into the file."""
    return (
        all(part not in ("", ".", "..") and "\0" not in part for part in entry.path.split("/"))
        and len(entry.sha256) == 64
        and not set(entry.sha256) - set("0123456789abcdef")
    )


def order_of(path: str) -> tuple[str, ...]:
    """What entries are sorted by: the order in which a walk meets them, directories as their names are sorted."""
    return tuple(path.split("/"))


def lines_of(chunks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Cut a file's content into lines, each with its end; the last may be without one.

    Raises:
        CorruptionError: A line is longer than any of a manifest.
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
